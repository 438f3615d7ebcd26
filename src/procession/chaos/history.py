"""Records the history of a chaos run: injected faults, their effects and the progress, for the report.

Invariant: the history decides nothing; times are seconds since the run began. The harness writes it; the screen and
the report read it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

from procession.chaos.recovery_times import Recoveries
from procession.chaos.scenario import STANDARD, ClusterParts, ScenarioRun
from procession.verify.verdict import Outcome, Verdict

RECENT_MAX = 12
UNJUDGED = "unknown"
"""The kind of failures that only prevented the verification and show nothing about the pipeline."""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    at_s: float
    scenario: str
    on: str
    what: str


@dataclass(slots=True)
class ScenarioSpan:
    """A scenario from its first record to its drain."""

    scenario: str
    start_s: float
    end_s: float | None = None
    records: int = 0


@dataclass(frozen=True, slots=True)
class RunFailure:
    """The reason why a run is not clean: a violation, a stall or an unexplained death; or, with kind `UNJUDGED`, why
    it is unknown. `log_tails` has the last log lines of all parts."""

    kind: str
    sentence: str
    scenario: str
    log_tails: str = ""

    def __str__(self) -> str:
        return f"{self.kind}{f' in {self.scenario}' if self.scenario else ''}: {self.sentence}"


@dataclass
class History:
    """One run of the harness."""

    seed: int
    cluster: ClusterParts = STANDARD
    recoveries: Recoveries = field(default_factory=Recoveries)
    runs: list[ScenarioRun] = field(default_factory=list)
    events: list[HistoryEvent] = field(default_factory=list)
    spans: list[ScenarioSpan] = field(default_factory=list)
    samples: list[tuple[float, int]] = field(default_factory=list)
    """Committed records over time."""
    absences: list[tuple[str, float, float]] = field(default_factory=list)
    """Part, start, end of each outage."""
    failures: list[RunFailure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    committed: int = 0
    decided: int = 0
    """Number of visible transactions that were found in a round record, at the sink with the fewest."""
    acknowledged: int = 0
    """Number of streams whose producer has logged acknowledgements; faulty producers do not."""
    epochs: int = 0
    pauses: int = 0
    losses: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Number of machines that were lost with their disks, by part."""
    faults_put: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seconds: float = 0.0
    was_stopped: bool = False

    @property
    def outcome(self) -> Outcome:
        """Return the outcome, which is clean only if the final comparison is clean and nothing failed before."""
        found = [verdict.outcome for verdict in self.verdicts.values()]
        if self.has_failed or Outcome.VIOLATED in found:
            return Outcome.VIOLATED
        if self.failures or self.was_stopped or not found or Outcome.UNKNOWN in found:
            return Outcome.UNKNOWN
        return Outcome.CLEAN

    @property
    def has_failed(self) -> bool:
        """Whether anything failed before the final comparison."""
        return any(failure.kind != UNJUDGED for failure in self.failures)

    @property
    def scenario(self) -> str:
        """The current scenario."""
        return self.spans[-1].scenario if self.spans else ""

    def event(self, now_s: float, on: str, what: str) -> None:
        self.events.append(HistoryEvent(round(now_s, 3), self.scenario, on, what))

    @property
    def recent(self) -> list[HistoryEvent]:
        return self.events[-RECENT_MAX:]

    @property
    def was_compared(self) -> bool:
        """Whether all inputs were compared with all outputs. If not, counts are None, not 0."""
        return bool(self.verdicts) and all(verdict.outcome is not Outcome.UNKNOWN for verdict in self.verdicts.values())

    def counts(self) -> dict[str, int | None]:
        """Return the highest count of any sink, per kind; None if they were not compared."""
        names = ("lost", "doubled", "disordered", "corrupt", "acknowledged_lost")
        if not self.was_compared:
            return dict.fromkeys(names)
        return {name: max(getattr(verdict, name) for verdict in self.verdicts.values()) for name in names}

    def figures(self) -> dict[str, Any]:
        hours = self.seconds / 3600
        return {
            "outcome": self.outcome,
            "cluster": self.cluster.name,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "scenarios": len({span.scenario for span in self.spans if span.end_s is not None}),
            "runs": len(self.runs),
            "events": self.recoveries.events,
            "events_per_hour": round(self.recoveries.events / hours) if hours else 0,
            "pauses": self.pauses,
            "machines_lost": sum(self.losses.values()),
            "lost_by_part": dict(self.losses),
            "other_faults": dict(self.faults_put),
            "records": self.committed,
            "decided_transactions": self.decided,
            "acknowledged_streams": self.acknowledged,
            "epochs": self.epochs,
            **self.counts(),
            "recoveries": self.recoveries.figures(),
            "failures": [asdict(failure) for failure in self.failures],
            "notes": self.notes,
        }

    def _mix(self) -> str:
        """Describe which faults were injected, and how many."""
        figures = self.figures()
        kills = [f"{kind} {counts['kills']}" for kind, counts in figures["recoveries"].items()]
        faults = sum(self.faults_put.values())
        return (
            f"{figures['events_per_hour']:,} kill-and-restart events an hour ({', '.join(kills) or 'none'}),"
            f" {self.pauses} pauses and {faults} other faults, in {figures['scenarios']} scenarios and"
            f" {self.epochs:,} epochs"
        )

    def _counted(self) -> str:
        counts = self.counts()
        if not self.was_compared:
            return "not compared to the end"
        sentence = f"{counts['lost']:,} lost, {counts['doubled']:,} doubled, {counts['disordered']:,} out of order"
        sentence += f", {counts['corrupt']:,} corrupt" if counts["corrupt"] else ""
        return sentence + (
            f", {counts['acknowledged_lost']:,} acknowledged but lost" if counts["acknowledged_lost"] else ""
        )

    def sentence(self) -> str:
        """Return the verdict as a sentence."""
        summary = f"{self.recoveries.events:,} crashes, {self.committed:,} records: {self._counted()}"
        lines = [f"{summary}; {self.outcome} (seed {self.seed}, {self.seconds:,.0f} s)", f"  {self._mix()}"]
        if self.losses:
            lost = ", ".join(f"{part} {count}" for part, count in sorted(self.losses.items()))
            lines.append(f"  {sum(self.losses.values()):,} machines lost with their disks ({lost})")
        for kind, result in self.recoveries.figures().items():
            times = f", p50 {result['p50_s']:.1f} s, p99 {result['p99_s']:.1f} s" if result["timed"] else ""
            lines.append(f"  {kind}: {result['kills']} killed, {result['recovered']} back at work{times}")
        if self.was_stopped:
            lines.append("  the run was stopped: the last records were not compared")
        lines += [f"  {failure}" for failure in self.failures]
        lines += [f"  unknown at {name}: {result.why}" for name, result in self.verdicts.items() if result.why]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])
