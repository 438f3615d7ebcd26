"""Rounds with less than two-phase commit: the weaker guarantees, and idempotent sinks.

Invariant: strict rounds do not change. A sink is *eager* if it commits as soon as it votes, without waiting for the
decision; only eager sinks are treated differently. Pure. `planner/guarantee` has the policy; `commit/two_phase` is the
other strategy of `commit/coordinator`.

With at-least-once and for idempotent sinks, the commit waits for votes. A crash between a vote and `commits/N` then
repeats the epoch: it follows the first copy, or, at an idempotent sink, has the same positions. With at-most-once and
none, the commit waits for no sink, and a sink gets each epoch at most once from a driver. An epoch that was being sent
when the sink or the driver failed is not sent again. With at-most-once it is sent only after `commits/N`, so a driver
cannot repeat it after a crash.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from procession.commit.coordinator import CommitStrategy, Coordinator
from procession.commit.round_events import (
    Acknowledge,
    AcknowledgeEarly,
    Action,
    CommitFound,
    DropRuns,
    EpochReady,
    ReconnectSink,
    SendPhase2,
    SinkConnected,
    SinkLost,
    StopPipeline,
    VoteReceived,
    Warn,
    WriteRecord,
)
from procession.commit.round_record import ROUNDS_KEPT, RoundRecord
from procession.commit.round_state import RoundPhase, SinkPhase
from procession.commit.stop_reasons import fenced, lost_prepared, set_back, unsettled
from procession.commit.transaction_id import TransactionId
from procession.commit.two_phase import SETTLE_MAX, TwoPhase
from procession.planner.guarantee import Acknowledges, Emits, Policy, Shows, Waits


class OnePhase:
    """Commits at an eager sink as soon as it votes; `TwoPhase` handles the other sinks. `_due` contains the sinks that
    have not received the open epoch yet, or have not answered."""

    def __init__(self, policy: Policy, idempotent: Iterable[str] = ()) -> None:
        self._policy = policy
        self._idempotent = frozenset(idempotent)
        self._strict = TwoPhase()
        self._due: set[str] = set()
        self._is_waiting = policy.waits is Waits.VOTES

    def begin(self, core: Coordinator) -> None:
        if not self._is_waiting:
            # The runs of an epoch are dropped at its end, and no sink confirms it.
            for sink in core.sinks.values():
                sink.unconfirmed = None

    def _is_eager(self, name: str) -> bool:
        return self._policy.shows is Shows.VOTED or name in self._idempotent

    def is_due(self, core: Coordinator, name: str) -> bool:
        if not self._is_eager(name):
            return self._strict.is_due(core, name)
        if core.open is None or name not in self._due or core.sinks[name].phase is not SinkPhase.READY:
            return False
        return self._policy.emits is Emits.BEFORE_COMMIT or core.committed == core.open.ready.epoch

    # Connections of sinks

    def connected(self, core: Coordinator, event: SinkConnected) -> list[Action]:
        name, sink = event.sink, core.sinks[event.sink]
        if not self._is_eager(name):
            return self._strict.connected(core, event)
        if sink.phase is SinkPhase.SENDING:
            # A new handshake means that the previous connection has ended, even if no other event reported it.
            return [*self.lost(core, SinkLost(name)), *self.connected(core, event)]
        if event.listed:
            return self._settle(core, event)
        sink.settle_attempts = 0
        if (stop := self._adopt(core, event)) is not None:
            return [stop]
        sink.phase = SinkPhase.READY
        return [*core.confirm(sink), *core.emit(name)]

    def _settle(self, core: Coordinator, event: SinkConnected) -> list[Action]:
        """Decide the listed transactions, and begin the session again to learn where the output ends."""
        name, sink = event.sink, core.sinks[event.sink]
        sink.settle_attempts += 1
        if sink.settle_attempts > SETTLE_MAX:
            return [StopPipeline(unsettled(name, event.listed))]
        actions: list[Action] = []
        for text in event.listed:
            decision = self.decide(core, name, text)
            if isinstance(decision, StopPipeline):
                return [decision]
            # None means that this driver holds the vote, and an eager sink's commit waits only for its vote.
            actions.append(SendPhase2(name, text, decision is not False))
        return [*actions, ReconnectSink(name)]

    def decide(self, core: Coordinator, name: str, text: str) -> bool | StopPipeline | None:
        if self._is_waiting or not self._is_eager(name):
            return self._strict.decide(core, name, text)
        transaction = TransactionId.parse(text)
        if transaction is None or not core.is_ours(name, transaction):
            return False
        # A driver sends no epoch to a sink twice, so no other transaction can have the same records.
        return True if transaction.fence <= core.fence else StopPipeline(fenced(core.fence, transaction.fence))

    def _adopt(self, core: Coordinator, event: SinkConnected) -> StopPipeline | None:
        """Continue at the sink's position; an idempotent sink continues at the driver's position."""
        name, sink = event.sink, core.sinks[event.sink]
        if sink.vote is not None:
            if event.position is None or event.position >= sink.vote.end:
                return None
            if core.open is None or core.open.phase is not RoundPhase.EMITTING:
                return StopPipeline(lost_prepared(name, sink.vote))
            sink.vote = sink.txn = None
            self._due.add(name)
        if event.position is None:
            return None
        if self._is_waiting and event.position < sink.position:
            return StopPipeline(set_back(name, event.position, sink.position))
        if name not in self._idempotent:
            sink.position = event.position
        return None

    def lost(self, core: Coordinator, event: SinkLost) -> list[Action]:
        name, sink = event.sink, core.sinks[event.sink]
        if self._is_waiting or not self._is_eager(name):
            return self._strict.lost(core, event)
        was_sending, sink.phase, sink.txn = sink.phase is SinkPhase.SENDING, SinkPhase.DOWN, None
        if not was_sending or core.open is None:
            return []
        self._due.discard(name)
        epoch = core.open.ready.epoch
        warning = Warn(
            f"sink {name!r} failed while epoch {epoch} was being sent; with this guarantee, it is not sent again"
        )
        return [warning, *self._over(core)]

    # The round

    def ready(self, core: Coordinator, event: EpochReady) -> list[Action]:
        self._due = set(core.sinks)
        actions = core.emit_all()
        if self._is_waiting or core.open is None:
            return actions
        core.open.phase = RoundPhase.RECORDING
        record = core.record(event, {})  # names no transaction, because it waits for no sink
        begun = [AcknowledgeEarly(_begun(record, event))] if self._policy.acknowledges is Acknowledges.BEGUN else []
        return [*begun, *actions, WriteRecord(record)]

    def voted(self, core: Coordinator, event: VoteReceived) -> list[Action]:
        name, sink = event.sink, core.sinks[event.sink]
        if not self._is_eager(name):
            return self._strict.voted(core, event)
        if sink.txn != event.txn or sink.phase is not SinkPhase.SENDING or core.open is None:
            return []
        if self._is_waiting:
            actions = self._strict.voted(core, event)
            if not event.commit:
                return actions
            self._due.discard(name)
            sink.phase = SinkPhase.READY
            return [SendPhase2(name, event.txn, True), *actions]
        self._due.discard(name)
        sink.txn = None
        if event.commit:
            sink.position += core.open.ready.length(event)
            sink.phase = SinkPhase.READY
            return [SendPhase2(name, event.txn, True), *self._over(core)]
        sink.phase = SinkPhase.DOWN
        return [SendPhase2(name, event.txn, False), ReconnectSink(name), *self._over(core)]

    def keeps_vote(self, core: Coordinator, name: str) -> bool:
        """Whether the sink is eager: then the output of its vote is visible, and remains."""
        return self._is_eager(name)

    def commit_found(self, core: Coordinator, event: CommitFound) -> list[Action]:
        if self._is_waiting:
            return self._strict.commit_found(core, event)
        opened = core.opened(event.epoch)
        if core.committed == event.epoch:
            return []
        core.committed = event.epoch
        core.rounds[event.epoch] = core.record(opened.ready, {})
        core.rounds.pop(event.epoch - ROUNDS_KEPT, None)
        opened.phase = RoundPhase.EMITTING
        return [*core.emit_all(), *self._over(core)]

    def _over(self, core: Coordinator) -> list[Action]:
        """Finish the round if the epoch is committed and was sent to all sinks."""
        if core.open is None or self._due or core.committed < core.open.ready.epoch:
            return []
        core.open = None
        return [Acknowledge(core.rounds[core.committed]), DropRuns(core.committed)]

    def ended(self, core: Coordinator) -> None:
        self._due.clear()
        for sink in core.sinks.values():
            sink.vote = sink.txn = None


def strategy_for(policy: Policy, idempotent: Collection[str] = ()) -> CommitStrategy:
    """Return two-phase commit, unless the guarantee is weaker or a sink is idempotent."""
    return TwoPhase() if policy.is_strict and not idempotent else OnePhase(policy, idempotent)


def _begun(record: RoundRecord, ready: EpochReady) -> RoundRecord:
    """Return a record of the positions that gateways may acknowledge to producers. Their logs are kept from the epoch's
    first record on."""
    return replace(record, last=record.first, parts={}, counters={}, states={}, ends=ready.starts)
