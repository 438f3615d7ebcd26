"""Back-off: how long to wait before the next try.

Invariant: each wait is a random part, at least half, of a bound that doubles up to a limit. So clients that lost the
same peer do not all reconnect at once. `sdk/source_client` uses it.
"""

from __future__ import annotations

import random

FIRST_S = 0.05
LIMIT_S = 5.0


class Backoff:
    def __init__(self, first_s: float = FIRST_S, limit_s: float = LIMIT_S, chance: random.Random | None = None) -> None:
        self._first_s = first_s
        self._limit_s = limit_s
        self._bound_s = first_s
        self._chance = chance or random.Random()

    def next_s(self) -> float:
        """Seconds to wait now; the next wait is longer."""
        wait_s = self._bound_s * self._chance.uniform(0.5, 1.0)
        self._bound_s = min(self._limit_s, self._bound_s * 2)
        return wait_s

    def reset(self) -> None:
        """Something worked: the next wait is short again."""
        self._bound_s = self._first_s
