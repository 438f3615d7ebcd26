"""Event-time order: rows of many streams by (order time, stream id, message id), as far as it is final.

The one rule: a row is taken when nothing that may still come could stand before it, so the sequence of all that is ever
taken is a function of the streams alone. What is taken and what waits follows from the rows and a *point*: so a gateway
that begins anew goes on where its disk says. Before it the arrival log; after it the ordered log. Pure.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from procession.merge.stream_clocks import Bound, Clock, Clocks, Flags, Ids, Numbers, Signs
from procession.merge.waiting_rows import EMPTY, Key, Stack, Waiting
from procession.times import nanoseconds

NO_REFERENCE = 2**64 - 1
"""A row after which nothing new may be acknowledged."""

END_ID = 2**64 - 1
"""In the order, the end of a stream has this for a message id: it stands behind the last record."""


class Declared(NamedTuple):
    """What a pipeline says about the order of its streams."""

    streams: frozenset[int]
    lateness_ns: int = 0
    idle_timeout_s: float | None = None
    """Nobody waits longer for a stream from which nothing comes. Then two runs may differ."""

    def __str__(self) -> str:
        """In words that two who have declared the same have in common, and nobody else."""
        digest = hashlib.sha256(",".join(map(str, sorted(self.streams))).encode()).hexdigest()[:8]
        idle = "never idle" if self.idle_timeout_s is None else f"idle after {self.idle_timeout_s:g} s"
        return f"event time of {len(self.streams)} streams ({digest}), {self.lateness_ns / 1e9:g} s late, {idle}"


class Point(NamedTuple):
    """From here a restarted gateway reads the arrival log again."""

    floor: int = 0
    """All rows below this sequence are taken."""
    clocks: Mapping[int, Clock] = {}
    """The clocks of all streams there."""
    cut: Key | None = None
    """The last row that was taken: those up to it in the order are taken, too."""
    given: frozenset[int] = frozenset()
    """Streams that were given up, and have not come back: what was heard of them last is nobody's."""
    received: Mapping[int, int | None] = {}
    """The last id of each stream that came here since the stream did; None: none. What a clock has seen may have come
    elsewhere, and may have been given up there."""


class Heard(NamedTuple):
    """Rows of the arrival log, in columns, as they came."""

    stream_ids: Ids
    message_ids: Ids
    event_times: Numbers
    sizes: Numbers
    are_ends: Flags
    are_ticks: Flags
    are_given: Flags
    """The stream is given up here: what waits of it will come another way."""
    are_moved: Flags
    """The stream was elsewhere before: its watermark, and the last id that was heard of it there."""


class Taken(NamedTuple):
    """Rows that are in order for good."""

    rows: Stack
    references: Ids
    """The message id of its stream that may be acknowledged when the row and all before it are committed."""


@dataclass(slots=True)
class _Chunk:
    """Rows that were heard together."""

    end: int
    waiting: int
    clocks: dict[int, Clock]
    """Of the streams that have rows in it, after it."""
    received: dict[int, int | None]


@dataclass(slots=True)
class _Lead:
    """What is taken of a stream: all ids up to `safe`, and those `ahead` of one that waits."""

    safe: int | None = None
    ahead: Ids = field(default_factory=lambda: np.empty(0, np.uint64))


class EventOrder:
    def __init__(self, declared: Declared, point: Point | None = None, safe: Mapping[int, int] | None = None) -> None:
        """As a restarted gateway knows it: hear the arrival log from the point's floor on. `safe` are the references
        that were given last."""
        point = point or Point()
        self.clocks = Clocks(declared.streams, declared.lateness_ns, point.clocks)
        self.waiting = Waiting()
        self.heard_end = point.floor
        """Rows below it are taken, or wait."""
        self.late: Counter[int] = Counter()
        """Late rows of each stream, taken since the start: one that waits may still go to another gateway."""
        self.complete: Bound | None = None
        """All rows that will ever stand up to here are taken, but for more of the stream and time that it names."""
        self._cut = point.cut
        self._floor = point.floor
        self._given = set(point.given)
        self._floor_clocks = dict(point.clocks)
        self._floor_received = dict(point.received)
        self.received = dict(point.received)
        """The last id of each stream that came here since the stream did; None: none."""
        self._chunks: deque[_Chunk] = deque()
        self._leads = {stream_id: _Lead(at) for stream_id, at in (safe or {}).items()}

    @property
    def point(self) -> Point:
        given, received = frozenset(self._given), dict(self._floor_received)
        return Point(self._floor, dict(self._floor_clocks), self._cut, given, received)

    def hear(self, rows: Heard, *, is_again: bool = False) -> None:
        """The next rows of the arrival log; `is_again`: a restarted gateway hears them, and may have taken some."""
        count = len(rows.stream_ids)
        are_words = rows.are_ticks | rows.are_given | rows.are_moved
        signs = Signs(rows.are_ends, are_words, are_words & ~rows.are_moved)
        judged = self.clocks.judge(rows.stream_ids, rows.message_ids, rows.event_times, signs)
        stack = Stack(
            judged.order_times,
            rows.stream_ids,
            np.where(rows.are_ends, np.uint64(END_ID), rows.message_ids),
            np.arange(self.heard_end, self.heard_end + count, dtype=np.int64),
            rows.sizes,
            judged.are_late,
            rows.are_ends,
            rows.are_ticks,
        )
        is_left_out = judged.are_known | rows.are_given | rows.are_moved
        if is_again:
            is_taken = self._are_taken(stack) & ~is_left_out
            self._remember(stack.picked(is_taken & ~rows.are_ends & ~rows.are_ticks))
            is_left_out |= is_taken
        for row in np.flatnonzero(rows.are_given | rows.are_moved).tolist():
            is_left_out |= self._move(rows, row, is_again=is_again)
        self._remember(stack.picked(judged.are_known))
        stack = stack.picked(~is_left_out)
        self.heard_end += count
        changed = {int(one): self.clocks.known[int(one)] for one in np.unique(rows.stream_ids)}
        received = _received(rows)
        self.received |= received
        self._chunks.append(_Chunk(self.heard_end, len(stack), changed, received))
        self.waiting.add(stack)
        self._raise_floor()

    def _move(self, rows: Heard, row: int, *, is_again: bool) -> Flags:
        """A stream goes, or has come; gives which of these rows wait no longer for that."""
        stream_id = int(rows.stream_ids[row])
        if rows.are_given[row]:
            self._given.add(stream_id)
            self._let_go(self.waiting.remove(stream_id))
            is_gone: Flags = (rows.stream_ids == rows.stream_ids[row]) & (np.arange(len(rows.stream_ids)) < row)
            return is_gone
        self._given.discard(stream_id)
        if not is_again:
            self._leads.pop(stream_id, None)  # what is taken here now says nothing of what was before it came back
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
        """Rows that were taken before: those behind one that waits are ahead of what may be acknowledged."""
        if not self.clocks.lateness_ns:
            return
        for stream_id in np.unique(taken.stream_ids).tolist():
            ids = taken.message_ids[taken.stream_ids == stream_id]
            lead = self._leads.setdefault(stream_id, _Lead())
            is_ahead = ids > lead.safe if lead.safe is not None else np.ones(len(ids), np.bool_)
            lead.ahead = np.union1d(lead.ahead, ids[is_ahead])

    def take(self) -> Taken:
        """All rows whose place is settled."""
        bound = self.clocks.bound()
        self.complete = bound
        rows = EMPTY if bound is None else self.waiting.take(bound)
        if not len(rows):
            return Taken(EMPTY, np.empty(0, np.uint64))
        self._cut = rows.key(len(rows) - 1)
        if rows.are_late.any():
            self.late.update(rows.stream_ids[rows.are_late].tolist())
        self._let_go(rows.sequences)
        return Taken(rows, self._references(rows))

    def _let_go(self, sequences: Numbers) -> None:
        """These rows wait no longer."""
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
        """Without an allowed lateness a stream's rows are taken in the order of their ids, and each says its own."""
        is_record = ~(rows.are_ends | rows.are_ticks)
        if not self.clocks.lateness_ns:
            return np.where(is_record, rows.message_ids, np.uint64(NO_REFERENCE))
        references = np.full(len(rows), NO_REFERENCE, np.uint64)
        places = np.flatnonzero(is_record)
        streams = np.unique(rows.stream_ids[places])
        for stream_id, least in zip(streams.tolist(), self.waiting.least_ids(streams).tolist(), strict=True):
            own = places[rows.stream_ids[places] == stream_id]
            lead = self._leads.setdefault(stream_id, _Lead())
            references[own] = _led(lead, rows.message_ids[own], least)
        return references


def _received(rows: Heard) -> dict[int, int | None]:
    """Of streams that have come, gone or sent records in these rows: the last id since the stream came; None: none."""
    are_moves = rows.are_given | rows.are_moved
    places = np.flatnonzero(~(rows.are_ends | rows.are_ticks | are_moves))[::-1]
    streams, firsts = np.unique(rows.stream_ids[places], return_index=True)
    lasts = dict(zip(streams.tolist(), places[firsts].tolist(), strict=True))
    moves = {int(rows.stream_ids[row]): row for row in np.flatnonzero(are_moves).tolist()}
    received: dict[int, int | None] = {one: int(rows.message_ids[row]) for one, row in lasts.items()}
    return received | {one: None for one, row in moves.items() if lasts.get(one, -1) < row}


def _led(lead: _Lead, ids: Ids, least: int) -> Ids:
    """What may be acknowledged after each of these ids of one stream, taken in this order, while `least` waits."""
    known = np.concatenate((lead.ahead, ids))
    turns = np.concatenate((np.zeros(len(lead.ahead), np.int64), np.arange(1, len(ids) + 1)))
    order = np.argsort(known)
    known, turns = known[order], turns[order]
    settled = int(np.searchsorted(known, np.uint64(least), "left"))
    # An id may be told once it and all below it are taken.
    whole = np.maximum.accumulate(turns[:settled]) if settled else turns[:0]
    counts = np.searchsorted(whole, np.arange(1, len(ids) + 1), "right")
    before = NO_REFERENCE if lead.safe is None else lead.safe
    choices = np.concatenate((np.array([before], np.uint64), known[:settled]))
    lead.safe = int(choices[counts[-1]]) if counts[-1] else lead.safe
    lead.ahead = known[settled:]
    return choices[counts]


def declared_of(streams: Iterable[int], lateness_s: float, idle_timeout_s: float | None) -> Declared:
    """Seconds, as people write them."""
    return Declared(frozenset(streams), nanoseconds(lateness_s), idle_timeout_s)
