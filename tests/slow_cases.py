"""Marks cases that `make test` leaves out and `make test-all` runs."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings

ALL_VARIABLE = "PROCESSION_TEST_ALL"
SHARE = 3
"""The divisor for the number of examples of a long property test in `make test`."""


def slow(value: Any) -> Any:
    """Mark a case of `parametrize` that only `make test-all` runs."""
    return pytest.param(value, marks=pytest.mark.slow)


def examples(count: int, **options: Any) -> settings:
    """Return settings of a property test: this many examples in `make test-all`, and a share of them in `make test`."""
    return settings(max_examples=count if os.environ.get(ALL_VARIABLE) else max(1, count // SHARE), **options)
