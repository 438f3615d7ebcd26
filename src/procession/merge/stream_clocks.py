"""Stream clocks: the event time of each stream, which records are late, and which stream a merge waits for. Pure.

Invariant: the result for a record depends only on earlier records of its own stream. So it is the same in every run,
regardless of other streams and of the gateway. `event_time` puts the records of all streams in one order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Ids = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

TIME_MIN = -(2**63)
TIME_MAX = 2**63 - 1
STREAM_MAX = 2**64 - 1


class WatermarkBound(NamedTuple):
    """A bound in the order: every later arrival comes after it, so records with an (order time, stream id) up to it are
    final."""

    time: int
    stream_id: int


ALL = WatermarkBound(TIME_MAX, STREAM_MAX)


@dataclass(frozen=True, slots=True)
class StreamClock:
    """The clock of one stream: its largest event time, and whether it has ended. An ended stream delays no merge."""

    time: int
    is_ended: bool = False
    seen: int | None = None
    """The largest message id. A stream that moves to another gateway replays smaller ids if some of its rows still
    waited."""

    def later(self, other: StreamClock | None) -> StreamClock:
        """Combine two clocks of one stream, made from different parts of it."""
        if other is None:
            return self
        ids = [clock.seen for clock in (self, other) if clock.seen is not None]
        return StreamClock(max(self.time, other.time), self.is_ended or other.is_ended, max(ids, default=None))


class JudgedRows(NamedTuple):
    """The result for rows, in arrival order."""

    order_times: Numbers
    """The time by which each row is ordered: its event time, or its stream's watermark if that is later."""
    are_late: Flags
    are_known: Flags
    """Rows that the stream's previous gateway has emitted. They are replayed because an earlier row was not emitted."""


class RowKinds(NamedTuple):
    """Which rows are not records: the ends of streams, and watermark updates."""

    are_ends: Flags
    are_ticks: Flags
    """Raise the stream's watermark to at least their time: the stream is idle, or moved here."""
    are_idle: Flags
    """The watermark updates without a message id."""


class StreamClocks:
    """The clocks of a declared set of streams."""

    def __init__(
        self, streams: Iterable[int], lateness_ns: int = 0, known: Mapping[int, StreamClock] | None = None
    ) -> None:
        self.streams = frozenset(streams)
        self.lateness_ns = lateness_ns
        self.known: dict[int, StreamClock] = dict(known or {})
        """The clocks of records that arrived at this gateway. Only these decide whether a record is late."""
        self._remote: dict[int, StreamClock] = {}

    def add_remote(self, clocks: Mapping[int, StreamClock]) -> None:
        """Add other gateways' clocks. A merge does not wait for a stream that is further at another gateway."""
        for stream_id, clock in clocks.items():
            if (known := self.known.get(stream_id)) is not None and known == known.later(clock):
                self._remote.pop(stream_id, None)
            else:
                self._remote[stream_id] = clock.later(self._remote.get(stream_id))

    def reached(self, stream_id: int) -> StreamClock | None:
        """Return the latest clock of a stream, from any gateway."""
        clock = self.known.get(stream_id)
        return self._remote.get(stream_id) if clock is None else clock.later(self._remote.get(stream_id))

    def all_reached(self) -> dict[int, StreamClock]:
        known = {stream_id: self.reached(stream_id) for stream_id in (*self.known, *self._remote)}
        return {stream_id: clock for stream_id, clock in known.items() if clock is not None}

    def watermark(self, stream_id: int) -> int | None:
        """Return the stream's watermark: every record before it is late. None before the stream's first row."""
        clock = self.reached(stream_id)
        return None if clock is None else watermark_of(clock, self.lateness_ns)

    def judge(self, stream_ids: Ids, message_ids: Ids, event_times: Numbers, kinds: RowKinds) -> JudgedRows:
        """Update the clocks with rows in arrival order. Returns the result for each row."""
        count = len(event_times)
        judged = JudgedRows(event_times.copy(), np.zeros(count, np.bool_), np.zeros(count, np.bool_))
        by_stream = np.argsort(stream_ids, kind="stable")
        of_stream = stream_ids[by_stream]
        edges = np.flatnonzero(of_stream[1:] != of_stream[:-1]) + 1
        for rows in np.split(by_stream, edges) if len(by_stream) else ():
            times, are_ends, are_quiet = event_times[rows], kinds.are_ends[rows], kinds.are_ticks[rows]
            if self.lateness_ns and are_quiet.any():
                times[are_quiet] = np.minimum(times[are_quiet], TIME_MAX - self.lateness_ns) + self.lateness_ns
            stream_id = int(stream_ids[rows[0]])
            seen, are_again = self._count(stream_id, message_ids[rows], are_ends | kinds.are_idle[rows])
            self._judge_stream(stream_id, rows, times, are_ends, are_again & ~are_quiet, judged)
            self.known[stream_id] = replace(self.known[stream_id], seen=seen)
            judged.are_late[rows[are_quiet]] = False
        return judged

    def _count(self, stream_id: int, ids: Ids, are_without_id: Flags) -> tuple[int | None, Flags]:
        """Return the largest id so far, and which rows have an id that is not larger than an earlier one."""
        clock = self.known.get(stream_id)
        before = None if clock is None else clock.seen
        if are_without_id.all():
            return before, np.zeros(len(ids), np.bool_)
        ids = np.where(are_without_id, np.uint64(before or 0), ids)
        running = np.maximum.accumulate(np.concatenate((np.array([before or 0], np.uint64), ids)))
        are_again: Flags = (ids <= running[:-1]) & ~are_without_id
        if before is None:
            are_again[int(np.argmin(are_without_id))] = False  # the first id is always new
        return int(running[-1]), are_again

    def _judge_stream(
        self, stream_id: int, rows: Numbers, times: Numbers, are_ends: Flags, are_again: Flags, judged: JudgedRows
    ) -> None:
        clock = self.known.get(stream_id)
        is_over = clock is not None and clock.is_ended
        ends = np.flatnonzero(are_ends)
        count = 0 if is_over else int(ends[0]) if len(ends) else len(rows)
        before = TIME_MIN if clock is None else clock.time
        # The largest time before each row, then the largest of all.
        reached = np.maximum.accumulate(np.concatenate((np.array([before], np.int64), times[:count])))
        floor = np.maximum(reached[:-1], TIME_MIN + self.lateness_ns) - self.lateness_ns
        # Replayed rows up to the watermark were emitted by the stream's previous gateway.
        are_known = are_again[:count] & (times[:count] <= floor)
        judged.are_known[rows[:count]] = are_known
        judged.are_late[rows[:count]] = (times[:count] < floor) & ~are_known
        judged.order_times[rows[:count]] = np.maximum(judged.order_times[rows[:count]], floor)
        # The end comes after all rows of its stream; rows after the end come after all rows of all streams.
        judged.order_times[rows[count:]] = TIME_MAX
        judged.are_late[rows[count:]] = ~are_ends[count:]
        if count < len(rows) and not is_over:
            judged.order_times[rows[count]] = reached[-1]
        self.known[stream_id] = StreamClock(int(reached[-1]), is_over or count < len(rows))

    def bound(self) -> WatermarkBound | None:
        """Return the bound up to which records are final; None while a stream has no watermark."""
        slowest = self.slowest()
        if slowest is None:
            return ALL
        watermark = self.watermark(slowest)
        return None if watermark is None else WatermarkBound(watermark, slowest)

    def slowest(self, besides: frozenset[int] = frozenset()) -> int | None:
        """Return the stream that the others wait for. Streams without a watermark come first. None: all streams have
        ended."""
        silent = self.streams - besides - self.known.keys() - self._remote.keys()
        if silent:
            return min(silent)
        reached = ((self.reached(stream_id), stream_id) for stream_id in self.streams - besides)
        times = ((clock.time, stream_id) for clock, stream_id in reached if clock is not None and not clock.is_ended)
        return min(times, default=(0, None))[1]

    def tick(self, idle: frozenset[int]) -> int | None:
        """Return the watermark that idle streams need so that no merge waits for them. None: no merge waits."""
        slowest = self.slowest(besides=idle)
        if slowest is None:
            time = max((clock.time for clock in self.known.values()), default=None)
        else:
            time = self.watermark(slowest)
        return None if time is None else min(time, TIME_MAX - 1) + 1


def watermark_of(clock: StreamClock, lateness_ns: int) -> int:
    return TIME_MAX if clock.is_ended else max(clock.time - lateness_ns, TIME_MIN)
