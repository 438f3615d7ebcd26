"""The coordinator: one two-phase commit for each epoch. Pure: events in, actions out.

Invariant: the coordinator does not make the decision, but looks it up. A round is *in doubt* from its record until
`commits/N` is found or the query has ended. Meanwhile, no transaction is committed or aborted at a sink. Input: the
runs of an epoch (`storage/run_store`), the sinks' votes and Spark's commit log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from procession.commit.round_events import (
    Action,
    CommitFound,
    DropRuns,
    EmitEpoch,
    EpochReady,
    Event,
    FinishEpoch,
    Phase2Confirmed,
    QueryEnded,
    ReconnectSink,
    RecordWritten,
    ReserveAttempts,
    SendPhase2,
    SinkConnected,
    SinkLost,
    StopPipeline,
    VoteReceived,
)
from procession.commit.round_record import RoundRecord, SinkShare, last_round
from procession.commit.round_state import OpenRound, RoundPhase, SinkPhase, SinkStatus
from procession.commit.stop_reasons import (
    refused,
    taken_out,
)
from procession.commit.transaction_id import TransactionId
from procession.commit.two_phase import TwoPhase
from procession.errors import LocalProtocolError
from procession.planner.guarantee import POLICIES, Guarantee, Policy

REFUSALS_MAX = 8
"""Number of abort votes or missed votes on one epoch after which the pipeline stops."""

ATTEMPTS_RESERVED = 100
"""Number of attempt numbers that are reserved at a time, which costs one sync."""

RECENT_EVENTS_MAX = 64


class CommitStrategy(Protocol):
    """The decisions that differ between guarantees: when an epoch is sent to a sink, when the sink commits, and how a
    listed transaction is decided. `TwoPhase` is strict; `OnePhase` is for weaker guarantees and idempotent sinks."""

    def begin(self, core: Coordinator) -> None:
        """Prepare the state of a new coordinator."""

    def connected(self, core: Coordinator, event: SinkConnected) -> list[Action]: ...

    def lost(self, core: Coordinator, event: SinkLost) -> list[Action]: ...

    def ready(self, core: Coordinator, event: EpochReady) -> list[Action]:
        """Handle the opening of an epoch's round."""

    def is_due(self, core: Coordinator, name: str) -> bool:
        """Whether the open epoch should be sent to this sink now."""

    def voted(self, core: Coordinator, event: VoteReceived) -> list[Action]: ...

    def keeps_vote(self, core: Coordinator, name: str) -> bool:
        """Whether a sink's vote remains after the abort of an attempt."""

    def commit_found(self, core: Coordinator, event: CommitFound) -> list[Action]: ...

    def ended(self, core: Coordinator) -> None:
        """Handle the end of the query. No round is open."""


class Coordinator:
    """Decides a round from its events. `handle` is the only entry point. `rounds`, `committed` and `reserved` (the last
    attempt number that may have been used) are the state of the checkpoint at the start."""

    def __init__(
        self,
        *,
        pipeline: str,
        checkpoint: str,
        fence: int,
        fingerprint: str,
        sinks: Iterable[str],
        rounds: Mapping[int, RoundRecord],
        committed: int,
        policy: Policy = POLICIES[Guarantee.EFFECTIVELY_ONCE],
        reserved: int = 0,
        refusals_max: int = REFUSALS_MAX,
        strategy: CommitStrategy | None = None,
    ) -> None:
        """`strategy` makes the decisions that depend on the guarantee. None: two-phase commit."""
        self._strategy = strategy if strategy is not None else TwoPhase()
        self.policy = policy
        self.pipeline = pipeline
        self.checkpoint = checkpoint
        self.fence = fence
        self.fingerprint = fingerprint
        self.committed = committed
        self.rounds = {epoch: record for epoch, record in rounds.items() if epoch <= committed}
        self.open: OpenRound | None = None
        self._reserved = reserved
        self._refusals_max = refusals_max
        self._recent: deque[tuple[str, Event | Action]] = deque(maxlen=RECENT_EVENTS_MAX)
        last = last_round(self.rounds, committed)
        self.sinks = {name: _recovered(name, last, reserved) for name in sinks}
        self._names = list(self.sinks)
        self._without_vote = 0
        self._without_confirmation = 0
        """Index in `_names` of the first sink that may lack a confirmation; the attribute above is the same for votes.
        Both advance, so a round visits each sink only a few times, for any number of sinks."""
        for name in last.parts if last is not None else ():
            if name not in self.sinks:
                raise taken_out(name)
        self._strategy.begin(self)

    def handle(self, event: Event) -> list[Action]:
        """Handle an event. Returns the actions that follow."""
        self._recent.append(("<", event))
        actions = self._handle(event)
        for action in actions:
            self._recent.append((">", action))
        return actions

    @property
    def recent_events(self) -> list[str]:
        """The last events and actions as text, formatted only on request."""
        return [f"{gutter} {what}" for gutter, what in self._recent]

    def _handle(self, event: Event) -> list[Action]:
        match event:
            case SinkConnected():
                return self._strategy.connected(self, event)
            case SinkLost():
                return self._strategy.lost(self, event)
            case EpochReady():
                return self._ready(event)
            case VoteReceived():
                return self._strategy.voted(self, event)
            case RecordWritten():
                return self._recorded(event)
            case CommitFound():
                return self._strategy.commit_found(self, event)
            case QueryEnded():
                return self._ended()
            case Phase2Confirmed(name, txn):
                sink = self.sinks[name]
                return self.confirm(sink) if sink.unconfirmed is not None and sink.unconfirmed.txn == txn else []

    # Connections of sinks

    def is_ours(self, name: str, transaction: TransactionId | None) -> bool:
        # Compares whole names: if "-w-" is part of the sink's name, the start of that name is ambiguous.
        return transaction is not None and str(transaction) == str(
            replace(transaction, checkpoint=self.checkpoint, pipeline=self.pipeline, sink=name)
        )

    def refused(self, name: str, why: str) -> list[Action]:
        assert self.open is not None
        self.open.refusals += 1
        if self.open.refusals < self._refusals_max:
            return []
        return [StopPipeline(refused(name, why, self.open.ready.epoch, self.open.refusals))]

    def have_all_voted(self) -> bool:
        """Whether every sink has voted on the open epoch."""
        for _ in self._names:
            if self.sinks[self._names[self._without_vote]].vote is None:
                return False
            self._without_vote = (self._without_vote + 1) % len(self._names)
        return True

    # The round

    def _ready(self, event: EpochReady) -> list[Action]:
        if self.open is not None or event.epoch != self.committed + 1:
            return [
                StopPipeline(
                    LocalProtocolError(
                        f"received epoch {event.epoch} although {self.committed} is the last committed",
                        recent_events=self.recent_events,
                    )
                )
            ]
        self.open = OpenRound(event)
        return self._strategy.ready(self, event)

    def emit_all(self) -> list[Action]:
        return [action for name in self.sinks for action in self.emit(name)]

    def emit(self, name: str) -> list[Action]:
        sink = self.sinks[name]
        if self.open is None or not self._strategy.is_due(self, name):
            return []
        ready = self.open.ready
        sink.attempt += 1
        reserve: list[Action] = []
        if sink.attempt > self._reserved:
            self._reserved += ATTEMPTS_RESERVED
            reserve = [ReserveAttempts(self._reserved)]
        sink.txn = str(TransactionId(ready.epoch, self.fence, sink.attempt, self.checkpoint, self.pipeline, name))
        sink.phase = SinkPhase.SENDING
        return [*reserve, EmitEpoch(name, sink.txn, ready.epoch, sink.position, ready.end(name, sink.position))]

    def record(self, ready: EpochReady, parts: Mapping[str, SinkShare]) -> RoundRecord:
        return RoundRecord(
            epoch=ready.epoch,
            fence=self.fence,
            fingerprint=self.fingerprint,
            first=ready.first,
            last=ready.last,
            parts=dict(parts),
            positions=ready.positions,
            counters=ready.counters,
            states=ready.states,
            ends=ready.ends,
            sides=ready.sides,
            acknowledged=ready.acknowledged,
        )

    def abort_all(self, delay_s: float = 0.0) -> list[Action]:
        """Abort this attempt at all sinks. A sink discards unprepared output when its session begins again."""
        actions: list[Action] = []
        for name, sink in self.sinks.items():
            if sink.phase is SinkPhase.VOTED and sink.txn is not None:
                actions.append(SendPhase2(name, sink.txn, False))
            if sink.phase in (SinkPhase.VOTED, SinkPhase.SENDING):
                actions.append(ReconnectSink(name, delay_s))
                sink.phase = SinkPhase.DOWN
            sink.vote = sink.vote if self._strategy.keeps_vote(self, name) else None
            sink.txn = None
        return actions

    def _recorded(self, event: RecordWritten) -> list[Action]:
        opened = self.opened(event.epoch)
        opened.phase = RoundPhase.IN_DOUBT
        return [FinishEpoch(event.epoch)]

    def opened(self, epoch: int) -> OpenRound:
        assert self.open is not None
        assert self.open.ready.epoch == epoch
        return self.open

    def _ended(self) -> list[Action]:
        actions = self.abort_all()
        self.open = None
        self._strategy.ended(self)
        return actions

    def confirm(self, sink: SinkStatus) -> list[Action]:
        if sink.unconfirmed is None:
            return []
        sink.unconfirmed = None
        for _ in self._names:
            if self.sinks[self._names[self._without_confirmation]].unconfirmed is not None:
                return []
            self._without_confirmation = (self._without_confirmation + 1) % len(self._names)
        return [DropRuns(self.committed)]


def _recovered(name: str, last: RoundRecord | None, reserved: int) -> SinkStatus:
    part = last.parts.get(name) if last is not None else None
    if part is None:
        return SinkStatus(position=0, attempt=reserved)  # no transaction was ever committed to it
    return SinkStatus(position=part.end, unconfirmed=part, attempt=reserved)
