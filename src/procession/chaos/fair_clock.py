"""The fair clock: how much CPU time the parts could really use on a busy machine. Pure.

Invariant: a second in which our threads wanted a core and had to wait counts only by the share that they got; a second
in which they all slept counts in full. So a part that hangs reaches its deadline on any machine, and one that merely
gets no CPU does not. `chaos/cpu_time` reads the kernel's counters; the monitor's deadlines use the clock.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

SHARE_MIN = 0.1
"""Minimum share that a second counts, so that deadlines end on a busy machine too."""
CPU_TIME_S_MIN = 0.01
"""Work per second below which nothing counts as waiting."""


class CpuTime(NamedTuple):
    """The time that our threads ran, and that they waited for a core, since the last call."""

    ran_s: float = 0.0
    waited_s: float = 0.0


class FairClock:
    """Call `tick` about once per second; `between` then returns the time that the parts really had."""

    def __init__(self, now: float) -> None:
        self._times = [now]
        self._lost = [0.0]

    def tick(self, now: float, cpu_time: CpuTime) -> None:
        wanted = cpu_time.ran_s + cpu_time.waited_s
        share = max(SHARE_MIN, cpu_time.ran_s / wanted) if wanted > CPU_TIME_S_MIN else 1.0
        self._lost.append(self._lost[-1] + (1 - share) * (now - self._times[-1]))
        self._times.append(now)

    def between(self, start: float, end: float) -> float:
        """Return the seconds from `start` to `end` minus the lost time. Negative if `end` is before `start`."""
        return end - start - (self._lost_at(end) - self._lost_at(start)) if end > start else end - start

    def _lost_at(self, at: float) -> float:
        number = bisect_right(self._times, at)
        if number == 0:
            return 0.0
        if number == len(self._times):
            return self._lost[-1]
        before, after = self._times[number - 1], self._times[number]
        part = (at - before) / (after - before)
        return self._lost[number - 1] + part * (self._lost[number] - self._lost[number - 1])
