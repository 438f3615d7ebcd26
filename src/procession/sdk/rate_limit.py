"""The rate limit: how many records may be sent now, at a given number per second.

Invariant: after a stall, the limit makes up for at most a twentieth of a second, so a stall is not followed by a burst.
Time is passed in as `now_s`. `sdk/source_session` uses it.
"""

from __future__ import annotations

BURST_S = 0.05


class RateLimit:
    def __init__(self, records_per_second: float, now_s: float) -> None:
        self._rate = records_per_second
        self._burst = max(1.0, records_per_second * BURST_S)
        self._saved = 1.0
        self._then_s = now_s

    def take(self, wanted: int, now_s: float) -> int:
        """How many of `wanted` may go now; they count as gone."""
        self._saved = min(self._burst, self._saved + (now_s - self._then_s) * self._rate)
        self._then_s = now_s
        taken = min(wanted, int(self._saved))
        self._saved -= taken
        return taken

    def wait_s(self) -> float:
        """Seconds until there is one more to take, or a fifth of a burst where that is more."""
        return max(1.0 - self._saved, self._burst / 5) / self._rate
