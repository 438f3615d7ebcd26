"""The coordinator: one two-phase commit for each epoch. Pure: events in, actions out.

The one rule: the decision is never made here, it is looked up. A round is *in doubt* from its record until `commits/N`
is found or the query has ended; in between, nothing is committed or aborted at a sink. Before it `storage/run_store`
(an epoch is ready) and the sinks' votes; after it Spark's commit log, and the gateway, which acknowledges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from procession.commit.round_events import (
    Acknowledge,
    Action,
    CommitFound,
    DropRuns,
    Emit,
    EpochReady,
    Event,
    FinishEpoch,
    Phase2,
    Phase2Confirmed,
    QueryEnded,
    Reconnect,
    RecordWritten,
    Reserve,
    SinkConnected,
    SinkLost,
    Stop,
    VoteReceived,
    Warn,
    WriteRecord,
)
from procession.commit.round_record import ROUNDS_KEPT, Part, Round
from procession.commit.stop_reasons import (
    another_output,
    fenced,
    lost_prepared,
    record_gone,
    refused,
    set_back,
    taken_out,
    unsettled,
)
from procession.commit.transaction_id import Transaction
from procession.errors import LocalProtocolError, StorageError
from procession.planner.guarantee import POLICIES, Guarantee, Policy

REFUSALS_MAX = 8
"""Number of abort votes or missed votes on one epoch that stops the pipeline."""

ATTEMPTS_RESERVED = 100
"""Attempt numbers reserved at a time: one sync per this many epochs."""

ABORT_DELAY_MAX_S = 5.0
"""Maximum wait before an epoch is sent again to a sink that voted abort."""

SETTLE_MAX = 8
"""How often a sink may list a transaction again that it was told to abort."""

STORY_MAX = 64


class Standing(Enum):
    """The state of a sink in a round."""

    DOWN = "down"
    READY = "ready"
    SENDING = "sending"
    VOTED = "voted"


class Phase(Enum):
    """The phases of an open round."""

    EMITTING = "emitting"
    RECORDING = "recording"
    IN_DOUBT = "in doubt"


@dataclass
class Sink:
    """What the coordinator knows of a sink: its decided position, its vote, and what it has yet to confirm."""

    position: int
    standing: Standing = Standing.DOWN
    txn: str | None = None
    vote: Part | None = None
    unconfirmed: Part | None = None
    settlings: int = 0
    attempt: int = 0
    """Number of the last attempt. Each sink has its own counter, so that it sees every number."""


@dataclass
class OpenRound:
    ready: EpochReady
    phase: Phase = Phase.EMITTING
    refusals: int = 0


class Coordinator:
    """`handle(event)` is the only door. `rounds`, `committed` and `reserved` (the last number of an attempt that may
    have been used) are what the checkpoint held at the start."""

    def __init__(
        self,
        *,
        pipeline: str,
        checkpoint: str,
        fence: int,
        fingerprint: str,
        sinks: Iterable[str],
        rounds: Mapping[int, Round],
        committed: int,
        policy: Policy = POLICIES[Guarantee.EFFECTIVELY_ONCE],
        idempotent: Iterable[str] = (),
        reserved: int = 0,
        refusals_max: int = REFUSALS_MAX,
    ) -> None:
        self.policy = policy
        self.idempotent = frozenset(idempotent)
        self.pipeline = pipeline
        self.checkpoint = checkpoint
        self.fence = fence
        self.fingerprint = fingerprint
        self.committed = committed
        self.rounds = {epoch: record for epoch, record in rounds.items() if epoch <= committed}
        self.open: OpenRound | None = None
        self._reserved = reserved
        self._refusals_max = refusals_max
        self._told: deque[tuple[str, Event | Action]] = deque(maxlen=STORY_MAX)
        last = self.rounds.get(committed)
        if committed >= 0 and last is None:
            raise StorageError(
                f"the checkpoint has epoch {committed} committed, but no round record of it",
                next_step="restore the checkpoint directory from a copy",
            )
        self.sinks = {name: _recovered(name, last, reserved) for name in sinks}
        for name in last.parts if last is not None else ():
            if name not in self.sinks:
                raise taken_out(name)

    def handle(self, event: Event) -> list[Action]:
        """The actions that follow from an event."""
        self._told.append(("<", event))
        actions = self._handle(event)
        for action in actions:
            self._told.append((">", action))
        return actions

    @property
    def story(self) -> list[str]:
        """The last events and actions as text, formatted only when it is asked for."""
        return [f"{gutter} {what}" for gutter, what in self._told]

    def _handle(self, event: Event) -> list[Action]:
        match event:
            case SinkConnected():
                return self._connected(event)
            case SinkLost():
                return self._lost(event)
            case EpochReady():
                return self._ready(event)
            case VoteReceived():
                return self._voted(event)
            case RecordWritten():
                return self._recorded(event)
            case CommitFound():
                return self._found(event)
            case QueryEnded():
                return self._ended()
            case Phase2Confirmed(name, txn):
                sink = self.sinks[name]
                return self._confirm(sink) if sink.unconfirmed is not None and sink.unconfirmed.txn == txn else []

    # Sinks come and go

    def _connected(self, event: SinkConnected) -> list[Action]:
        name, sink = event.sink, self.sinks[event.sink]
        commits: list[Action] = []
        aborts: list[Action] = []
        is_held = False
        for text in event.listed:
            decision = self._decide(name, text)
            if isinstance(decision, Stop):
                return [decision]
            is_held = is_held or decision is None
            if decision is not None:
                (commits if decision else aborts).append(Phase2(name, text, decision))
        if (stop := self._missing(event, bool(commits), is_held)) is not None:
            return [stop]
        confirmed = self._confirm(sink) if not commits else []
        if aborts:
            # The sink drops what was aborted when it is greeted again; only a clean list is gone on from.
            sink.settlings += 1
            if sink.settlings > SETTLE_MAX:
                return [Stop(unsettled(name, event.listed))]
            foreign = [
                Warn(f"sink {name!r} held transaction {text!r}, which this checkpoint did not make; it is aborted")
                for text in event.listed
                if not self._is_ours(name, Transaction.parse(text))
            ]
            return [*foreign, *confirmed, *commits, *aborts, Reconnect(name)]
        sink.settlings = 0
        sink.standing = Standing.VOTED if is_held else Standing.READY
        return [*confirmed, *commits, *self._emit(name)]

    def _decide(self, name: str, text: str) -> bool | Stop | None:
        """Commit, abort, or neither yet (None: it belongs to the open round)."""
        transaction = Transaction.parse(text)
        if transaction is None or not self._is_ours(name, transaction):
            return False
        if transaction.fence > self.fence:
            return Stop(fenced(self.fence, transaction.fence))
        if transaction.epoch <= self.committed:
            record = self.rounds.get(transaction.epoch)
            if record is None:
                return Stop(record_gone(name, text))
            part = record.parts.get(name)
            return part is not None and part.txn == text
        vote = self.sinks[name].vote
        return None if vote is not None and vote.txn == text else False

    def _is_ours(self, name: str, transaction: Transaction | None) -> bool:
        # Compared as whole names: where the sink's name begins cannot be told if "-w-" is a part of it.
        return transaction is not None and str(transaction) == str(
            replace(transaction, checkpoint=self.checkpoint, pipeline=self.pipeline, sink=name)
        )

    def _missing(self, event: SinkConnected, is_committing: bool, is_held: bool) -> Stop | None:
        """Stops the pipeline if a sink has less than it had promised, or more than it was sent."""
        sink = self.sinks[event.sink]
        if sink.vote is not None and not is_held:
            if self.open is None or self.open.phase is not Phase.EMITTING:
                return Stop(lost_prepared(event.sink, sink.vote))
            sink.vote = sink.txn = None
        if event.position is None:
            return None
        expected = sink.unconfirmed.start if is_committing and sink.unconfirmed is not None else sink.position
        if event.position < expected:
            return Stop(set_back(event.sink, event.position, expected))
        if event.position > expected:
            return Stop(another_output(event.sink, event.position, expected))
        return None

    def _lost(self, event: SinkLost) -> list[Action]:
        sink = self.sinks[event.sink]
        sink.standing = Standing.DOWN
        if sink.vote is None:
            sink.txn = None
        if event.hung and self.open is not None:
            return self._refused(event.sink, "did not vote in time")
        return []

    def _refused(self, name: str, why: str) -> list[Action]:
        assert self.open is not None
        self.open.refusals += 1
        if self.open.refusals < self._refusals_max:
            return []
        return [Stop(refused(name, why, self.open.ready.epoch, self.open.refusals))]

    # The round

    def _ready(self, event: EpochReady) -> list[Action]:
        if self.open is not None or event.epoch != self.committed + 1:
            return [
                Stop(
                    LocalProtocolError(
                        f"epoch {event.epoch} came when {self.committed} was the last committed", story=self.story
                    )
                )
            ]
        self.open = OpenRound(event)
        return [action for name in self.sinks for action in self._emit(name)]

    def _emit(self, name: str) -> list[Action]:
        sink = self.sinks[name]
        if self.open is None or not self._is_due(name):
            return []
        ready = self.open.ready
        sink.attempt += 1
        reserve: list[Action] = []
        if sink.attempt > self._reserved:
            self._reserved += ATTEMPTS_RESERVED
            reserve = [Reserve(self._reserved)]
        sink.txn = str(Transaction(ready.epoch, self.fence, sink.attempt, self.checkpoint, self.pipeline, name))
        sink.standing = Standing.SENDING
        return [*reserve, Emit(name, sink.txn, ready.epoch, sink.position, sink.position + ready.lengths[name])]

    def _is_due(self, name: str) -> bool:
        is_emitting = self.open is not None and self.open.phase is Phase.EMITTING
        return is_emitting and self.sinks[name].standing is Standing.READY

    def _voted(self, event: VoteReceived) -> list[Action]:
        sink = self.sinks[event.sink]
        if self.open is None or sink.txn != event.txn or sink.standing is not Standing.SENDING:
            return []
        # A vote on this epoch says that phase 2 of the one before has arrived.
        actions = self._confirm(sink)
        sink.standing = Standing.VOTED
        if not event.commit:
            return [
                *actions,
                *self._abort_all(delay_s=min(ABORT_DELAY_MAX_S, 0.05 * 2 ** min(self.open.refusals, 16))),
                *self._refused(event.sink, "voted abort"),
            ]
        ready = self.open.ready
        sink.vote = Part(event.txn, sink.position, sink.position + ready.lengths[event.sink])
        parts = {name: other.vote for name, other in self.sinks.items() if other.vote is not None}
        if len(parts) < len(self.sinks):
            return actions
        self.open.phase = Phase.RECORDING
        return [*actions, WriteRecord(self._record(ready, parts))]

    def _record(self, ready: EpochReady, parts: Mapping[str, Part]) -> Round:
        return Round(
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
        )

    def _abort_all(self, delay_s: float = 0.0) -> list[Action]:
        """Aborts this attempt at all sinks. A sink discards unprepared output when its session begins again."""
        actions: list[Action] = []
        for name, sink in self.sinks.items():
            if sink.standing is Standing.VOTED and sink.txn is not None:
                actions.append(Phase2(name, sink.txn, False))
            if sink.standing in (Standing.VOTED, Standing.SENDING):
                actions.append(Reconnect(name, delay_s))
                sink.standing = Standing.DOWN
            sink.vote = sink.txn = None
        return actions

    def _recorded(self, event: RecordWritten) -> list[Action]:
        opened = self._opened(event.epoch)
        opened.phase = Phase.IN_DOUBT
        return [FinishEpoch(event.epoch)]

    def _found(self, event: CommitFound) -> list[Action]:
        opened = self._opened(event.epoch)
        parts = {name: sink.vote for name, sink in self.sinks.items() if sink.vote is not None}
        assert opened.phase is Phase.IN_DOUBT
        record = self._record(opened.ready, parts)
        self.rounds[event.epoch] = record
        self.rounds.pop(event.epoch - ROUNDS_KEPT, None)
        self.committed = event.epoch
        self.open = None
        actions: list[Action] = []
        for name, sink in self.sinks.items():
            part = parts[name]
            sink.position, sink.unconfirmed, sink.vote, sink.txn = part.end, part, None, None
            if sink.standing is Standing.VOTED:
                actions.append(Phase2(name, part.txn, True))
                sink.standing = Standing.READY
        return [*actions, Acknowledge(record)]

    def _opened(self, epoch: int) -> OpenRound:
        assert self.open is not None
        assert self.open.ready.epoch == epoch
        return self.open

    def _ended(self) -> list[Action]:
        actions = self._abort_all()
        self.open = None
        return actions

    def _confirm(self, sink: Sink) -> list[Action]:
        if sink.unconfirmed is None:
            return []
        sink.unconfirmed = None
        others = [other for other in self.sinks.values() if other.unconfirmed is not None]
        return [] if others else [DropRuns(self.committed)]


def _recovered(name: str, last: Round | None, reserved: int) -> Sink:
    part = last.parts.get(name) if last is not None else None
    if part is None:
        return Sink(position=0, attempt=reserved)  # nothing was ever committed to it
    return Sink(position=part.end, unconfirmed=part, attempt=reserved)
