"""Decides whether and when a part that died is started again.

Invariant: the decision depends only on the deaths within a time window; the time is passed in as `now`. Used by the
supervisor, which waits, or stops and shows the part's last lines.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Limits of restarts. A SIGKILL comes from outside, so more of them are allowed than failures of the part."""

    delay_first_s: float = 0.1
    delay_max_s: float = 5.0
    window_s: float = 120.0
    deaths_max: int = 5
    kills_max: int = 20


class Restarts:
    """The recent deaths of one part."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._deaths: deque[tuple[float, bool]] = deque(maxlen=policy.deaths_max + policy.kills_max)

    def died(self, now: float, *, was_killed: bool) -> float | None:
        """Record a death. Return the seconds until the next start, or None if the part has died too often."""
        policy = self._policy
        self._deaths.append((now, was_killed))
        while self._deaths[0][0] <= now - policy.window_s:
            self._deaths.popleft()
        kills = sum(was_killed for _, was_killed in self._deaths)
        if self.count - kills >= policy.deaths_max or kills >= policy.kills_max:
            return None
        return min(policy.delay_max_s, policy.delay_first_s * 2.0 ** (self.count - 1))

    @property
    def count(self) -> int:
        """Number of deaths within the window before the last death."""
        return len(self._deaths)
