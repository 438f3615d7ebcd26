"""Adds up the counts of many simulated runs, and determines their verdict.

Invariant: counts are only added, so the totals of several processes can be combined.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from procession.sim.world import WorldOutcome


def runs_verdict(*, has_failed: bool, is_stopped: bool, has_output: bool) -> str:
    """Return the verdict of many runs. Without output they say nothing."""
    if has_failed:
        return "violated"
    if is_stopped:
        return "stopped"
    return "clean" if has_output else "unknown"


@dataclass
class RunTotals:
    runs: int = 0
    records: int = 0
    epochs: int = 0
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    cpu_seconds: float = 0.0
    """CPU time of all processes together."""

    def add(self, outcome: WorldOutcome) -> None:
        self.runs += 1
        self.records += outcome.records
        self.epochs += outcome.epochs
        self.events += outcome.events
        self.faults.update(fault.kind for fault in outcome.injected)

    def merge(self, other: RunTotals) -> None:
        self.runs += other.runs
        self.records += other.records
        self.epochs += other.epochs
        self.events += other.events
        self.faults.update(other.faults)
        self.cpu_seconds += other.cpu_seconds

    @property
    def runs_a_second(self) -> float:
        """Runs per second of one core."""
        return self.runs / self.cpu_seconds if self.cpu_seconds else 0.0

    @property
    def sentence(self) -> str:
        faults = ", ".join(f"{count:,} {kind}" for kind, count in self.faults.most_common())
        return (
            f"{self.runs:,} runs, {self.records:,} records, {self.epochs:,} epochs, {self.events:,} events,"
            f" {self.faults.total():,} faults ({faults}): {self.runs_a_second:.0f} runs a second of one core"
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "records": self.records,
            "epochs": self.epochs,
            "events": self.events,
            "faults": dict(self.faults.most_common()),
            "cpu_s": round(self.cpu_seconds, 3),
        }
