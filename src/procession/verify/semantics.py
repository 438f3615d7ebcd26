"""The five delivery semantics of the paper as values: what a run has shown, and what each of them allows.

The one rule: a run is classified by the strongest semantics that its output supports, from three facts only: whether
anything is lost, doubled or incorrect. Order and the time of visibility are judged separately. Pure. Takes the counts
of `verify/verifier`; used by reports, and by the test that holds a pipeline to the guarantee that it declares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from procession.planner.guarantee import Guarantee


class Semantics(StrEnum):
    """From the weakest to the strongest, but that at-most-once and at-least-once stand side by side."""

    ZERO_GUARANTEE = "zero-guarantee"
    CORRECT_IF_COMMITTED = "correct-if-committed"
    AT_MOST_ONCE = "at-most-once"
    AT_LEAST_ONCE = "at-least-once"
    EFFECTIVELY_ONCE = "effectively-once"


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a semantics lets happen to an output."""

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
    """The strongest semantics that allows what was counted."""
    strongest_first = reversed(ALLOWED.items())
    return next(
        semantics
        for semantics, allowed in strongest_first
        if (allowed.losing or not lost) and (allowed.doubling or not doubled) and (allowed.falsifying or not corrupt)
    )


def is_within(shown: Semantics, declared: Semantics) -> bool:
    """Whether a run that showed the one keeps the promise of the other."""
    one, other = ALLOWED[shown], ALLOWED[declared]
    return (
        (other.losing or not one.losing)
        and (other.doubling or not one.doubling)
        and (other.falsifying or not one.falsifying)
    )


PROMISED = {
    Guarantee.EFFECTIVELY_ONCE: Semantics.EFFECTIVELY_ONCE,
    Guarantee.AT_LEAST_ONCE: Semantics.AT_LEAST_ONCE,
    Guarantee.AT_MOST_ONCE: Semantics.AT_MOST_ONCE,
    Guarantee.NONE: Semantics.CORRECT_IF_COMMITTED,
}
"""What a run of a pipeline that declares the one must show at least."""


@dataclass(frozen=True, slots=True)
class Case:
    """A run of the paper's doubler on 1, 2 and 3: what was committed, and what that shows."""

    semantics: Semantics
    committed: tuple[str, ...]
    words: str


DOUBLER_INPUT = ("1", "2", "3")

CASES = (
    Case(Semantics.ZERO_GUARANTEE, ("1:2", "1:2", "3:7"), "1 came out twice, 2 is lost, the answer for 3 is wrong"),
    Case(Semantics.CORRECT_IF_COMMITTED, ("3:6", "3:6"), "1 and 2 are lost, 3 came out twice; no answer is wrong"),
    Case(Semantics.AT_MOST_ONCE, ("1:2", "3:6"), "2 is lost; nothing came out twice"),
    Case(Semantics.AT_LEAST_ONCE, ("1:2", "1:2", "2:4", "3:6"), "1 came out twice; nothing is lost"),
    Case(Semantics.EFFECTIVELY_ONCE, ("1:2", "2:4", "3:6"), "every input has its output, once"),
)


def case_lines(judge: Callable[[Sequence[str], Sequence[str]], Semantics | None]) -> list[str]:
    """The five cases as a table; `judge` says what an output shows, from what was expected and what was committed."""
    expected = CASES[-1].committed
    rows = [("committed", "shows", "")] + [
        (" ".join(case.committed), str(judge(expected, case.committed)), case.words) for case in CASES
    ]
    return [f"inputs {' '.join(DOUBLER_INPUT)}, expected {' '.join(expected)}", ""] + [
        f"{committed:17} {shows:21} {words}".rstrip() for committed, shows, words in rows
    ]
