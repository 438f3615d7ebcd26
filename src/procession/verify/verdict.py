"""The verdict of the verifier: one of three values, with counts and the first offender of each kind.

Invariant: only verified output is *clean*. Output that could not be verified is *unknown*, with the reason. A
violation takes precedence over unknown results. Pure. Created by `verify/verifier` and `verify/prefix`; used by
reports, tests and scripts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from procession.verify.order import PromisedOrder
from procession.verify.semantics import Semantics, shown_by

KINDS = ("lost", "doubled", "disordered", "corrupt", "uncommitted", "acknowledged_lost")


class Outcome(StrEnum):
    """The three values of a verdict. Output that could not be verified is not clean."""

    CLEAN = "clean"
    VIOLATED = "violated"
    UNKNOWN = "unknown"


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst outcome: violated before unknown before clean. Without outcomes it is unknown."""
    found = set(outcomes)
    ranked = (Outcome.VIOLATED, Outcome.UNKNOWN, Outcome.CLEAN)
    return next((outcome for outcome in ranked if outcome in found), Outcome.UNKNOWN)


@dataclass(frozen=True, slots=True)
class BadRecord:
    """The first record with a problem: its number (from 0) in the output, or in its input if it is lost."""

    where: str
    number: int
    record: str

    def __str__(self) -> str:
        return f"record {self.number} of the {self.where}: {self.record}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result. `first` has the first offender of each kind; `why` is the reason for an unknown outcome."""

    outcome: Outcome
    records: int
    committed: int
    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    corrupt: int = 0
    first: dict[str, BadRecord] = field(default_factory=dict)
    why: str = ""
    uncommitted: int = 0
    """Number of bytes that are visible but not decided as committed."""
    acknowledged_lost: int = 0
    """Lost records that were acknowledged to their producer."""
    order: PromisedOrder = PromisedOrder.TOTAL
    is_complete: bool = True
    """Whether the run is over, so that records missing at the end are lost."""
    is_disorder_bounded: bool = False
    """Whether `disordered` is only an upper bound, because the input was too large for the exact number."""

    @property
    def is_clean(self) -> bool:
        return self.outcome is Outcome.CLEAN

    @property
    def semantics(self) -> Semantics | None:
        """The semantics that the run shows so far; None if unknown."""
        if self.outcome is Outcome.UNKNOWN:
            return None
        return shown_by(lost=self.lost, doubled=self.doubled, corrupt=self.corrupt)

    def with_uncommitted(self, bytes_: int, first: BadRecord) -> Verdict:
        """Return a violated verdict with this number of visible bytes that have no decision."""
        return replace(
            self, outcome=Outcome.VIOLATED, uncommitted=bytes_, first=self.first | {"uncommitted": first}, why=""
        )

    def sentence(self) -> str:
        at_most = "at most " if self.is_disorder_bounded and self.disordered else ""
        sentence = (
            f"{self.records} records: {self.lost} lost, {self.doubled} doubled, {at_most}{self.disordered} out of order"
        )
        sentence += f", {self.corrupt} corrupt" if self.corrupt else ""
        sentence += f", {self.uncommitted} bytes visible but not committed" if self.uncommitted else ""
        return sentence + (f", {self.acknowledged_lost} acknowledged but lost" if self.acknowledged_lost else "")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"semantics": self.semantics}
