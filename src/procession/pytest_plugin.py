"""The pytest plugin: the fixture `run_pipeline`. pytest finds it by the entry point `pytest11`.

Invariant: the import is cheap, because pytest loads the plugin in every test run where Procession is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def run_pipeline() -> Callable[..., Any]:
    """Return `procession.testing.run_everywhere`, which runs a pipeline with several schedules and checks that they
    write the same bytes."""
    from procession.testing.schedules import run_everywhere

    return run_everywhere
