"""Clocks: how far each stream has come in event time, which of its records are late, and whom a merge waits for. Pure.

The one rule: what is said of a record depends on its own stream's records before it and on nothing else, so it is the
same in every run, whatever came of other streams meanwhile, and through whichever gateway. Before it the arrival log;
after it `eventorder`, which puts the records of all streams in one order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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


class Judged(NamedTuple):
    """What is said of rows, in the order in which they came."""

    order_times: Numbers
    """The time by which each is put in order: its event time, or its stream's watermark if that is later."""
    are_late: Flags


class Clocks:
    """The clocks of a declared set of streams."""

    def __init__(self, streams: Iterable[int], lateness_ns: int = 0, known: Mapping[int, Clock] | None = None) -> None:
        self.streams = frozenset(streams)
        self.lateness_ns = lateness_ns
        self.known: dict[int, Clock] = dict(known or {})

    def watermark(self, stream_id: int) -> int | None:
        """No record of the stream that is not late is before it; None: it has said nothing yet."""
        clock = self.known.get(stream_id)
        if clock is None:
            return None
        return TIME_MAX if clock.is_ended else max(clock.time - self.lateness_ns, TIME_MIN)

    def judge(self, stream_ids: Ids, event_times: Numbers, are_ends: Flags, are_ticks: Flags) -> Judged:
        """Hear rows in the order in which they came. `are_ends` say that their stream has ended, `are_ticks` that its
        watermark is to be no less than their time, because nobody waits for it any longer."""
        judged = Judged(event_times.copy(), np.zeros(len(event_times), np.bool_))
        by_stream = np.argsort(stream_ids, kind="stable")
        of_stream = stream_ids[by_stream]
        edges = np.flatnonzero(of_stream[1:] != of_stream[:-1]) + 1
        for rows in np.split(by_stream, edges) if len(by_stream) else ():
            times, are_quiet = event_times[rows], are_ticks[rows]
            if self.lateness_ns and are_quiet.any():
                times[are_quiet] = np.minimum(times[are_quiet], TIME_MAX - self.lateness_ns) + self.lateness_ns
            self._hear(int(stream_ids[rows[0]]), rows, times, are_ends[rows], judged)
            judged.are_late[rows[are_quiet]] = False
        return judged

    def _hear(self, stream_id: int, rows: Numbers, times: Numbers, are_ends: Flags, judged: Judged) -> None:
        clock = self.known.get(stream_id)
        is_over = clock is not None and clock.is_ended
        ends = np.flatnonzero(are_ends)
        heard = 0 if is_over else int(ends[0]) if len(ends) else len(rows)
        before = TIME_MIN if clock is None else clock.time
        # The largest time before each row, then the largest of all that are heard.
        reached = np.maximum.accumulate(np.concatenate((np.array([before], np.int64), times[:heard])))
        floor = np.maximum(reached[:-1], TIME_MIN + self.lateness_ns) - self.lateness_ns
        judged.are_late[rows[:heard]] = times[:heard] < floor
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
        silent = self.streams - besides - self.known.keys()
        if silent:
            return min(silent)
        times = ((self.known[one].time, one) for one in self.streams - besides if not self.known[one].is_ended)
        return min(times, default=(0, None))[1]

    def tick(self, idle: frozenset[int]) -> int | None:
        """The least watermark that idle streams must have so that nobody waits for them; None: they hold nobody up."""
        slowest = self.slowest(besides=idle)
        if slowest is None:
            time = max((clock.time for clock in self.known.values()), default=None)
        else:
            time = self.watermark(slowest)
        return None if time is None else min(time, TIME_MAX - 1) + 1
