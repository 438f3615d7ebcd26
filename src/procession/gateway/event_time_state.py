"""Event-time order: the decisions of a gateway that differ from those in order of arrival. Pure.

Invariant: the driver knows only sequences of the ordered log. The end of a stream has no sequence in that log until its
place is final. Only declared streams are accepted, and each stream has its own credits. `performer` appends the rows;
`event_time_log` reports which rows are in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from procession.errors import RemoteProtocolError
from procession.gateway.gateway_events import Action, RowsOrdered, StreamsIdled
from procession.gateway.log_rows import LogTail, batch_of, moved_in_row, moved_out_row, row_sizes, tick_row
from procession.gateway.snapshot import Snapshot
from procession.gateway.stream_quota import NOBODY, StreamQuotas
from procession.merge.event_time import DeclaredOrder, ReplayPoint
from procession.merge.stream_clocks import StreamClock, watermark_of
from procession.storage.segment import KIND_RECORD
from procession.wire import draft
from procession.wire.messages import UNNUMBERED, Hello, Ids, Messages, Notify

if TYPE_CHECKING:
    from procession.gateway.state import GatewayState

UNPLACED = 2**63
"""The sequence of an end of stream whose place is not final. It is above all other sequences."""


class Recovered(NamedTuple):
    """The results of reading the two logs in recovery: uncommitted rows, and the progress of the streams."""

    tail: LogTail
    shares: StreamQuotas
    point: ReplayPoint
    clocks: Mapping[int, StreamClock]
    ordered_end: int
    skipped: int
    """Number of arrivals that are neither ordered nor waiting: rows about streams (ticks, moves, releases), and records
    that other gateways received."""
    uncommitted: list[tuple[Ids, Ids]]
    """Stream ids and message ids of the records that are ordered or waiting."""


class EventTimeOrder:
    """Offers records in event-time order. Accepts only declared streams, each with its own limits."""

    retires = False
    """The number of declared streams is limited, so no stream is retired."""

    def __init__(self, declared: DeclaredOrder, recovered: Recovered) -> None:
        self.declared = declared
        self.point = recovered.point
        self.shares = recovered.shares
        self.ordered_end = recovered.ordered_end
        self._clocks = recovered.clocks
        self._skipped = recovered.skipped
        self.ended = {stream_id for stream_id, clock in recovered.clocks.items() if clock.is_ended}
        self.ended |= recovered.tail.eos_sequences.keys()
        """Streams whose end is or was in the log."""
        self.moved_away = set(recovered.point.moved_away)
        """Streams that were released and have not returned. Their waiting records here are void."""
        self._closed_at: dict[int, int] = {}
        """For each closing stream: a sequence of arrivals that is above all its rows."""

    def begin(self, state: GatewayState) -> None:
        state.clocks = self._clocks
        state.flow.lag = self.shares
        state.flow.skipped = self._skipped
        if state.claims is not None:
            state.close_claims(list(state.claims.closing))

    def handle(self, state: GatewayState, event: StreamsIdled | RowsOrdered) -> list[Action]:
        match event:
            case StreamsIdled(ticks):
                seen = {
                    stream_id: state.registry[stream_id].seen if stream_id in state.registry else None
                    for stream_id in ticks
                }
                rows = [tick_row(stream_id, seen[stream_id], at) for stream_id, at in ticks.items()]
                return state.append(0, batch_of(rows), 0)
            case RowsOrdered():
                return self._ordered(state, event)

    def _ordered(self, state: GatewayState, ordered: RowsOrdered) -> list[Action]:
        self.point, state.clocks, self.ordered_end = ordered.point, ordered.clocks, ordered.end
        state.flow.skipped = ordered.skipped
        for stream_id, sequence in ordered.ends.items():
            if stream_id in state.registry and state.registry[stream_id].eos_sequence is not None:
                state.registry[stream_id].eos_sequence = sequence
        self.shares.waits_for = ordered.waits_for
        actions = self._let_go(state, ordered)
        if ordered.waits_for is None or ordered.waits_for not in state.registry:
            return [*actions, *state.relinquish()]
        holder = state.registry[ordered.waits_for].session
        return [*actions, *(state.give_back(holder, 0) if holder is not None else []), *state.relinquish()]

    # Moving streams

    def closing(self, state: GatewayState, stream_ids: Iterable[int]) -> int:
        self._closed_at |= dict.fromkeys(stream_ids, state.next_sequence)
        return UNPLACED

    def _let_go(self, state: GatewayState, ordered: RowsOrdered) -> list[Action]:
        """Release closing streams whose arrivals are all ordered. Records that wait only for their own stream would
        wait forever if the stream continues at another gateway. They are dropped: the producer has no ACK for them, so
        it sends them again there."""
        actions: list[Action] = []
        for stream_id in list(state.claims.closing) if state.claims is not None else ():
            if self._closed_at.get(stream_id, 0) > ordered.observed_end:
                continue
            if stream_id not in ordered.waiting:
                assert state.claims is not None
                state.claims.place(stream_id, ordered.end)
            elif ordered.waiting[stream_id] and stream_id not in self.moved_away:
                self.moved_away.add(stream_id)
                watermark = watermark_of(ordered.clocks[stream_id], self.declared.lateness_ns)
                actions += state.append(0, batch_of([moved_out_row(stream_id, watermark)]), 0)
                self._closed_at[stream_id] = state.next_sequence
        return actions

    def granted(self, state: GatewayState, stream_id: int, clock: StreamClock | None) -> list[Action]:
        """Handle the leader's grant of a stream. The stream continues from the known position of any previous
        holder."""
        if state.claims is None or not state.claims.is_wanted(stream_id):
            return []
        stream = state.registry.get_or_add(stream_id)
        stream.seen = stream.committed  # the producer sends dropped records again
        self.moved_away.discard(stream_id)
        if clock is None or clock.is_ended or clock.seen is None:
            self.ended |= {stream_id} if clock is not None and clock.is_ended else set()
            return []
        watermark = watermark_of(clock, self.declared.lateness_ns)
        return state.append(0, batch_of([moved_in_row(stream_id, clock.seen, watermark)]), 0)

    def offered_end(self, state: GatewayState) -> int | None:
        return self.ordered_end if self.point.floor == state.next_sequence else None

    def check_hello(self, hello: Hello) -> None:
        if hello.version in draft.VERSIONS:
            raise RemoteProtocolError("the draft protocol is not available with event-time order")

    def refuses(self, state: GatewayState, stream_id: int) -> bool:
        if stream_id not in self.declared.streams:
            raise RemoteProtocolError(f"stream {stream_id} is not declared in the pipeline")
        return stream_id in self.moved_away and state.claims is not None and stream_id in state.claims.closing

    def opening(self, state: GatewayState, session: int, notify: Notify) -> None:
        state.sessions[session].streams.add(notify.stream_id)
        clock = state.clocks.get(notify.stream_id)
        if notify.point_of_reference == UNNUMBERED and clock is not None and clock.seen is not None:
            stream = state.registry.get_or_add(notify.stream_id)  # includes records that other gateways received
            stream.seen = clock.seen if stream.seen is None else max(stream.seen, clock.seen)

    def check_messages(self, state: GatewayState, messages: Messages) -> None:
        for stream_id in self.ended.intersection(np.unique(messages.stream_ids).tolist()) if self.ended else ():
            seen, ids = state.registry[stream_id].seen, messages.message_ids[messages.stream_ids == stream_id]
            if seen is None or int(ids.max()) > seen:
                # The merge continued without this stream, so later records have no place in the order.
                raise RemoteProtocolError(f"stream {stream_id} has ended")

    def stream_ended(self, state: GatewayState, session: int, stream_id: int) -> list[Action] | None:
        stream = state.registry[stream_id]
        state.sessions[session].streams.discard(stream_id)
        if stream_id not in self.ended or stream.seen != stream.committed:
            self.ended.add(stream_id)
            return None
        # The stream's end is repeated after its commit. Another row would wait for the end of all streams.
        stream.session = None
        positions = [] if stream.committed is None else [(stream_id, stream.committed)]
        state.sessions[session].owed += 1
        state.close_claims([stream_id])
        return state.ack(session, positions)

    def end_of_stream(self, state: GatewayState) -> int:
        return UNPLACED

    # Credits

    def appending(self, state: GatewayState, session: int, batch: pa.RecordBatch) -> None:
        streams = batch.column("stream_id").to_numpy()
        sizes = np.where(batch.column("kind").to_numpy() == KIND_RECORD, row_sizes(batch), 0)
        ids = batch.column("message_id").to_numpy()
        account = self._account(state, session) if session in state.sessions else None
        if session in state.sessions:
            state.sessions[session].has_sent |= bool(sizes.any())
        for stream_id in np.unique(streams).tolist() if sizes.any() else ():
            indexes = np.flatnonzero((streams == stream_id) & (sizes > 0))
            if len(indexes):
                self.shares.receive(stream_id, int(ids[indexes[-1]]), int(sizes[indexes].sum()), account)

    def spares(self, state: GatewayState, session: int) -> bool:
        """Whether this session may send while other sessions are paused. Either its account has reserve left, or it has
        sent nothing and may be about to open the stream that the merge waits for. False if the disk is full or the
        gateway is paused."""
        if state.flow.is_closed:
            return False
        account = self._account(state, session)
        is_new = account == NOBODY and not state.sessions[session].has_sent
        return is_new or (account is not None and self.shares.reserved.get(account, 0) < self.shares.reserve_bytes)

    def _account(self, state: GatewayState, session: int) -> int | None:
        """Return the account whose reserve a session may use: the stream that the merge waits for, if this session has
        it. If no session has it, each session may be about to open it, and uses `NOBODY`."""
        waits_for = self.shares.waits_for
        if waits_for is None:
            return None
        if waits_for not in state.registry or state.registry[waits_for].session is None:
            return NOBODY
        return waits_for if waits_for in state.sessions[session].streams else None

    def allowed(self, state: GatewayState, session: int, among_all: int) -> int:
        if state.flow.is_withheld:
            return 0  # the reserve may not be used either
        return self.shares.allowed(state.sessions[session].streams, among_all)

    # Commits

    def complete(self, state: GatewayState, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, point=self.point, clocks=state.clocks)

    def settle(self, state: GatewayState, snapshot: Snapshot) -> list[int]:
        withheld = [number for number in state.sessions if not state.allowed(number)]
        self.shares.settle((stream_id, at.committed) for stream_id, at in snapshot.streams.items())
        return withheld
