"""Marks cases that `make test` leaves out and `make test-all` runs."""

from __future__ import annotations

from typing import Any

import pytest


def slow(value: Any) -> Any:
    """A case of `parametrize` that only `make test-all` runs."""
    return pytest.param(value, marks=pytest.mark.slow)
