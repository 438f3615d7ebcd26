"""The clock: what is to happen, in the order of virtual time.

The one rule: time passes only here, and two things due at the same time happen in the order in which they were asked
for. Before it: everybody who waits. After it: `environment`, which lets each thing happen to its process, if it still
lives.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Call = Callable[..., Any]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._count = 0
        self._due: list[tuple[float, int, Call, tuple[Any, ...]]] = []

    def after(self, delay_s: float, call: Call, *args: Any) -> None:
        self._count = count = self._count + 1
        heappush(self._due, (self.now + delay_s, count, call, args))

    def stop(self) -> None:
        """Nothing happens any more."""
        self._due.clear()

    def advance(self) -> bool:
        """Let the next thing happen; false if nothing is due any more."""
        if not self._due:
            return False
        self.now, _, call, args = heappop(self._due)
        call(*args)
        return True
