"""Measures how long each phase of an epoch takes, and what the open epoch waits for. Used only for reports, not for
decisions.

Invariant: this module only observes the coordinator's events and actions. It keeps only the open epoch and the last
committed one, so its memory does not grow. `driver/epoch_log` writes the phases of committed epochs to the history,
`driver/driver_reports` what the open epoch waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from procession.commit.checkpoint import Checkpoint
from procession.commit.coordinator import Coordinator
from procession.commit.one_phase import strategy_for
from procession.commit.recovery import RecoveredRounds
from procession.commit.round_events import (
    Action,
    CommitFound,
    DropRuns,
    EmitEpoch,
    EpochReady,
    Event,
    Phase2Confirmed,
    RecordWritten,
    SendPhase2,
    SinkConnected,
    SinkLost,
    VoteReceived,
    WriteRecord,
)
from procession.planner.graph import Graph

RAN, PHASE1, RECORD, DECISION, COMMITTED = "run", "phase 1", "record", "decision", "committed"


@dataclass
class EpochTimes:
    """The duration of each phase of one epoch, in seconds; None if the phase has not ended, or was not observed."""

    epoch: int
    phase: str = RAN
    since: float = 0.0
    """When the current phase began."""
    wait_s: float | None = None
    """From the decision on the previous epoch to `offsets/N`: waiting for records, and asking the gateways."""
    run_s: float | None = None
    """From `offsets/N` until all runs are written: Spark's scheduling and the tasks."""
    phase1_s: dict[str, float] = field(default_factory=dict)
    """From sending a sink its output to its vote, by sink, in the last attempt."""
    record_s: float | None = None
    """From the last vote until the round record is on disk."""
    decision_s: float | None = None
    """From the round record until `commits/N` is on disk."""
    phase2_s: dict[str, float] = field(default_factory=dict)
    """From the decision to the sink's confirmation, by sink. A sink that does not reply confirms with its next vote."""
    attempts: dict[str, int] = field(default_factory=dict)
    aborts: int = 0
    """Transactions of the epoch that were aborted."""

    def as_json(self) -> dict[str, Any]:
        return {
            "wait_s": _rounded(self.wait_s),
            "run_s": _rounded(self.run_s),
            "phase1_s": {sink: _rounded(seconds) for sink, seconds in self.phase1_s.items()},
            "record_s": _rounded(self.record_s),
            "decision_s": _rounded(self.decision_s),
        }


@dataclass
class SinkReport:
    """The state of a sink's connection since the driver started."""

    is_connected: bool = False
    connects: int = 0
    transaction: str | None = None
    """The transaction that was sent last."""
    sent_at: float = 0.0
    decided_at: float | None = None
    """When the decision that the sink has not confirmed was sent."""
    voted: bool = False
    aborted: int = 0
    """Transactions that were aborted since the driver started."""


class RoundTimes:
    """Observes the rounds of one driver. `now` is a monotonic clock; `wall` is the time of day, as in files."""

    def __init__(self, now: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._now = now
        self._wall = wall
        self.open: EpochTimes | None = None
        self.last: EpochTimes | None = None
        self.sinks: dict[str, SinkReport] = {}
        self._decided_wall: float | None = None

    def recording(
        self, checkpoint: Checkpoint, on_epoch: Callable[[int, list[Any]], None]
    ) -> Callable[[int, list[Any]], None]:
        """Return a function that first records when the epoch was offered, then calls `on_epoch`. It is called when
        the epoch's tasks are done."""

        def record(epoch: int, manifests: list[Any]) -> None:
            offsets = checkpoint.log.directory / "offsets" / str(epoch)
            self.tasks_done(epoch, offsets.stat().st_mtime if offsets.exists() else None)
            on_epoch(epoch, manifests)

        return record

    def tasks_done(self, epoch: int, offered_at: float | None) -> None:
        """Record that the tasks of an epoch are done. `offered_at` is the time of day of `offsets/N`."""
        found = EpochTimes(epoch, since=self._now())
        if offered_at is not None:
            found.run_s = max(0.0, self._wall() - offered_at)
            if self._decided_wall is not None:
                found.wait_s = max(0.0, offered_at - self._decided_wall)
        self.open = found

    def observe(self, step: Event | Action) -> None:
        now, epoch = self._now(), self.open
        match step:
            case SinkConnected(sink):
                report = self._sink(sink)
                report.is_connected, report.connects = True, report.connects + 1
            case SinkLost(sink):
                self._sink(sink).is_connected = False
            case EpochReady(number):
                if epoch is None or epoch.epoch != number:
                    self.open = epoch = EpochTimes(number)
                epoch.phase, epoch.since = PHASE1, now
            case EmitEpoch(sink, txn):
                report = self._sink(sink)
                report.transaction, report.sent_at, report.voted = txn, now, False
                if epoch is not None:
                    epoch.attempts[sink] = epoch.attempts.get(sink, 0) + 1
            case VoteReceived(sink, txn):
                self._confirmed(sink, now)
                report = self._sink(sink)
                if epoch is not None and report.transaction == txn:
                    report.voted = True
                    epoch.phase1_s[sink] = now - report.sent_at
            case SendPhase2(sink, _, commit):
                self._decided(sink, commit, now)
            case WriteRecord() if epoch is not None:
                epoch.phase, epoch.since = RECORD, now
            case RecordWritten() if epoch is not None:
                epoch.record_s = now - epoch.since
                epoch.phase, epoch.since = DECISION, now
            case CommitFound() if epoch is not None:
                epoch.decision_s = now - epoch.since
                epoch.phase, epoch.since = COMMITTED, now
                self.last, self.open, self._decided_wall = epoch, None, self._wall()
            case Phase2Confirmed(sink):
                self._confirmed(sink, now)
            case DropRuns():
                for sink in self.sinks:
                    self._confirmed(sink, now)

    def _decided(self, sink: str, commit: bool, now: float) -> None:
        report = self._sink(sink)
        if commit:
            report.decided_at = now
            return
        report.aborted += 1
        if self.open is not None:
            self.open.aborts += 1

    def _confirmed(self, sink: str, now: float) -> None:
        report = self._sink(sink)
        if report.decided_at is not None and self.last is not None:
            self.last.phase2_s[sink] = now - report.decided_at
        report.decided_at = None

    def _sink(self, name: str) -> SinkReport:
        return self.sinks.setdefault(name, SinkReport())

    def waits_for(self) -> dict[str, Any] | None:
        """Return what the open round waits for. None while no round is open."""
        epoch = self.open
        if epoch is None:
            return None
        waiting = [name for name, sink in list(self.sinks.items()) if not sink.voted] if epoch.phase == PHASE1 else []
        return {
            "epoch": epoch.epoch,
            "phase": epoch.phase,
            "seconds": round(self._now() - epoch.since, 3),
            "sinks": waiting,
            "attempts": max(epoch.attempts.values(), default=0),
        }


class TimedCoordinator(Coordinator):
    """A coordinator that reports its events and actions to `times`."""

    def __init__(self, times: RoundTimes, **fields: Any) -> None:
        super().__init__(**fields)
        self._times = times

    def handle(self, event: Event) -> list[Action]:
        self._times.observe(event)
        actions = super().handle(event)
        for action in actions:
            self._times.observe(action)
        return actions


def coordinator_of(
    graph: Graph, checkpoint: Checkpoint, recovered: RecoveredRounds, refusals_max: int, times: RoundTimes
) -> TimedCoordinator:
    """Return the coordinator of a driver, from the checkpoint's content at the start."""
    idempotent = [participant.name for participant in graph.participants if participant.sink.is_idempotent]
    return TimedCoordinator(
        times,
        policy=graph.policy,
        strategy=strategy_for(graph.policy, idempotent),
        pipeline=graph.name,
        checkpoint=checkpoint.id,
        fence=checkpoint.fence,
        fingerprint=graph.fingerprint(),
        sinks=[connection.name for connection in graph.participants],
        rounds=recovered.rounds,
        committed=recovered.committed,
        reserved=recovered.reserved,
        refusals_max=refusals_max,
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
