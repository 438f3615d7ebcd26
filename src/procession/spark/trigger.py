"""The trigger: the interval between the starts of two epochs.

Invariant: it uses a monotonic clock. Spark's own trigger uses the time of day, and would wait for an hour if the clock
were set back by an hour. So Spark polls without an interval, and `spark/log_source` waits here, in Spark's helper
process, for at most HOLD_S_MAX per poll.
"""

from __future__ import annotations

import time
from collections.abc import Callable

HOLD_S_MAX = 1.0
"""Maximum wait per poll, in seconds. Stopping a query may take this long."""


class TriggerInterval:
    def __init__(
        self,
        interval_s: float,
        *,
        now: Callable[[], float] = time.monotonic,
        hold: Callable[[float], None] = time.sleep,
    ) -> None:
        self._interval_s = interval_s
        self._now = now
        self._hold = hold
        self._due: float | None = None

    def is_due(self) -> bool:
        """Wait until the next epoch may begin. Return False if HOLD_S_MAX passes first; Spark then polls again."""
        if self._due is not None and (left_s := self._due - self._now()) > 0:
            self._hold(min(left_s, HOLD_S_MAX))
            if left_s > HOLD_S_MAX:
                return False
        self._due = self._now() + self._interval_s
        return True
