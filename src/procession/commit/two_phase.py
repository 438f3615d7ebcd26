"""The strict round: two-phase commit, in which every sink waits for the decision. Pure.

Invariant: no transaction is committed or aborted at a sink while a round is in doubt. The outcome of a transaction is
looked up in the commits and round records. `commit/one_phase` is the other strategy of `commit/coordinator`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from procession.commit.round_events import (
    Acknowledge,
    Action,
    CommitFound,
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
from procession.commit.round_record import ROUNDS_KEPT, SinkShare
from procession.commit.round_state import RoundPhase, SinkPhase
from procession.commit.stop_reasons import another_output, fenced, lost_prepared, record_gone, set_back, unsettled
from procession.commit.transaction_id import TransactionId

if TYPE_CHECKING:
    from procession.commit.coordinator import Coordinator

ABORT_DELAY_MAX_S = 5.0
"""Maximum wait before an epoch is sent again to a sink that voted abort."""

SETTLE_MAX = 8
"""Maximum number of times that a sink may list a transaction again after its abort."""


class TwoPhase:
    """Commits at a sink when `commits/N` is found, and not before."""

    def begin(self, core: Coordinator) -> None:
        """Do nothing: each sink must still confirm the last commit."""

    def connected(self, core: Coordinator, event: SinkConnected) -> list[Action]:
        name, sink = event.sink, core.sinks[event.sink]
        commits: list[Action] = []
        aborts: list[Action] = []
        is_held = False
        for text in event.listed:
            decision = self.decide(core, name, text)
            if isinstance(decision, StopPipeline):
                return [decision]
            is_held = is_held or decision is None
            if decision is not None:
                (commits if decision else aborts).append(SendPhase2(name, text, decision))
        if (stop := self._missing(core, event, bool(commits), is_held)) is not None:
            return [stop]
        confirmed = core.confirm(sink) if not commits else []
        if aborts:
            # The sink drops aborted output at the next HELLO. The round continues only when the sink lists no
            # transactions.
            sink.settle_attempts += 1
            if sink.settle_attempts > SETTLE_MAX:
                return [StopPipeline(unsettled(name, event.listed))]
            foreign = [
                Warn(f"sink {name!r} held transaction {text!r}, which this checkpoint did not make; it is aborted")
                for text in event.listed
                if not core.is_ours(name, TransactionId.parse(text))
            ]
            return [*foreign, *confirmed, *commits, *aborts, ReconnectSink(name)]
        sink.settle_attempts = 0
        sink.phase = SinkPhase.VOTED if is_held else SinkPhase.READY
        return [*confirmed, *commits, *core.emit(name)]

    def decide(self, core: Coordinator, name: str, text: str) -> bool | StopPipeline | None:
        """Return True for commit, False for abort. None: the transaction belongs to the open round and is undecided."""
        transaction = TransactionId.parse(text)
        if transaction is None or not core.is_ours(name, transaction):
            return False
        if transaction.fence > core.fence:
            return StopPipeline(fenced(core.fence, transaction.fence))
        if transaction.epoch <= core.committed:
            record = core.rounds.get(transaction.epoch)
            if record is None:
                return StopPipeline(record_gone(name, text))
            part = record.parts.get(name)
            return part is not None and part.txn == text
        vote = core.sinks[name].vote
        return None if vote is not None and vote.txn == text else False

    def _missing(
        self, core: Coordinator, event: SinkConnected, is_committing: bool, is_held: bool
    ) -> StopPipeline | None:
        """Return an action that stops the pipeline if a sink has less output than it had promised, or more than it was
        sent."""
        sink = core.sinks[event.sink]
        if sink.vote is not None and not is_held:
            if core.open is None or core.open.phase is not RoundPhase.EMITTING:
                return StopPipeline(lost_prepared(event.sink, sink.vote))
            sink.vote = sink.txn = None
        if event.position is None:
            return None
        expected = sink.unconfirmed.start if is_committing and sink.unconfirmed is not None else sink.position
        if event.position < expected:
            return StopPipeline(set_back(event.sink, event.position, expected))
        if event.position > expected:
            return StopPipeline(another_output(event.sink, event.position, expected))
        return None

    def lost(self, core: Coordinator, event: SinkLost) -> list[Action]:
        sink = core.sinks[event.sink]
        sink.phase = SinkPhase.DOWN
        if sink.vote is None:
            sink.txn = None
        if event.hung and core.open is not None:
            return core.refused(event.sink, "did not vote in time")
        return []

    def ready(self, core: Coordinator, event: EpochReady) -> list[Action]:
        return core.emit_all()

    def is_due(self, core: Coordinator, name: str) -> bool:
        is_emitting = core.open is not None and core.open.phase is RoundPhase.EMITTING
        return is_emitting and core.sinks[name].phase is SinkPhase.READY

    def voted(self, core: Coordinator, event: VoteReceived) -> list[Action]:
        sink = core.sinks[event.sink]
        if core.open is None or sink.txn != event.txn or sink.phase is not SinkPhase.SENDING:
            return []
        # A vote on this epoch confirms that phase 2 of the previous epoch has arrived.
        actions = core.confirm(sink)
        sink.phase = SinkPhase.VOTED
        if not event.commit:
            return [
                *actions,
                *core.abort_all(delay_s=min(ABORT_DELAY_MAX_S, 0.05 * 2 ** min(core.open.refusals, 16))),
                *core.refused(event.sink, "voted abort"),
            ]
        ready = core.open.ready
        sink.vote = SinkShare(event.txn, sink.position, sink.position + ready.length(event))
        if not core.have_all_voted():
            return actions
        parts = {name: other.vote for name, other in core.sinks.items() if other.vote is not None}
        core.open.phase = RoundPhase.RECORDING
        return [*actions, WriteRecord(core.record(ready, parts))]

    def keeps_vote(self, core: Coordinator, name: str) -> bool:
        return False

    def commit_found(self, core: Coordinator, event: CommitFound) -> list[Action]:
        opened = core.opened(event.epoch)
        parts = {name: sink.vote for name, sink in core.sinks.items() if sink.vote is not None}
        assert opened.phase is RoundPhase.IN_DOUBT
        record = core.record(opened.ready, parts)
        core.rounds[event.epoch] = record
        core.rounds.pop(event.epoch - ROUNDS_KEPT, None)
        core.committed = event.epoch
        core.open = None
        actions: list[Action] = []
        for name, sink in core.sinks.items():
            part = parts[name]
            sink.position, sink.unconfirmed, sink.vote, sink.txn = part.end, part, None, None
            if sink.phase is SinkPhase.VOTED:
                actions.append(SendPhase2(name, part.txn, True))
                sink.phase = SinkPhase.READY
        return [*actions, Acknowledge(record)]

    def ended(self, core: Coordinator) -> None:
        """Do nothing: all votes are aborted."""
