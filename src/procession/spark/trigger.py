"""The trigger: how soon after one epoch Spark may ask for the next.

The one rule: it is kept by a clock that never jumps. Spark's own trigger waits by the time of day, and would wait an
hour where that is put back by an hour; so Spark asks without a pause, and we make it wait, in its helper process, for a
moment at a time. Before it `spark/query`, which is told the interval; after it `spark/log_source`, which asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable

HOLD_S_MAX = 1.0
"""For so long at most Spark is held up at once: who stops a query waits for that."""


class Pace:
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
        """Wait until the next epoch may begin; false if that is still far away, and we shall be asked again."""
        if self._due is not None and (left_s := self._due - self._now()) > 0:
            self._hold(min(left_s, HOLD_S_MAX))
            if left_s > HOLD_S_MAX:
                return False
        self._due = self._now() + self._interval_s
        return True
