"""The fair clock: how much time the parts really had, on a machine that is busy with other things as well. Pure.

The one rule: a second in which our threads wanted a core and were kept waiting counts only as far as they had one; a
second in which they all slept counts in full. So a part that hangs has used up its deadline on any machine, and one
that is merely kept from its work has not. Before it `chaos/cpu_time`, which asks the kernel; after it the vigil's
deadlines.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

SHARE_MIN = 0.1
"""However busy the machine is, a second counts this much: a deadline ends some day."""
TOIL_S_MIN = 0.01
"""With less work than this a second, nobody can be said to wait."""


class CpuTime(NamedTuple):
    """What our threads did since the last time: how long they ran, and how long they waited for a core, together."""

    ran_s: float = 0.0
    waited_s: float = 0.0


class FairClock:
    """`tick` it about once a second; `between` then says how long a time was for the parts."""

    def __init__(self, now: float) -> None:
        self._times = [now]
        self._lost = [0.0]

    def tick(self, now: float, toil: CpuTime) -> None:
        wanted = toil.ran_s + toil.waited_s
        share = max(SHARE_MIN, toil.ran_s / wanted) if wanted > TOIL_S_MIN else 1.0
        self._lost.append(self._lost[-1] + (1 - share) * (now - self._times[-1]))
        self._times.append(now)

    def between(self, start: float, end: float) -> float:
        """Seconds from `start` to `end`, less what was lost of them. Negative if that is still to come."""
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
