"""The gateway's decisions: owners of streams, duplicates, sequence numbers, credits. Pure.

Invariant: all input goes through `handle(event) -> actions`, and an event that is not allowed changes nothing.
`wire/connection` rejects malformed sessions first; `gateway/performer` appends, writes and sends.
`gateway/arrival_order` and `gateway/event_time_state` make the decisions that depend on the order of records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from procession.errors import RemoteProtocolError
from procession.gateway import gateway_events as ev
from procession.gateway.arrival_order import ArrivalOrder, RecordOrder
from procession.gateway.credit_flow import CreditFlow, UnappendedRows
from procession.gateway.dedupe import fresh
from procession.gateway.draft_groups import DraftGroups, inject_fault
from procession.gateway.gateway_limits import Limits
from procession.gateway.log_rows import LogTail, batch_of, eos_row, read_tail, record_rows, size_of
from procession.gateway.plausibility import advanced_positions, check_end, check_positions
from procession.gateway.registry import Registry
from procession.gateway.retired_streams import RetiredStreams
from procession.gateway.retirement import Retirement
from procession.gateway.sessions import SessionEntry, admit
from procession.gateway.snapshot import Snapshot
from procession.gateway.stream_leases import LeaseDecision, StreamLeases
from procession.merge.stream_clocks import StreamClock
from procession.wire import connection, draft
from procession.wire.connection import Violation
from procession.wire.draft_messages import Debug, DraftMessages, DraftOk, Extension
from procession.wire.messages import Eos, Error, Hello, Messages, Notify, NotifyAck, Ok


class GatewayState:
    """The whole state of a gateway. It is restored from `snapshot` and the log's rows after it."""

    def __init__(
        self,
        limits: Limits,
        snapshot: Snapshot | None = None,
        tail: Iterable[pa.RecordBatch] | LogTail = (),
        next_sequence: int = 0,
        lag_bytes: int = 0,
        *,
        is_leading: bool | None = None,
        retired: bytes = b"",
        now: float = 0.0,
        order: RecordOrder | None = None,
    ) -> None:
        """`is_leading`: whether this gateway is the leader of several. None: there is only one gateway. `retired` is
        the file of retired streams that the snapshot names. `order` is the order in which records are offered. None:
        that of arrival."""
        self.limits = limits
        self.now = now
        self.snapshot = found_at = snapshot or Snapshot()
        found = tail if isinstance(tail, LogTail) else read_tail(self.snapshot.end_sequence, tail)
        self.retired = RetiredStreams(limits, found_at.retired, retired, found_at.streams, now, found_at.epoch)
        self.registry = Registry(self.snapshot.streams, found, self.retired, now)
        self.claims: StreamLeases | None = None
        if is_leading is not None:
            self.claims = StreamLeases({*found.seen, *found.eos_sequences}, next_sequence, is_leading=is_leading)
        self.retirement = Retirement(limits, self.registry, self.retired, self.claims, now)
        self.clocks: Mapping[int, StreamClock] = self.snapshot.clocks
        """The event time that each stream has reached, in event-time order."""
        self.next_sequence = next_sequence
        self.groups_end = found.groups_end
        """Sequence after the last row of a group. An epoch must not split a group."""
        self.sessions: dict[int, SessionEntry] = {}
        self.flow = CreditFlow(limits, self.snapshot.end_sequence, next_sequence, lag_bytes)
        self.records_in = 0
        self.ephemeral_in = 0
        """Number of records that their sources cannot send again. `records_in` does not include them."""
        self.duplicates = 0
        self.order = order if order is not None else ArrivalOrder()
        self.order.begin(self)

    def handle(self, event: ev.Event | ev.OfOrder, now: float = 0.0) -> list[ev.Action]:
        """Handle an event, and return the resulting actions. An adaptive window and idle streams need `now`."""
        self.now = max(now, self.now)
        match event:
            case ev.FrameReceived():
                return self._received(event.session, event.what)
            case ev.RowsAppended():
                return self._appended(event.end_sequence)
            case ev.SessionOpened(session):
                return self._opened(session)
            case ev.SessionClosed(session):
                return self._left(session)
            case ev.AckIntervalPassed():
                return self._ticked()
            case ev.FenceRaised(fence):
                return self._raise_fence(fence)
            case ev.EpochCommitted():
                return self._committed(event)
            case ev.SnapshotWritten(snapshot, retiring):
                self.retirement.written(snapshot, retiring)
                return self._snapshot_written(snapshot)
            case ev.RetireStreams():
                return self._retire() if self.order.retires else []
            case ev.StreamGranted(stream_id, committed, clock):
                return [*self.order.granted(self, stream_id, clock), *self._granted(stream_id, committed)]
            case ev.StreamRefused(stream_id):
                return self._refused(stream_id)
            case ev.StreamRelinquished() | ev.LeaderFound() | ev.LeaderKeeps() | ev.LeaderLost():
                return self._from_leader(event)
            case ev.StreamsIdled() | ev.RowsOrdered():
                return self.order.handle(self, event)

    # Sessions

    def _opened(self, session: int) -> list[ev.Action]:
        self.sessions[session] = SessionEntry()
        if len(self.sessions) > self.limits.sessions_max:
            # Close the oldest session without a HELLO, so that silent peers do not block others.
            silent = (number for number, candidate in self.sessions.items() if not candidate.is_streaming)
            return self.close_session(next(silent), f"more than {self.limits.sessions_max} sessions")
        return []

    def _left(self, session: int) -> list[ev.Action]:
        self.sessions.pop(session, None)
        left = self.registry.leave(session, self.now)
        if self.claims is not None:
            self.claims.leave(session)
        self.close_claims(left)
        return self.relinquish()

    def _received(self, session: int, what: connection.Event) -> list[ev.Action]:
        if session not in self.sessions:
            return []
        try:
            match what:
                case Messages():
                    return self._messages(session, what)
                case DraftMessages():
                    return self._drafted(session, what)
                case Hello():
                    return self._hello(session, what)
                case Notify():
                    return [*self._notify(session, what), *self.give_back(session, 1, unspent=1)]
                case Eos(stream_id=stream_id):
                    return self._ended(session, stream_id)
                case Debug():
                    return inject_fault(self, session, what)
                case Violation(reason=reason):
                    return self.close_session(session, reason)
                case Error():
                    return self.close_session(session, None)
                case _:
                    raise RemoteProtocolError(f"{type(what).__name__} is not for a gateway")
        except RemoteProtocolError as error:
            return self.close_session(session, error.sentence)

    def close_session(self, session: int, reason: str | None) -> list[ev.Action]:
        # The session ends here: its streams are free at once, and later input from the session is ignored.
        return [*self.handle(ev.SessionClosed(session)), ev.CloseSession(session, reason)]

    def _hello(self, session: int, hello: Hello) -> list[ev.Action]:
        self.order.check_hello(hello)
        asked_for = admit(hello, self.limits, speaks_draft=self.claims is None or self.claims.is_leading)
        self.sessions[session].is_streaming = True
        granted = self.flow.first(len(self.sessions))
        self.sessions[session].owed = self.limits.credits_max - granted
        if asked_for is None:
            return [ev.SendFrame(session, Ok(granted))]
        is_counting = Extension.COUNTS in asked_for
        self.sessions[session].groups = DraftGroups(self.limits.held_bytes_max, is_counting=is_counting)
        return [ev.SendFrame(session, DraftOk(granted, self.registry.listed(self.limits.listed_bytes_max)))]

    # Streams

    def _notify(self, session: int, notify: Notify) -> list[ev.Action]:
        if self.order.refuses(self, notify.stream_id):
            return self.refuse(session, notify)
        is_known, claims = notify.stream_id in self.registry, self.claims
        asking = claims.asking if claims is not None else 0
        if not is_known and len(self.registry) + asking >= self.limits.streams_max:
            raise RemoteProtocolError(f"more than {self.limits.streams_max} streams")
        stream = self.registry[notify.stream_id] if is_known else None
        is_draft = self.sessions[session].groups is not None
        # In the draft, the session that ended a stream may open it again: no other session can have it meanwhile.
        if stream is not None and not stream.is_free and not (is_draft and stream.session == session):
            return self.refuse(session, notify)
        verdict = claims.notify(session, notify) if claims is not None else LeaseDecision.OURS
        if verdict is LeaseDecision.ASK:
            return [ev.AskForStream(notify.stream_id)]
        return self._open(session, notify) if verdict is LeaseDecision.OURS else self.refuse(session, notify)

    def _open(self, session: int, notify: Notify) -> list[ev.Action]:
        self.order.opening(self, session, notify)
        stream = self.registry.get_or_add(notify.stream_id)
        stream.open(session, notify.stream_name)
        groups = self.sessions[session].groups
        if groups is None:
            reference = stream.reference_for(notify.point_of_reference)
            return [ev.SendFrame(session, NotifyAck(True, notify.stream_id, reference))]
        groups.open(notify.stream_id)
        return []

    def refuse(self, session: int, notify: Notify) -> list[ev.Action]:
        if self.sessions[session].groups is None:
            self.sessions[session].was_acked = False  # the producer asks again after the next ACK
            return [ev.SendFrame(session, NotifyAck(False, notify.stream_id, notify.point_of_reference))]
        return self.close_session(session, f"{draft.IN_USE}: {notify.stream_id}")  # the draft has no frame that refuses

    def _messages(self, session: int, messages: Messages) -> list[ev.Action]:
        """Handle messages, on the hot path without work per record. If a record is invalid, the records before it are
        still accepted."""
        self.order.check_messages(self, messages)
        judged = fresh(messages.stream_ids, messages.message_ids, self.registry)
        for stream_id, last_id in judged.last_ids.items():
            self.registry[stream_id].seen = last_id
        taken, new = len(judged.mask), int(np.count_nonzero(judged.mask))
        self.records_in += new
        self.duplicates += taken - new
        rows = record_rows(messages.slice(0, taken))
        if new < taken:
            rows = rows.filter(pa.array(judged.mask))
        actions = self.append(session, rows, new) if new else []
        actions += self.give_back(session, taken - new, unspent=taken - new) if new < taken else []
        return actions if judged.error is None else [*actions, *self.close_session(session, judged.error)]

    def _ended(self, session: int, stream_id: int) -> list[ev.Action]:
        if (repeated := self.order.stream_ended(self, session, stream_id)) is not None:
            return repeated
        stream = self.registry[stream_id]
        stream.eos_sequence = self.order.end_of_stream(self)
        actions = self.append(session, batch_of([eos_row(stream_id, stream.seen)]), 1)
        self._closing([stream_id])
        return actions

    def _closing(self, stream_ids: Iterable[int]) -> None:
        """Mark the ended streams among these streams as closing."""
        known = [self.registry[stream_id] for stream_id in stream_ids if stream_id in self.registry]
        self.close_claims([stream.stream_id for stream in known if stream.eos_sequence is not None])

    def close_claims(self, stream_ids: Iterable[int]) -> None:
        """Close streams on which no session sends. They are released when all their records are committed."""
        if self.claims is not None:
            closing = list(stream_ids)
            self.claims.close(closing, self.order.closing(self, closing))

    @property
    def is_settled(self) -> bool:
        """Whether all received records are committed and no stream is held."""
        return not self.claims and self.snapshot.end_sequence == self.order.offered_end(self)

    def _drafted(self, session: int, run: DraftMessages) -> list[ev.Action]:
        """Handle messages of the draft protocol, one by one. If a message is invalid, the messages before it count."""
        groups = self.sessions[session].groups
        assert groups is not None, "this session speaks the draft"
        taken = groups.take_all(run.messages, self.registry, self.next_sequence)
        self.records_in += taken.records
        self.ephemeral_in += taken.ephemeral
        self.duplicates += taken.duplicates
        self.groups_end = max(self.groups_end, taken.groups_end)
        rows, frames = taken.rows, len(run)
        actions = self.append(session, batch_of(rows), frames) if rows else self.give_back(session, frames)
        self._closing({message.stream_id for message in run.messages})
        return actions if taken.error is None else [*actions, *self.close_session(session, taken.error)]

    # The leader of several gateways

    def _granted(self, stream_id: int, committed: int | None) -> list[ev.Action]:
        assert self.claims is not None, "a gateway without a leader has sent no request"
        request = self.claims.answered(stream_id, is_granted=True)
        if request is None:
            return self.relinquish()  # the session has ended
        session, notify = request
        if committed is not None:
            self.registry.get_or_add(stream_id).commit(committed)
        return self._open(session, notify)

    def _refused(self, stream_id: int) -> list[ev.Action]:
        assert self.claims is not None, "a gateway without a leader has sent no request"
        request = self.claims.answered(stream_id, is_granted=False)
        return [*(self.refuse(*request) if request is not None else []), *self.relinquish()]

    def _from_leader(self, event: ev.OfLeader) -> list[ev.Action]:
        assert self.claims is not None, "a gateway without a leader has no link"
        match event:
            case ev.StreamRelinquished(stream_id):
                self.claims.relinquished(stream_id)
                return []
            case ev.LeaderFound():
                self.claims.has_leader = True
                return [*self.relinquish(), *self._ticked()]
            case ev.LeaderLost():
                return [action for request in self.claims.lose_leader() for action in self.refuse(*request)]
            case ev.LeaderKeeps(epoch):
                self.retirement.leader_keeps = epoch
        return []

    def relinquish(self) -> list[ev.Action]:
        """Release streams without a session, if all their records are committed."""
        if self.claims is None:
            return []
        settled = self.claims.settle(self.snapshot.end_sequence)
        known = {stream_id: self.registry[stream_id].committed for stream_id in settled if stream_id in self.registry}
        return [
            ev.RelinquishStream(stream_id, known.get(stream_id), self.clocks.get(stream_id)) for stream_id in settled
        ]

    # The log, and credits

    def append(self, session: int, batch: pa.RecordBatch, frames: int) -> list[ev.Action]:
        self.order.appending(self, session, batch)
        first = self.next_sequence
        self.next_sequence += batch.num_rows
        size_bytes = size_of(batch)
        self.flow.receive(self.now, UnappendedRows(self.next_sequence, size_bytes, session, frames))
        return [ev.AppendRows(first, batch, size_bytes)]

    def _appended(self, end_sequence: int) -> list[ev.Action]:
        appended = self.flow.append(end_sequence)
        return [action for rows in appended for action in self.give_back(rows.session, rows.frames)]

    def give_back(self, session: int, credits_spent: int, unspent: int = 0) -> list[ev.Action]:
        """Add the session's spent credits to those that it is owed. Sends an ACK when enough credits can be granted."""
        if session not in self.sessions:
            return []
        self.sessions[session].owed += credits_spent
        self.sessions[session].unspent += unspent
        return self.ack(session) if self.flow.is_due(self.sessions[session].owed, self.allowed(session)) else []

    def allowed(self, session: int) -> int:
        """Return the number of credits that this session may hold."""
        return self.order.allowed(self, session, self.flow.allowed(len(self.sessions)))

    def holds(self, session: int) -> bool:
        """Whether the session is not read now, because of backpressure. False before its HELLO."""
        return self.flow.is_over and self.sessions[session].is_streaming and not self.order.spares(self, session)

    def ack(self, session: int, positions: Iterable[tuple[int, int]] = ()) -> list[ev.Action]:
        grantable = self.flow.grantable(self.sessions[session].owed, self.allowed(session))
        frames = self.sessions[session].ack(positions, self.registry, grantable=grantable)
        return [ev.SendFrame(session, frame) for frame in frames]

    def _ticked(self) -> list[ev.Action]:
        """Send an ACK to each session that got none since the last tick. Existing clients retry a refused NOTIFY only
        after an ACK."""
        return [action for number in self.sessions for action in self.tick(number)]

    def tick(self, number: int) -> list[ev.Action]:
        session = self.sessions[number]
        actions = self.ack(number) if session.is_streaming and not session.was_acked else []
        session.was_acked = False
        return actions

    def _retire(self) -> list[ev.Action]:
        """Omit streams that have been idle for long from the snapshot."""
        streams = self.retirement.choose(self.snapshot.epoch, self.now)
        if not streams and not self.retired.forgetting:
            return []
        before = self._snapshot(self.snapshot.fence, self.snapshot.epoch, self.snapshot.end_sequence, {})
        return [ev.WriteSnapshot(*self.retirement.plan(streams, before, self.now))]

    # Commits, one at a time: the performer waits for the snapshot before it passes the next commit.

    def _raise_fence(self, fence: int) -> list[ev.Action]:
        self.snapshot.check_fence(fence)
        return [ev.WriteSnapshot(self._snapshot(fence, self.snapshot.epoch, self.snapshot.end_sequence, {}))]

    def _committed(self, commit: ev.EpochCommitted) -> list[ev.Action]:
        self.snapshot.check_fence(commit.fence)
        self.retirement.on_commit(commit, self.snapshot)
        check_end(commit.epoch, commit.end_sequence, self.next_sequence)
        # A repeated or late commit changes nothing, because every part of a snapshot only grows.
        epoch = max(commit.epoch, self.snapshot.epoch)
        end_sequence = max(commit.end_sequence, self.snapshot.end_sequence)
        positions = advanced_positions(commit.positions, self.registry, is_late=commit.epoch <= self.snapshot.epoch)
        check_positions(positions, self.registry, self.claims)
        return [ev.WriteSnapshot(self._snapshot(commit.fence, epoch, end_sequence, positions))]

    def _snapshot(self, fence: int, epoch: int, end_sequence: int, positions: dict[int, int]) -> Snapshot:
        known = self.registry.positions(positions)
        mark = self.retired.marked(self.now)
        return self.order.complete(self, Snapshot(fence, epoch, end_sequence, self.next_sequence, known, retired=mark))

    def _snapshot_written(self, snapshot: Snapshot) -> list[ev.Action]:
        """Handle a durable commit: acknowledge it, drop its rows, and grant withheld credits."""
        waited = self.order.settle(self, snapshot)
        withheld = {number for number in self.sessions if not self.allowed(number)}
        self.snapshot = snapshot
        self.flow.commit(self.now, snapshot.end_sequence)
        positions_of = self.registry.commit(snapshot.end_sequence, snapshot.streams, self.now)
        positions_of = {
            number: [] for number in self.sessions if self.is_owed(number, number in withheld)
        } | positions_of
        actions = [action for session, positions in positions_of.items() for action in self.ack(session, positions)]
        actions += [ev.TrimLog(snapshot.end_sequence), *self.relinquish()]
        freed = [number for number in waited if number in self.sessions and self.is_owed(number, is_withheld=True)]
        return [*(action for number in freed for action in self.ack(number)), *actions]

    def is_owed(self, number: int, is_withheld: bool) -> bool:
        """Whether to grant credits now. A session that waited for a commit gets the minimum."""
        ask = self.flow.grantable if is_withheld else self.flow.is_due
        return bool(ask(self.sessions[number].owed, self.allowed(number)))
