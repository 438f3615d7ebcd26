"""The verdict of the verifier: one of three values, with counts and the first offender of each kind.

The one rule: only what was seen to be right is *clean*. What could not be judged is *unknown*, with the reason. One
violation outweighs any number of unknowns. Pure. Made by `verify/verifier` and `verify/prefix`; used by reports for
people, tests and scripts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from procession.verify.order import Order
from procession.verify.semantics import Semantics, shown_by

KINDS = ("lost", "doubled", "disordered", "corrupt", "uncommitted", "acknowledged_lost")


class Outcome(StrEnum):
    """A verdict has three values: what we could not judge is not clean."""

    CLEAN = "clean"
    VIOLATED = "violated"
    UNKNOWN = "unknown"


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """One violation is enough; then one doubt. Of nothing at all, nothing is known."""
    found = set(outcomes)
    ranked = (Outcome.VIOLATED, Outcome.UNKNOWN, Outcome.CLEAN)
    return next((outcome for outcome in ranked if outcome in found), Outcome.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Offender:
    """The first of its kind: its number (from 0) in the output or, if it never came out, in its input."""

    where: str
    number: int
    record: str

    def __str__(self) -> str:
        return f"record {self.number} of the {self.where}: {self.record}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found. `first` holds an offender for each kind that has any; `why` says why nothing could be said."""

    outcome: Outcome
    records: int
    committed: int
    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    corrupt: int = 0
    first: dict[str, Offender] = field(default_factory=dict)
    why: str = ""
    uncommitted: int = 0
    """Visible, but not decided commit: in bytes."""
    acknowledged_lost: int = 0
    """Of the lost: those whose producer was told that they are safe."""
    order: Order = Order.TOTAL
    is_complete: bool = True
    """The run is over, so what is missing at the end is lost; otherwise it may still come."""
    is_disorder_bounded: bool = False
    """The input was too large to find the least number that is out of order: `disordered` is at most that many."""

    @property
    def is_clean(self) -> bool:
        return self.outcome is Outcome.CLEAN

    @property
    def semantics(self) -> Semantics | None:
        """What the run has shown (so far); None if nothing can be said."""
        if self.outcome is Outcome.UNKNOWN:
            return None
        return shown_by(lost=self.lost, doubled=self.doubled, corrupt=self.corrupt)

    def with_uncommitted(self, bytes_: int, first: Offender) -> Verdict:
        """The same, with visible bytes that no decision names: a violation, whatever the bytes are."""
        return replace(
            self, outcome=Outcome.VIOLATED, uncommitted=bytes_, first=self.first | {"uncommitted": first}, why=""
        )

    def sentence(self) -> str:
        at_most = "at most " if self.is_disorder_bounded and self.disordered else ""
        told = (
            f"{self.records} records: {self.lost} lost, {self.doubled} doubled, {at_most}{self.disordered} out of order"
        )
        told += f", {self.corrupt} corrupt" if self.corrupt else ""
        told += f", {self.uncommitted} bytes visible but not committed" if self.uncommitted else ""
        return told + (f", {self.acknowledged_lost} acknowledged but lost" if self.acknowledged_lost else "")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"semantics": self.semantics}
