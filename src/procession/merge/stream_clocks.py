"""Stream clocks: how far each stream is in event time, which records are late, and whom a merge waits for. Pure.

The one rule: what is said of a record depends on its own stream's records before it and on nothing else, so it is the
same in every run, whatever came of other streams meanwhile, and through whichever gateway. Before it the arrival log;
after it `event_time`, which puts the records of all streams in one order.
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


class Bound(NamedTuple):
    """Whatever may still come stands behind these: records with an (order time, stream id) up to it may be taken."""

    time: int
    stream_id: int


ALL = Bound(TIME_MAX, STREAM_MAX)


@dataclass(frozen=True, slots=True)
class Clock:
    """One stream: its largest event time, and whether it has ended. A stream that has ended waits for nothing."""

    time: int
    is_ended: bool = False
    seen: int | None = None
    """The largest message id: a stream that goes on elsewhere comes again from below it, if some of it had to wait."""

    def later(self, other: Clock | None) -> Clock:
        """What two know of one stream who heard different parts of it."""
        if other is None:
            return self
        ids = [one.seen for one in (self, other) if one.seen is not None]
        return Clock(max(self.time, other.time), self.is_ended or other.is_ended, max(ids, default=None))


class Judged(NamedTuple):
    """What is said of rows, in the order in which they came."""

    order_times: Numbers
    """The time by which each is put in order: its event time, or its stream's watermark if that is later."""
    are_late: Flags
    are_known: Flags
    """They were taken where their stream was before, and are sent again because one below them was not."""


class Signs(NamedTuple):
    """Which rows are no records: the ends of streams, and words about a watermark."""

    are_ends: Flags
    are_ticks: Flags
    """Their stream's watermark is to be no less than their time: nobody waits for it, or it was here before."""
    are_idle: Flags
    """Those among them that say nothing of message ids."""


class Clocks:
    """The clocks of a declared set of streams."""

    def __init__(self, streams: Iterable[int], lateness_ns: int = 0, known: Mapping[int, Clock] | None = None) -> None:
        self.streams = frozenset(streams)
        self.lateness_ns = lateness_ns
        self.known: dict[int, Clock] = dict(known or {})
        """What was heard here: by these clocks, and no others, records are judged."""
        self._told: dict[int, Clock] = {}

    def tell(self, clocks: Mapping[int, Clock]) -> None:
        """What others have heard of streams. Nobody waits for a stream that is known, by anybody, to be further."""
        for stream_id, clock in clocks.items():
            if (known := self.known.get(stream_id)) is not None and known == known.later(clock):
                self._told.pop(stream_id, None)
            else:
                self._told[stream_id] = clock.later(self._told.get(stream_id))

    def reached(self, stream_id: int) -> Clock | None:
        """How far a stream has come, whoever heard it."""
        clock = self.known.get(stream_id)
        return self._told.get(stream_id) if clock is None else clock.later(self._told.get(stream_id))

    def all_reached(self) -> dict[int, Clock]:
        known = {one: self.reached(one) for one in (*self.known, *self._told)}
        return {one: clock for one, clock in known.items() if clock is not None}

    def watermark(self, stream_id: int) -> int | None:
        """No record of the stream that is not late is before it; None: it has said nothing yet."""
        clock = self.reached(stream_id)
        return None if clock is None else watermark_of(clock, self.lateness_ns)

    def judge(self, stream_ids: Ids, message_ids: Ids, event_times: Numbers, signs: Signs) -> Judged:
        """Hear rows in the order in which they came."""
        count = len(event_times)
        judged = Judged(event_times.copy(), np.zeros(count, np.bool_), np.zeros(count, np.bool_))
        by_stream = np.argsort(stream_ids, kind="stable")
        of_stream = stream_ids[by_stream]
        edges = np.flatnonzero(of_stream[1:] != of_stream[:-1]) + 1
        for rows in np.split(by_stream, edges) if len(by_stream) else ():
            times, are_ends, are_quiet = event_times[rows], signs.are_ends[rows], signs.are_ticks[rows]
            if self.lateness_ns and are_quiet.any():
                times[are_quiet] = np.minimum(times[are_quiet], TIME_MAX - self.lateness_ns) + self.lateness_ns
            stream_id = int(stream_ids[rows[0]])
            seen, are_again = self._count(stream_id, message_ids[rows], are_ends | signs.are_idle[rows])
            self._hear(stream_id, rows, times, are_ends, are_again & ~are_quiet, judged)
            self.known[stream_id] = replace(self.known[stream_id], seen=seen)
            judged.are_late[rows[are_quiet]] = False
        return judged

    def _count(self, stream_id: int, ids: Ids, say_nothing: Flags) -> tuple[int | None, Flags]:
        """The largest id so far, and which rows bring one that is no larger than one before."""
        clock = self.known.get(stream_id)
        before = None if clock is None else clock.seen
        if say_nothing.all():
            return before, np.zeros(len(ids), np.bool_)
        ids = np.where(say_nothing, np.uint64(before or 0), ids)
        running = np.maximum.accumulate(np.concatenate((np.array([before or 0], np.uint64), ids)))
        are_again: Flags = (ids <= running[:-1]) & ~say_nothing
        if before is None:
            are_again[int(np.argmin(say_nothing))] = False  # there is none before the first
        return int(running[-1]), are_again

    def _hear(
        self, stream_id: int, rows: Numbers, times: Numbers, are_ends: Flags, are_again: Flags, judged: Judged
    ) -> None:
        clock = self.known.get(stream_id)
        is_over = clock is not None and clock.is_ended
        ends = np.flatnonzero(are_ends)
        heard = 0 if is_over else int(ends[0]) if len(ends) else len(rows)
        before = TIME_MIN if clock is None else clock.time
        # The largest time before each row, then the largest of all that are heard.
        reached = np.maximum.accumulate(np.concatenate((np.array([before], np.int64), times[:heard])))
        floor = np.maximum(reached[:-1], TIME_MIN + self.lateness_ns) - self.lateness_ns
        # Of what comes again, all up to the watermark was taken: its stream moved when it was.
        are_known = are_again[:heard] & (times[:heard] <= floor)
        judged.are_known[rows[:heard]] = are_known
        judged.are_late[rows[:heard]] = (times[:heard] < floor) & ~are_known
        judged.order_times[rows[:heard]] = np.maximum(judged.order_times[rows[:heard]], floor)
        # The end stands behind all of its stream, and what comes on a stream that has ended behind all of all streams.
        judged.order_times[rows[heard:]] = TIME_MAX
        judged.are_late[rows[heard:]] = ~are_ends[heard:]
        if heard < len(rows) and not is_over:
            judged.order_times[rows[heard]] = reached[-1]
        self.known[stream_id] = Clock(int(reached[-1]), is_over or heard < len(rows))

    def bound(self) -> Bound | None:
        """How far records may be taken; None: a stream has said nothing yet."""
        slowest = self.slowest()
        if slowest is None:
            return ALL
        watermark = self.watermark(slowest)
        return None if watermark is None else Bound(watermark, slowest)

    def slowest(self, besides: frozenset[int] = frozenset()) -> int | None:
        """The stream that the others wait for; one that has said nothing before all others. None: all have ended."""
        silent = self.streams - besides - self.known.keys() - self._told.keys()
        if silent:
            return min(silent)
        reached = ((self.reached(one), one) for one in self.streams - besides)
        times = ((clock.time, one) for clock, one in reached if clock is not None and not clock.is_ended)
        return min(times, default=(0, None))[1]

    def tick(self, idle: frozenset[int]) -> int | None:
        """The least watermark that idle streams must have so that nobody waits for them; None: they hold nobody up."""
        slowest = self.slowest(besides=idle)
        if slowest is None:
            time = max((clock.time for clock in self.known.values()), default=None)
        else:
            time = self.watermark(slowest)
        return None if time is None else min(time, TIME_MAX - 1) + 1


def watermark_of(clock: Clock, lateness_ns: int) -> int:
    return TIME_MAX if clock.is_ended else max(clock.time - lateness_ns, TIME_MIN)
