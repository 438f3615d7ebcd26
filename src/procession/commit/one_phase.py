"""Rounds with less than two-phase commit: the weaker guarantees, and idempotent sinks.

The one rule: what the strict round does is not touched here; a sink is *eager* if it is told to commit as soon as it
votes, without waiting for the decision, and only eager sinks are treated differently. Pure. Before it
`planner/guarantee`, whose policy it asks; beside it `commit/coordinator`, whose door and words it has.

Where the commit waits for votes (at-least-once, idempotent sinks), a crash between a vote and `commits/N` brings the
epoch again: behind the first time, or, at an idempotent sink, at the same positions. Where it waits for nothing
(at-most-once, none), a sink gets each epoch at most once from a driver; what was on its way when one of the two went is
not sent again. With at-most-once it is sent only after `commits/N`, so no driver after a crash can send it either.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from procession.commit.coordinator import SETTLE_MAX, Coordinator, Phase, Standing
from procession.commit.round_events import (
    Acknowledge,
    Action,
    CommitFound,
    DropRuns,
    EpochReady,
    Phase2,
    Reconnect,
    SinkConnected,
    SinkLost,
    Stop,
    Tell,
    VoteReceived,
    Warn,
    WriteRecord,
)
from procession.commit.round_record import ROUNDS_KEPT, Round
from procession.commit.stop_reasons import fenced, lost_prepared, set_back, unsettled
from procession.commit.transaction_id import Transaction
from procession.planner.guarantee import Acknowledges, Emits, Policy, Shows, Waits


class EagerCoordinator(Coordinator):
    """`_due` are the sinks that have yet to receive the open epoch, or to answer."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._due: set[str] = set()
        self._is_waiting = self.policy.waits is Waits.VOTES
        if not self._is_waiting:
            # The runs of an epoch are dropped when it is over; nothing is ever confirmed.
            for sink in self.sinks.values():
                sink.unconfirmed = None

    def _is_eager(self, name: str) -> bool:
        return self.policy.shows is Shows.VOTED or name in self.idempotent

    def _is_due(self, name: str) -> bool:
        if not self._is_eager(name):
            return super()._is_due(name)
        if self.open is None or name not in self._due or self.sinks[name].standing is not Standing.READY:
            return False
        return self.policy.emits is Emits.BEFORE_COMMIT or self.committed == self.open.ready.epoch

    # Sinks come and go

    def _connected(self, event: SinkConnected) -> list[Action]:
        name, sink = event.sink, self.sinks[event.sink]
        if not self._is_eager(name):
            return super()._connected(event)
        if sink.standing is Standing.SENDING:
            # A greeting says, if nothing else did, that the connection before it is gone.
            return [*self._lost(SinkLost(name)), *self._connected(event)]
        if event.listed:
            return self._settle(event)
        sink.settlings = 0
        if (stop := self._adopt(event)) is not None:
            return [stop]
        sink.standing = Standing.READY
        return [*self._confirm(sink), *self._emit(name)]

    def _settle(self, event: SinkConnected) -> list[Action]:
        """Decides the listed transactions, and begins the session again to learn where the output ends."""
        name, sink = event.sink, self.sinks[event.sink]
        sink.settlings += 1
        if sink.settlings > SETTLE_MAX:
            return [Stop(unsettled(name, event.listed))]
        told: list[Action] = []
        for text in event.listed:
            decision = self._decide(name, text)
            if isinstance(decision, Stop):
                return [decision]
            # A vote that we hold (None) is all that an eager sink's commit waits for.
            told.append(Phase2(name, text, decision is not False))
        return [*told, Reconnect(name)]

    def _decide(self, name: str, text: str) -> bool | Stop | None:
        if self._is_waiting or not self._is_eager(name):
            return super()._decide(name, text)
        transaction = Transaction.parse(text)
        if transaction is None or not self._is_ours(name, transaction):
            return False
        # No epoch is sent to a sink twice by one driver, so there is no other transaction that it could double.
        return True if transaction.fence <= self.fence else Stop(fenced(self.fence, transaction.fence))

    def _adopt(self, event: SinkConnected) -> Stop | None:
        """Continues at the sink's position; an idempotent sink continues at ours."""
        name, sink = event.sink, self.sinks[event.sink]
        if sink.vote is not None:
            if event.position is None or event.position >= sink.vote.end:
                return None
            if self.open is None or self.open.phase is not Phase.EMITTING:
                return Stop(lost_prepared(name, sink.vote))
            sink.vote = sink.txn = None
            self._due.add(name)
        if event.position is None:
            return None
        if self._is_waiting and event.position < sink.position:
            return Stop(set_back(name, event.position, sink.position))
        if name not in self.idempotent:
            sink.position = event.position
        return None

    def _lost(self, event: SinkLost) -> list[Action]:
        name, sink = event.sink, self.sinks[event.sink]
        if self._is_waiting or not self._is_eager(name):
            return super()._lost(event)
        was_sending, sink.standing, sink.txn = sink.standing is Standing.SENDING, Standing.DOWN, None
        if not was_sending or self.open is None:
            return []
        self._due.discard(name)
        epoch = self.open.ready.epoch
        told = Warn(f"sink {name!r} went while epoch {epoch} was on its way; by the guarantee it is not sent again")
        return [told, *self._over()]

    # The round

    def _ready(self, event: EpochReady) -> list[Action]:
        if self.open is None:
            self._due = set(self.sinks)
        actions = super()._ready(event)
        if self._is_waiting or self.open is None or self.open.ready is not event:
            return actions
        self.open.phase = Phase.RECORDING
        record = self._record(event, {})  # names no transaction: no sink waits for it
        begun = [Tell(_begun(record, event))] if self.policy.acknowledges is Acknowledges.BEGUN else []
        return [*begun, *actions, WriteRecord(record)]

    def _voted(self, event: VoteReceived) -> list[Action]:
        name, sink = event.sink, self.sinks[event.sink]
        if not self._is_eager(name):
            return super()._voted(event)
        if sink.txn != event.txn or sink.standing is not Standing.SENDING or self.open is None:
            return []
        if self._is_waiting:
            actions = super()._voted(event)
            if not event.commit:
                return actions
            self._due.discard(name)
            sink.standing = Standing.READY
            return [Phase2(name, event.txn, True), *actions]
        self._due.discard(name)
        sink.txn = None
        if event.commit:
            sink.position += self.open.ready.lengths[name]
            sink.standing = Standing.READY
            return [Phase2(name, event.txn, True), *self._over()]
        sink.standing = Standing.DOWN
        return [Phase2(name, event.txn, False), Reconnect(name), *self._over()]

    def _abort_all(self, delay_s: float = 0.0) -> list[Action]:
        """What an eager sink has voted for is visible there, and stays."""
        held = {name: sink.vote for name, sink in self.sinks.items() if self._is_eager(name)}
        actions = super()._abort_all(delay_s)
        for name, vote in held.items():
            self.sinks[name].vote = vote
        return actions

    def _found(self, event: CommitFound) -> list[Action]:
        if self._is_waiting:
            return super()._found(event)
        opened = self._opened(event.epoch)
        if self.committed == event.epoch:
            return []
        self.committed = event.epoch
        self.rounds[event.epoch] = self._record(opened.ready, {})
        self.rounds.pop(event.epoch - ROUNDS_KEPT, None)
        opened.phase = Phase.EMITTING
        return [*(action for name in self.sinks for action in self._emit(name)), *self._over()]

    def _over(self) -> list[Action]:
        """The epoch is committed, and no sink is left to send it to."""
        if self.open is None or self._due or self.committed < self.open.ready.epoch:
            return []
        self.open = None
        return [Acknowledge(self.rounds[self.committed]), DropRuns(self.committed)]

    def _ended(self) -> list[Action]:
        actions = super()._ended()
        self._due.clear()
        for sink in self.sinks.values():
            sink.vote = sink.txn = None
        return actions


def coordinator_for(policy: Policy, idempotent: tuple[str, ...], **settings: Any) -> Coordinator:
    """The coordinator of a pipeline: the strict one, unless the guarantee is weaker."""
    kind = Coordinator if policy.is_strict and not idempotent else EagerCoordinator
    return kind(policy=policy, idempotent=idempotent, **settings)


def _begun(record: Round, ready: EpochReady) -> Round:
    """What the gateways may tell the producers; their logs are kept from the epoch's first record on."""
    return replace(record, last=record.first, parts={}, counters={}, states={}, ends=ready.starts)
