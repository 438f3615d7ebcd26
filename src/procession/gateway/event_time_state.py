"""What a gateway decides with event-time order: where it differs from `state`. Pure.

The one rule: sequences that the driver knows are those of the ordered log. The end of a stream has none before its
place is settled; only declared streams come in; and credits are a matter of each stream. Before it on the walk:
`wire.connection`. After it: `performer`, which appends, and `event_time_log`, which tells it what was put in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from procession.errors import RemoteProtocolError
from procession.gateway.gateway_events import Action, Event, Idled, Ordered
from procession.gateway.gateway_options import Limits
from procession.gateway.log_rows import Tail, batch_of, given_row, moved_row, row_sizes, tick_row
from procession.gateway.snapshot import Snapshot
from procession.gateway.state import GatewayState
from procession.gateway.stream_quota import NOBODY, Shares
from procession.merge.event_time import Declared, Point
from procession.merge.stream_clocks import Clock, watermark_of
from procession.storage.segment import KIND_RECORD
from procession.wire import draft
from procession.wire.messages import UNNUMBERED, Hello, Ids, Messages, Notify

UNPLACED = 2**63
"""The sequence of an end whose place is not settled: behind all others."""


class Recovered(NamedTuple):
    """What the two logs say of what is not committed, and of how far streams have come."""

    tail: Tail
    shares: Shares
    point: Point
    clocks: Mapping[int, Clock]
    ordered_end: int
    skipped: int
    """Arrivals that are neither in order nor wait: words about streams, and records that were taken elsewhere."""
    uncommitted: list[tuple[Ids, Ids]]
    """Records that are in order, or wait: their streams and ids."""


class OrderedState(GatewayState):
    def __init__(
        self,
        limits: Limits,
        declared: Declared,
        snapshot: Snapshot,
        next_sequence: int,
        found: Recovered,
        *,
        is_leading: bool | None = None,
    ) -> None:
        super().__init__(limits, snapshot, found.tail, next_sequence, is_leading=is_leading)
        self.declared = declared
        self.point = found.point
        self.clocks = found.clocks
        self.shares = found.shares
        self.flow.lag = found.shares
        self.flow.skipped = found.skipped
        self.ordered_end = found.ordered_end
        self.ended = {stream_id for stream_id, clock in self.clocks.items() if clock.is_ended}
        self.ended |= found.tail.eos_sequences.keys()
        """Streams whose end is in the log, or was."""
        self.given = set(found.point.given)
        """Streams that were given up, and have not come back: the end of what came of them here counts no more."""
        self._closed_at: dict[int, int] = {}
        """Of a stream that is closing: all its arrivals are below this sequence of theirs."""
        if self.claims is not None:
            self._close_claims(list(self.claims.closing))

    def handle(self, event: Event | Idled | Ordered, now: float = 0.0) -> list[Action]:
        match event:
            case Idled(ticks):
                seen = {one: self.registry[one].seen if one in self.registry else None for one in ticks}
                rows = [tick_row(one, seen[one], at) for one, at in ticks.items()]
                return self._append(0, batch_of(rows), 0)
            case Ordered():
                return self._ordered(event)
            case _:
                return super().handle(event, now)

    def _ordered(self, ordered: Ordered) -> list[Action]:
        self.point, self.clocks, self.ordered_end = ordered.point, ordered.clocks, ordered.end
        self.flow.skipped = ordered.skipped
        for stream_id, sequence in ordered.ends.items():
            if stream_id in self.registry and self.registry[stream_id].eos_sequence is not None:
                self.registry[stream_id].eos_sequence = sequence
        self.shares.waits_for = ordered.waits_for
        actions = self._let_go(ordered)
        if ordered.waits_for is None or ordered.waits_for not in self.registry:
            return [*actions, *self._relinquish()]
        holder = self.registry[ordered.waits_for].session
        return [*actions, *(self._give_back(holder, 0) if holder is not None else []), *self._relinquish()]

    # Streams that come and go

    def _close_claims(self, stream_ids: Iterable[int]) -> None:
        closing = list(stream_ids)
        if self.claims is not None:
            self.claims.close(closing, UNPLACED)
            self._closed_at |= dict.fromkeys(closing, self.next_sequence)

    def _let_go(self, ordered: Ordered) -> list[Action]:
        """Streams that are closing go when all that came of them is in order. What waits for its own stream only would
        wait for ever, if that goes on elsewhere: it is given up, and its producer, who has no ACK for it, sends it
        there again."""
        actions: list[Action] = []
        for stream_id in list(self.claims.closing) if self.claims is not None else ():
            if self._closed_at.get(stream_id, 0) > ordered.heard_end:
                continue
            if stream_id not in ordered.waiting:
                assert self.claims is not None
                self.claims.place(stream_id, ordered.end)
            elif ordered.waiting[stream_id] and stream_id not in self.given:
                self.given.add(stream_id)
                watermark = watermark_of(ordered.clocks[stream_id], self.declared.lateness_ns)
                actions += self._append(0, batch_of([given_row(stream_id, watermark)]), 0)
                self._closed_at[stream_id] = self.next_sequence
        return actions

    def _granted(self, stream_id: int, committed: int | None, clock: Clock | None) -> list[Action]:
        is_wanted = self.claims is not None and self.claims.is_wanted(stream_id)
        moved = self._take_over(stream_id, clock) if is_wanted else []
        return [*moved, *super()._granted(stream_id, committed, clock)]

    def _take_over(self, stream_id: int, clock: Clock | None) -> list[Action]:
        """The stream may have been elsewhere, or here: it goes on from what is known of it."""
        stream = self.registry.get_or_add(stream_id)
        stream.seen = stream.committed  # what had come here before, and was given up, comes again
        self.given.discard(stream_id)
        if clock is None or clock.is_ended or clock.seen is None:
            self.ended |= {stream_id} if clock is not None and clock.is_ended else set()
            return []
        watermark = watermark_of(clock, self.declared.lateness_ns)
        return self._append(0, batch_of([moved_row(stream_id, clock.seen, watermark)]), 0)

    @property
    def is_settled(self) -> bool:
        is_in_order = self.point.floor == self.next_sequence
        return not self.claims and is_in_order and self.snapshot.end_sequence == self.ordered_end

    def _hello(self, session: int, hello: Hello) -> list[Action]:
        if hello.version in draft.VERSIONS:
            raise RemoteProtocolError("the draft is not spoken where streams are put in the order of event time")
        return super()._hello(session, hello)

    def _notify(self, session: int, notify: Notify) -> list[Action]:
        if notify.stream_id not in self.declared.streams:
            raise RemoteProtocolError(f"stream {notify.stream_id} is not declared in the pipeline")
        if notify.stream_id in self.given and self.claims is not None and notify.stream_id in self.claims.closing:
            return self._refuse(session, notify)
        return super()._notify(session, notify)

    def _open(self, session: int, notify: Notify) -> list[Action]:
        self.sessions[session].streams.add(notify.stream_id)
        clock = self.clocks.get(notify.stream_id)
        if notify.point_of_reference == UNNUMBERED and clock is not None and clock.seen is not None:
            stream = self.registry.get_or_add(notify.stream_id)  # what came elsewhere counts as well
            stream.seen = clock.seen if stream.seen is None else max(stream.seen, clock.seen)
        return super()._open(session, notify)

    def _messages(self, session: int, messages: Messages) -> list[Action]:
        for stream_id in self.ended.intersection(np.unique(messages.stream_ids).tolist()) if self.ended else ():
            seen, ids = self.registry[stream_id].seen, messages.message_ids[messages.stream_ids == stream_id]
            if seen is None or int(ids.max()) > seen:
                # The merge has gone on without it: there is no place for more.
                raise RemoteProtocolError(f"stream {stream_id} has ended")
        return super()._messages(session, messages)

    def _ended(self, session: int, stream_id: int) -> list[Action]:
        stream = self.registry[stream_id]
        self.sessions[session].streams.discard(stream_id)
        if stream_id in self.ended and stream.seen == stream.committed:
            # It was sent again, after its commit: another row would wait for the end of all streams.
            stream.session = None
            told = [] if stream.committed is None else [(stream_id, stream.committed)]
            self.sessions[session].owed += 1
            self._close_claims([stream_id])
            return self._ack(session, told)
        actions = super()._ended(session, stream_id)
        stream.eos_sequence = UNPLACED
        self.ended.add(stream_id)
        return actions

    def _append(self, session: int, batch: pa.RecordBatch, frames: int) -> list[Action]:
        streams = batch.column("stream_id").to_numpy()
        sizes = np.where(batch.column("kind").to_numpy() == KIND_RECORD, row_sizes(batch), 0)
        ids = batch.column("message_id").to_numpy()
        account = self._account(session) if session in self.sessions else None
        if session in self.sessions:
            self.sessions[session].has_sent |= bool(sizes.any())
        for stream_id in np.unique(streams).tolist() if sizes.any() else ():
            own = np.flatnonzero((streams == stream_id) & (sizes > 0))
            if len(own):
                self.shares.receive(stream_id, int(ids[own[-1]]), int(sizes[own].sum()), account)
        return super()._append(session, batch, frames)

    def holds(self, session: int) -> bool:
        return super().holds(session) and (self.flow.is_disk_full or not self._is_spared(session))

    def _is_spared(self, session: int) -> bool:
        """Whether this session goes on when others wait: there is some of the reserve left on its account; or it has
        sent nothing yet, and may be about to say that it has the stream which nobody has."""
        account = self._account(session)
        is_new = account == NOBODY and not self.sessions[session].has_sent
        return is_new or (account is not None and self.shares.reserved.get(account, 0) < self.shares.reserve_bytes)

    def _account(self, session: int) -> int | None:
        """On whose account a session may go on: that of the stream that the merge waits for, if it has it. If nobody
        has, anybody may be about to ask for it."""
        waits_for = self.shares.waits_for
        if waits_for is None:
            return None
        if waits_for not in self.registry or self.registry[waits_for].session is None:
            return NOBODY
        return waits_for if waits_for in self.sessions[session].streams else None

    def _allowed(self, session: int) -> int:
        if self.flow.is_disk_short:
            return 0  # there is no reserve of what is not there
        return self.shares.allowed(self.sessions[session].streams, super()._allowed(session))

    def _retire(self) -> list[Action]:
        """Streams are declared, so there are only so many: none is retired."""
        return []

    def _snapshot(self, fence: int, epoch: int, end_sequence: int, positions: dict[int, int]) -> Snapshot:
        taken = super()._snapshot(fence, epoch, end_sequence, positions)
        return replace(taken, point=self.point, clocks=self.clocks)

    def _snapshot_written(self, snapshot: Snapshot) -> list[Action]:
        withheld = [number for number in self.sessions if not self._allowed(number)]
        self.shares.settle((stream_id, at.committed) for stream_id, at in snapshot.streams.items())
        actions = super()._snapshot_written(snapshot)
        freed = [number for number in withheld if number in self.sessions and self._is_owed(number, is_withheld=True)]
        return [*(action for number in freed for action in self._ack(number)), *actions]
