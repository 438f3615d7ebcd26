"""Measures recovery times of parts, from the signal to the first useful work. Pure; time arrives as `now`.

Invariant: a time is used only if no other part was down; otherwise the parts may have waited for each other, and the
recovery is only counted. A part that is hit again before it has recovered has one longer outage.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Down:
    """An outage of a part: its start, and whether other parts were down meanwhile."""

    since: float
    is_alone: bool
    is_timed: bool


@dataclass
class Recoveries:
    """Measures recoveries. Call `hit` when a fault is injected, `back` when the part does useful work again."""

    kills: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    recovered: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    times_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    down: dict[str, Down] = field(default_factory=dict)

    def hit(self, part: str, now: float, *, is_timed: bool = True) -> None:
        """Record a fault. `is_timed` is only true for a plain kill: a part that is held back has no recovery time."""
        self.kills[part] += 1
        for other in self.down.values():
            other.is_alone = False
        others = [name for name in self.down if name != part]
        self.down[part] = Down(now, not others and part not in self.down, is_timed)

    def back(self, part: str, now: float, *, is_timed: bool = True) -> None:
        crash = self.down.pop(part, None)
        if crash is None:
            return
        self.recovered[part] += 1
        if crash.is_alone and crash.is_timed and is_timed:
            self.times_s[part].append(now - crash.since)

    @property
    def events(self) -> int:
        """The number of kill-and-restart events."""
        return sum(self.kills.values())

    def figures(self) -> dict[str, dict[str, Any]]:
        """Return the figures per kind of part (all sources are one kind, all sinks another)."""
        kinds: dict[str, list[str]] = defaultdict(list)
        for part in sorted(self.kills):
            kinds[part.partition("-")[0]].append(part)
        return {kind: self._figures(parts) for kind, parts in kinds.items()}

    def _figures(self, parts: list[str]) -> dict[str, Any]:
        times = sorted(time for part in parts for time in self.times_s[part])
        return {
            "kills": sum(self.kills[part] for part in parts),
            "recovered": sum(self.recovered[part] for part in parts),
            "timed": len(times),
            "p50_s": quantile(times, 0.5),
            "p99_s": quantile(times, 0.99),
        }


def quantile(ordered: list[float], share: float) -> float | None:
    """Return the value that `share` of the values do not exceed."""
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)
