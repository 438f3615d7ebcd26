"""Pacing of a source: how long it waits before the next attempt, and how many records it may send now.

Invariant: a client that lost its peer waits a random part, at least half, of a bound that doubles up to a limit. So
clients that lost the same peer do not all reconnect at once. After a stall, the rate limit makes up for at most a
twentieth of a second, so a stall is not followed by a burst. Callers pass the time as `now_s`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST_S = 0.05
LIMIT_S = 5.0


class Backoff:
    def __init__(
        self,
        first_s: float = FIRST_S,
        limit_s: float = LIMIT_S,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._bound_s = first_s
        self._uniform = uniform

    def next_s(self) -> float:
        """Return the seconds to wait now, and increase the next wait."""
        wait_s = self._bound_s * self._uniform(0.5, 1.0)
        self._bound_s = min(self._limit_s, self._bound_s * 2)
        return wait_s

    def reset(self) -> None:
        """Make the next wait short again after a success."""
        self._bound_s = self._first_s


BURST_S = 0.05


class RateLimit:
    def __init__(self, records_per_second: float, now_s: float) -> None:
        self._rate = records_per_second
        self._burst = max(1.0, records_per_second * BURST_S)
        self._saved = 1.0
        self._then_s = now_s

    def take(self, count: int, now_s: float) -> int:
        """Count and return how many of `count` records may be sent now."""
        self._saved = min(self._burst, self._saved + (now_s - self._then_s) * self._rate)
        self._then_s = now_s
        taken = min(count, int(self._saved))
        self._saved -= taken
        return taken

    def wait_s(self) -> float:
        """Return the seconds until a fifth of a burst may be sent, and at least one record."""
        return max(1.0 - self._saved, self._burst / 5) / self._rate
