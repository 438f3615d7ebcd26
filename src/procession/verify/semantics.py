"""Classifies a run by the five delivery semantics of the paper.

Invariant: a run is classified by the strongest semantics that its output supports, from three facts only: whether
records are lost, doubled or incorrect. Order and the time of visibility are checked separately. Pure. Uses the counts
of `verify/verifier`; used by reports, and by the test that compares a pipeline with its declared guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from procession.planner.guarantee import Guarantee


class Semantics(StrEnum):
    """The semantics, from the weakest to the strongest; at-most-once and at-least-once are not comparable."""

    ZERO_GUARANTEE = "zero-guarantee"
    CORRECT_IF_COMMITTED = "correct-if-committed"
    AT_MOST_ONCE = "at-most-once"
    AT_LEAST_ONCE = "at-least-once"
    EFFECTIVELY_ONCE = "effectively-once"


@dataclass(frozen=True, slots=True)
class Allowance:
    """The deviations that a semantics allows."""

    losing: bool
    doubling: bool
    falsifying: bool


ALLOWED: dict[Semantics, Allowance] = {
    Semantics.ZERO_GUARANTEE: Allowance(losing=True, doubling=True, falsifying=True),
    Semantics.CORRECT_IF_COMMITTED: Allowance(losing=True, doubling=True, falsifying=False),
    Semantics.AT_MOST_ONCE: Allowance(losing=True, doubling=False, falsifying=False),
    Semantics.AT_LEAST_ONCE: Allowance(losing=False, doubling=True, falsifying=False),
    Semantics.EFFECTIVELY_ONCE: Allowance(losing=False, doubling=False, falsifying=False),
}


def shown_by(*, lost: int, doubled: int, corrupt: int) -> Semantics:
    """Return the strongest semantics that allows these counts."""
    strongest_first = reversed(ALLOWED.items())
    return next(
        semantics
        for semantics, allowed in strongest_first
        if (allowed.losing or not lost) and (allowed.doubling or not doubled) and (allowed.falsifying or not corrupt)
    )


def is_within(shown: Semantics, declared: Semantics) -> bool:
    """Return whether the semantics `shown` are at least as strong as the `declared` ones."""
    found, promised = ALLOWED[shown], ALLOWED[declared]
    return (
        (promised.losing or not found.losing)
        and (promised.doubling or not found.doubling)
        and (promised.falsifying or not found.falsifying)
    )


PROMISED = {
    Guarantee.EFFECTIVELY_ONCE: Semantics.EFFECTIVELY_ONCE,
    Guarantee.AT_LEAST_ONCE: Semantics.AT_LEAST_ONCE,
    Guarantee.AT_MOST_ONCE: Semantics.AT_MOST_ONCE,
    Guarantee.NONE: Semantics.CORRECT_IF_COMMITTED,
}
"""The semantics that a run must show at least, by the pipeline's declared guarantee."""


@dataclass(frozen=True, slots=True)
class SemanticsCase:
    """A run of the paper's doubler on 1, 2 and 3: its committed output, and the semantics that this output shows."""

    semantics: Semantics
    committed: tuple[str, ...]
    note: str


DOUBLER_INPUT = ("1", "2", "3")

CASES = (
    SemanticsCase(
        Semantics.ZERO_GUARANTEE, ("1:2", "1:2", "3:7"), "1 came out twice, 2 is lost, the answer for 3 is wrong"
    ),
    SemanticsCase(
        Semantics.CORRECT_IF_COMMITTED, ("3:6", "3:6"), "1 and 2 are lost, 3 came out twice; no answer is wrong"
    ),
    SemanticsCase(Semantics.AT_MOST_ONCE, ("1:2", "3:6"), "2 is lost; nothing came out twice"),
    SemanticsCase(Semantics.AT_LEAST_ONCE, ("1:2", "1:2", "2:4", "3:6"), "1 came out twice; nothing is lost"),
    SemanticsCase(Semantics.EFFECTIVELY_ONCE, ("1:2", "2:4", "3:6"), "every input has its output, once"),
)


def case_lines(judge: Callable[[Sequence[str], Sequence[str]], Semantics | None]) -> list[str]:
    """Return the five cases as a table. `judge` classifies a committed output, given the expected output."""
    expected = CASES[-1].committed
    rows = [("committed", "shows", "")] + [
        (" ".join(case.committed), str(judge(expected, case.committed)), case.note) for case in CASES
    ]
    return [f"inputs {' '.join(DOUBLER_INPUT)}, expected {' '.join(expected)}", ""] + [
        f"{committed:17} {shows:21} {note}".rstrip() for committed, shows, note in rows
    ]
