"""Event-time order: emits rows of many streams by (order time, stream id, message id) once their place is final. Pure.

Invariant: a row is emitted when no later arrival can come before it, so the emitted sequence is a function of the
streams alone. The state follows from the arrival log and a *replay point*, so a restarted gateway can continue from its
disk. The gateway passes rows of the arrival log, and writes the result to the ordered log.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from procession.merge.stream_clocks import Flags, Ids, Numbers, RowKinds, StreamClock, StreamClocks, WatermarkBound
from procession.merge.waiting_rows import EMPTY, Key, Stack, Waiting
from procession.times import nanoseconds

NO_REFERENCE = 2**64 - 1
"""The reference of a row after which nothing new may be acknowledged."""

END_ID = 2**64 - 1
"""The message id of a stream's end in the order, so that it comes after the last record."""


class DeclaredOrder(NamedTuple):
    """The order that a pipeline declares for its streams."""

    streams: frozenset[int]
    lateness_ns: int = 0
    idle_timeout_s: float | None = None
    """Time after which a silent stream no longer holds back the watermark. With it, two runs may differ."""

    def __str__(self) -> str:
        """Return a text that is equal exactly for equal declarations."""
        digest = hashlib.sha256(",".join(map(str, sorted(self.streams))).encode()).hexdigest()[:8]
        idle = "never idle" if self.idle_timeout_s is None else f"idle after {self.idle_timeout_s:g} s"
        return f"event time of {len(self.streams)} streams ({digest}), {self.lateness_ns / 1e9:g} s late, {idle}"


class ReplayPoint(NamedTuple):
    """The point at which a restarted gateway starts to replay the arrival log."""

    floor: int = 0
    """All rows below this sequence number are emitted."""
    clocks: Mapping[int, StreamClock] = {}
    """The clocks of all streams at the floor."""
    cut: Key | None = None
    """The last emitted row. All rows before it in the order are emitted, too."""
    moved_away: frozenset[int] = frozenset()
    """Streams that moved to another gateway and have not come back. Their last waiting rows are discarded here."""
    received: Mapping[int, int | None] = {}
    """The last message id of each stream that arrived at this gateway since the stream came here; None if there is
    none. A clock may have a larger id, from another gateway."""


class ArrivedRows(NamedTuple):
    """Rows of the arrival log, in columns, in arrival order."""

    stream_ids: Ids
    message_ids: Ids
    event_times: Numbers
    sizes: Numbers
    are_ends: Flags
    are_ticks: Flags
    are_moves_out: Flags
    """The stream leaves this gateway: its waiting rows will arrive at another gateway."""
    are_moves_in: Flags
    """The stream arrives from another gateway, with its watermark and the last message id there."""


class OrderedRows(NamedTuple):
    """Rows whose order is final."""

    rows: Stack
    references: Ids
    """The message id of the row's stream that may be acknowledged when this row and all earlier rows are committed."""


@dataclass(slots=True)
class _Chunk:
    """Rows that arrived together."""

    end: int
    waiting: int
    clocks: dict[int, StreamClock]
    """The clocks of its streams, after the chunk."""
    received: dict[int, int | None]


@dataclass(slots=True)
class _Lead:
    """The emitted rows of a stream: all ids up to `safe`, and the ids `ahead` of a waiting row."""

    safe: int | None = None
    ahead: Ids = field(default_factory=lambda: np.empty(0, np.uint64))


class EventOrder:
    def __init__(
        self, declared: DeclaredOrder, point: ReplayPoint | None = None, safe: Mapping[int, int] | None = None
    ) -> None:
        """Start from a replay point. The caller then replays the arrival log from its floor. `safe` holds the last
        references per stream."""
        point = point or ReplayPoint()
        self.clocks = StreamClocks(declared.streams, declared.lateness_ns, point.clocks)
        self.waiting = Waiting()
        self.observed_end = point.floor
        """Rows below this sequence number are emitted or waiting."""
        self.late: Counter[int] = Counter()
        """Late rows of each stream, emitted since the start. A waiting row may still go to another gateway."""
        self.complete: WatermarkBound | None = None
        """All rows up to this bound are emitted, except further rows of the bound's own stream and time."""
        self._cut = point.cut
        self._floor = point.floor
        self._moved_away = set(point.moved_away)
        self._floor_clocks = dict(point.clocks)
        self._floor_received = dict(point.received)
        self.received = dict(point.received)
        """The last message id of each stream that arrived at this gateway since the stream came here; None if there is
        none."""
        self._chunks: deque[_Chunk] = deque()
        self._leads = {stream_id: _Lead(at) for stream_id, at in (safe or {}).items()}

    @property
    def point(self) -> ReplayPoint:
        moved_away, received = frozenset(self._moved_away), dict(self._floor_received)
        return ReplayPoint(self._floor, dict(self._floor_clocks), self._cut, moved_away, received)

    def observe(self, rows: ArrivedRows, *, is_again: bool = False) -> None:
        """Add the next rows of the arrival log. `is_again`: a restarted gateway replays them; some may be emitted."""
        count = len(rows.stream_ids)
        are_notices = rows.are_ticks | rows.are_moves_out | rows.are_moves_in
        kinds = RowKinds(rows.are_ends, are_notices, are_notices & ~rows.are_moves_in)
        judged = self.clocks.judge(rows.stream_ids, rows.message_ids, rows.event_times, kinds)
        stack = Stack(
            judged.order_times,
            rows.stream_ids,
            np.where(rows.are_ends, np.uint64(END_ID), rows.message_ids),
            np.arange(self.observed_end, self.observed_end + count, dtype=np.int64),
            rows.sizes,
            judged.are_late,
            rows.are_ends,
            rows.are_ticks,
        )
        is_left_out = judged.are_known | rows.are_moves_out | rows.are_moves_in
        if is_again:
            is_taken = self._are_taken(stack) & ~is_left_out
            self._remember(stack.picked(is_taken & ~rows.are_ends & ~rows.are_ticks))
            is_left_out |= is_taken
        for row in np.flatnonzero(rows.are_moves_out | rows.are_moves_in).tolist():
            is_left_out |= self._move(rows, row, is_again=is_again)
        self._remember(stack.picked(judged.are_known))
        stack = stack.picked(~is_left_out)
        self.observed_end += count
        changed = {int(stream_id): self.clocks.known[int(stream_id)] for stream_id in np.unique(rows.stream_ids)}
        received = _received(rows)
        self.received |= received
        self._chunks.append(_Chunk(self.observed_end, len(stack), changed, received))
        self.waiting.add(stack)
        self._raise_floor()

    def _move(self, rows: ArrivedRows, row: int, *, is_again: bool) -> Flags:
        """Handle a stream that leaves or arrives. Returns which of these rows no longer wait."""
        stream_id = int(rows.stream_ids[row])
        if rows.are_moves_out[row]:
            self._moved_away.add(stream_id)
            self._let_go(self.waiting.remove(stream_id))
            is_gone: Flags = (rows.stream_ids == rows.stream_ids[row]) & (np.arange(len(rows.stream_ids)) < row)
            return is_gone
        self._moved_away.discard(stream_id)
        if not is_again:
            self._leads.pop(stream_id, None)  # later output says nothing about the time before the stream came back
        return np.zeros(len(rows.stream_ids), np.bool_)

    def _are_taken(self, stack: Stack) -> Flags:
        if self._cut is None:
            return np.zeros(len(stack), np.bool_)
        time, stream, message = self._cut
        streams, ids = stack.stream_ids, stack.message_ids
        is_before: Flags = (streams < stream) | ((streams == stream) & (ids <= message))
        are_taken: Flags = (stack.order_times < time) | ((stack.order_times == time) & is_before)
        return are_taken

    def _remember(self, taken: Stack) -> None:
        """Record rows that were emitted before a restart. Rows after a waiting row cannot be acknowledged yet."""
        if not self.clocks.lateness_ns:
            return
        for stream_id in np.unique(taken.stream_ids).tolist():
            ids = taken.message_ids[taken.stream_ids == stream_id]
            lead = self._leads.setdefault(stream_id, _Lead())
            is_ahead = ids > lead.safe if lead.safe is not None else np.ones(len(ids), np.bool_)
            lead.ahead = np.union1d(lead.ahead, ids[is_ahead])

    def take(self) -> OrderedRows:
        """Emit all rows whose order is final."""
        bound = self.clocks.bound()
        self.complete = bound
        rows = EMPTY if bound is None else self.waiting.take(bound)
        if not len(rows):
            return OrderedRows(EMPTY, np.empty(0, np.uint64))
        self._cut = rows.key(len(rows) - 1)
        if rows.are_late.any():
            self.late.update(rows.stream_ids[rows.are_late].tolist())
        self._let_go(rows.sequences)
        return OrderedRows(rows, self._references(rows))

    def _let_go(self, sequences: Numbers) -> None:
        """Record that these rows no longer wait."""
        ends = np.fromiter((chunk.end for chunk in self._chunks), np.int64, len(self._chunks))
        numbers = np.searchsorted(ends, sequences, "right")
        for number, count in zip(*np.unique(numbers, return_counts=True), strict=True):
            self._chunks[number].waiting -= int(count)
        self._raise_floor()

    def _raise_floor(self) -> None:
        while self._chunks and not self._chunks[0].waiting:
            chunk = self._chunks.popleft()
            self._floor = chunk.end
            self._floor_clocks |= chunk.clocks
            self._floor_received |= chunk.received

    def _references(self, rows: Stack) -> Ids:
        """Return the reference of each row. Without lateness it is the row's own id, because rows are emitted in id
        order."""
        is_record = ~(rows.are_ends | rows.are_ticks)
        if not self.clocks.lateness_ns:
            return np.where(is_record, rows.message_ids, np.uint64(NO_REFERENCE))
        references = np.full(len(rows), NO_REFERENCE, np.uint64)
        places = np.flatnonzero(is_record)
        streams = np.unique(rows.stream_ids[places])
        for stream_id, least in zip(streams.tolist(), self.waiting.least_ids(streams).tolist(), strict=True):
            own_places = places[rows.stream_ids[places] == stream_id]
            lead = self._leads.setdefault(stream_id, _Lead())
            references[own_places] = _led(lead, rows.message_ids[own_places], least)
        return references


def _received(rows: ArrivedRows) -> dict[int, int | None]:
    """Return the last id of each stream in these rows since the stream arrived; None if there is none."""
    are_moves = rows.are_moves_out | rows.are_moves_in
    places = np.flatnonzero(~(rows.are_ends | rows.are_ticks | are_moves))[::-1]
    streams, firsts = np.unique(rows.stream_ids[places], return_index=True)
    lasts = dict(zip(streams.tolist(), places[firsts].tolist(), strict=True))
    moves = {int(rows.stream_ids[row]): row for row in np.flatnonzero(are_moves).tolist()}
    received: dict[int, int | None] = {stream_id: int(rows.message_ids[row]) for stream_id, row in lasts.items()}
    return received | {stream_id: None for stream_id, row in moves.items() if lasts.get(stream_id, -1) < row}


def _led(lead: _Lead, ids: Ids, least: int) -> Ids:
    """Return the id to acknowledge after each of these ids of a stream, which are emitted in this order while `least`
    waits."""
    known = np.concatenate((lead.ahead, ids))
    turns = np.concatenate((np.zeros(len(lead.ahead), np.int64), np.arange(1, len(ids) + 1)))
    order = np.argsort(known)
    known, turns = known[order], turns[order]
    settled = int(np.searchsorted(known, np.uint64(least), "left"))
    # An id may be acknowledged when it and all lower ids are emitted.
    whole = np.maximum.accumulate(turns[:settled]) if settled else turns[:0]
    counts = np.searchsorted(whole, np.arange(1, len(ids) + 1), "right")
    before = NO_REFERENCE if lead.safe is None else lead.safe
    choices = np.concatenate((np.array([before], np.uint64), known[:settled]))
    lead.safe = int(choices[counts[-1]]) if counts[-1] else lead.safe
    lead.ahead = known[settled:]
    return choices[counts]


def declared_of(streams: Iterable[int], lateness_s: float, idle_timeout_s: float | None) -> DeclaredOrder:
    """Create a declared order from seconds."""
    return DeclaredOrder(frozenset(streams), nanoseconds(lateness_s), idle_timeout_s)
