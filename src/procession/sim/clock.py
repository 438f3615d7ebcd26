"""The clock: a queue of events in the order of virtual time.

Invariant: time passes only here, and two events at the same time happen in the order in which they were scheduled.
`environment` delivers each event to its process, if it still runs.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Call = Callable[..., Any]


class VirtualClock:
    def __init__(self) -> None:
        self.now = 0.0
        self._count = 0
        self._due: list[tuple[float, int, Call, tuple[Any, ...]]] = []

    def after(self, delay_s: float, call: Call, *args: Any) -> None:
        self._count = count = self._count + 1
        heappush(self._due, (self.now + delay_s, count, call, args))

    def stop(self) -> None:
        """Remove all events."""
        self._due.clear()

    def advance(self) -> bool:
        """Run the next event. Return False if there is none."""
        if not self._due:
            return False
        self.now, _, call, args = heappop(self._due)
        call(*args)
        return True
