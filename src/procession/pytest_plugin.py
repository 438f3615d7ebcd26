"""The pytest plugin: the fixture `run_pipeline`. pytest finds it by the entry point `pytest11`.

Invariant: importing it is cheap, since pytest loads it with every test run where Procession is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def run_pipeline() -> Callable[..., Any]:
    """`procession.testing.run_everywhere`: run a pipeline on records with several schedules, and check that they write
    the same bytes."""
    from procession.testing.schedules import run_everywhere

    return run_everywhere
