"""The cases of the conformance suite that every change needs; `make test-all` runs the others, too."""

from __future__ import annotations

from typing import Any

import pytest

from procession.sdk.conformance import CASES

SHORT_ROUND = frozenset(
    {
        *("visible", "large", "empty-epoch", "killed-commit", "killed-abort", "all-as-it-was"),
        *("before-vote-commit", "after-output-commit-commit", "before-output-abort-abort"),
    }
)
"""What depends on the Output. All sinks owe the other cases to the SDK, and the file sink has all in every run."""


def cases(*before: Any, name: str = "", short_round: frozenset[str] = SHORT_ROUND) -> list[Any]:
    """All cases as parameters, behind those given. The ones that are not of the short round are slow."""
    return [
        pytest.param(
            *(*before, case),
            id=f"{name}: {case.name}" if name else case.name,
            marks=[] if case.short in short_round else pytest.mark.slow,
        )
        for case in CASES
    ]
