"""Measures time fairly on a busy machine: seconds without CPU time for the parts do not count. Linux only (/proc).

Invariant: a second in which our threads waited for a core counts only by the share that they got; a second in which
all of them slept counts in full. So a part that hangs reaches its deadline on any machine, and a part that only lacks
CPU time does not. Only threads that existed at the last reading of the kernel's schedstat count, with their use since
then. The monitor's deadlines use the clock.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from procession.supervisor import cleanup

NS = 1_000_000_000


class CpuTimeReader:
    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}

    def measure(self, sessions: Collection[int]) -> CpuTime:
        """Return the CPU time of these sessions since the last call; zero if the kernel does not report it."""
        seen = {}
        for entry in cleanup.processes():
            if entry.session in sessions:
                seen.update(_threads(entry.pid))
        both = [(seen[thread], self._seen[thread]) for thread in seen.keys() & self._seen.keys()]
        self._seen = seen
        ran = sum(now[0] - before[0] for now, before in both)
        waited = sum(now[1] - before[1] for now, before in both)
        return CpuTime(ran / NS, waited / NS)


def _threads(pid: int) -> dict[str, tuple[int, int]]:
    found = {}
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError, ValueError):
                ran, waited, _slices = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()
                found[thread] = (int(ran), int(waited))
    return found


SHARE_MIN = 0.1
"""Minimum share with which a second counts, so that deadlines also end on a busy machine."""
CPU_TIME_S_MIN = 0.01
"""CPU time plus waiting time per second below which a second counts in full."""


class CpuTime(NamedTuple):
    """The time that our threads ran, and that they waited for a core, since the last call."""

    ran_s: float = 0.0
    waited_s: float = 0.0


class FairClock:
    """A clock that is read with `tick` about once per second. `between` returns the time that the parts really
    had."""

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
