"""The cases of the conformance suite that every test run includes; `make test-all` runs the others, too."""

from __future__ import annotations

from typing import Any

import pytest

from procession.sdk.conformance import CASES

SHORT_ROUND = frozenset(
    {
        *("visible", "large", "empty-epoch", "killed-commit", "killed-abort", "restart-at-end"),
        *("before-vote-commit", "after-output-commit-commit", "before-output-abort-abort"),
    }
)
"""The cases that depend on the Output. The SDK implements the others for all sinks; the file sink runs all cases."""


def cases(*before: Any, name: str = "", short_round: frozenset[str] = SHORT_ROUND) -> list[Any]:
    """Return all cases as parameters, after those given. Cases outside the short round are marked as slow."""
    return [
        pytest.param(
            *(*before, case),
            id=f"{name}: {case.name}" if name else case.name,
            marks=[] if case.short in short_round else pytest.mark.slow,
        )
        for case in CASES
    ]
