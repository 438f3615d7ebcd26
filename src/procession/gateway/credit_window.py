"""The adaptive window: how many records may be received and not committed. Pure.

Invariant: the window controls how long a record waits for its commit. It changes only at a commit, within its bounds,
and grows only if producers had filled it. `gateway/credit_flow` reports rows and commits, and shares the window among
the sessions. Callers pass the time as `now`.

The wait is estimated by Little's law: records in the window, divided by the rate of commits. A PI controller works on
the logarithms of the wait and of the window. There the system is linear, at ten records per second as well as at a
million. Two measures prevent wind-up. The window itself is the integrated value, and is clamped. Buffered records count
only up to the window's size, so an old backlog does not shrink the window further while it drains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GAIN_INTEGRAL = 0.5
"""Share of the error that a commit corrects. It is below 1, so that the window does not overshoot."""
GAIN_PROPORTIONAL = 0.2
ERROR_MAX = math.log(4)
"""Bound of the error. With it, one commit at most roughly doubles or halves the window."""
RATE_TIME = 0.25
"""Time over which the rate is averaged, as a share of the target, so that many quick commits are one measurement."""
RATE_KEPT_MIN = 0.5
"""Minimum weight of the previous rate, after a commit of any duration."""
INTERVAL_S_MIN = 1e-6
"""Minimum time between two commits in the calculation. Clocks may show a shorter time."""
FILLED_SHARE = 0.5
"""Minimum filled share of the window. Below it, the window has not limited the producers."""
INTERVALS_MIN = 6
"""Minimum target, as a number of the shortest commit intervals. A lower target would starve the pipeline: it gathers
the next epoch while one epoch runs, and small epochs are mostly overhead. At this minimum the pipeline keeps about two
thirds of its rate."""


@dataclass(frozen=True, slots=True)
class CreditBounds:
    """The target of the window, and its bounds."""

    latency_target_s: float
    size_start: int
    size_min: int
    size_max: int


class AdaptiveWindow:
    def __init__(self, bounds: CreditBounds) -> None:
        self.bounds = bounds
        self.size = min(max(bounds.size_start, bounds.size_min), bounds.size_max)
        """Maximum number of records that are received and not committed."""
        self.wait_s = 0.0
        """Estimated time until the newest record is committed."""
        self._quickest_s = math.inf
        """Shortest duration of a commit. It never expires, because commits are slower while the window is full."""
        self._busy_since: float | None = None
        """When the current interval began: at a commit that left records, or at the first record after none was
        left."""
        self._filled = 0
        """Maximum number of records in the window since the last commit."""
        self._records = 0.0
        self._seconds = 0.0
        """The recently committed records, and the duration of their commits. Both decay."""
        self._error: float | None = None
        """Error at the last commit. None if the window did not limit producers."""

    @property
    def target_s(self) -> float:
        quickest_s = 0.0 if self._quickest_s == math.inf else self._quickest_s
        return max(self.bounds.latency_target_s, INTERVALS_MIN * quickest_s)

    @property
    def rate(self) -> float:
        """Committed records per second. 0 while the rate is unknown."""
        return self._records / self._seconds if self._seconds else 0.0

    def receive(self, now: float, buffered: int) -> None:
        """Note that records have arrived. Now `buffered` records are not committed."""
        self._filled = max(self._filled, buffered)
        if self._busy_since is None:
            self._busy_since = now

    def commit(self, now: float, records: int, buffered: int) -> None:
        """Note that `records` of the buffered records are committed, and adjust the window."""
        if records <= 0:
            return
        since, self._busy_since = self._busy_since, now if buffered > records else None
        if since is None:
            return
        interval_s = max(INTERVAL_S_MIN, now - since)
        self._quickest_s = min(self._quickest_s, interval_s)
        kept = max(RATE_KEPT_MIN, math.exp(-interval_s / (RATE_TIME * self.target_s)))
        self._records = self._records * kept + records
        self._seconds = self._seconds * kept + interval_s
        self.wait_s = buffered / self.rate
        self._steer(buffered)

    def _steer(self, buffered: int) -> None:
        allowed_s = min(buffered, self.size) / self.rate
        error = max(-ERROR_MAX, min(ERROR_MAX, math.log(self.target_s / allowed_s)))
        was_full, self._filled = self._filled >= FILLED_SHARE * self.size, 0
        if error > 0 and not was_full:
            # The window does not limit producers that send little, so it does not change.
            self._error = None
            return
        change = 0.0 if self._error is None else error - self._error
        self._error = error
        size = round(self.size * math.exp(GAIN_INTEGRAL * error + GAIN_PROPORTIONAL * change))
        self.size = min(max(size, self.bounds.size_min), self.bounds.size_max)
