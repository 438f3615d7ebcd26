"""The flow: how many credits a session may hold now. It is fixed, unless the window adapts; and nobody gets any while
too many bytes are not committed. Pure.

The one rule: credits are never taken back, only not given back; and whenever all is committed, every session may send.
Credits are for frames and limits are in bytes: past a limit by a bound of its own, nobody who holds credits is read.
Before it: `state`, which tells it of rows and commits, and pays. After it: `lag` counts bytes, `window` sizes itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from procession.gateway.credit_window import Bounds, Window
from procession.gateway.gateway_options import Limits
from procession.gateway.lag import Lag


class Unappended(NamedTuple):
    """Rows on their way to the log."""

    end_sequence: int
    size_bytes: int
    session: int
    frames: int


class Flow:
    def __init__(self, limits: Limits, committed_end: int, end_sequence: int, lag_bytes: int) -> None:
        self._limits = limits
        self.lag = Lag(end_sequence, lag_bytes)
        self.committed_end = committed_end
        self.end_sequence = end_sequence
        """Rows up to here were received, if not yet appended."""
        self.skipped = 0
        """So many of them are for nobody but the gateway, and never committed."""
        self._unappended: deque[Unappended] = deque()
        self.is_disk_short = False
        """The disk has too little room left: nobody may send more."""
        self.is_disk_full = False
        """It has not even half of that: what producers send on the credits that they have is left in their sockets."""
        self._unappended_bytes = 0
        self.window: Window | None = None
        if limits.credits == "adaptive":
            first = min(limits.window_first, limits.credits_max)
            self.window = Window(Bounds(limits.latency_target_s, first, limits.credits_min, limits.backlog_max))

    @property
    def buffered(self) -> int:
        """Rows that were received and are not committed."""
        return self.end_sequence - self.skipped - self.committed_end

    def receive(self, now: float, rows: Unappended) -> None:
        self.end_sequence = rows.end_sequence
        self._unappended.append(rows)
        self._unappended_bytes += rows.size_bytes
        if self.window is not None:
            self.window.receive(now, self.buffered)

    def append(self, end_sequence: int) -> Iterator[Unappended]:
        """What is in the log now, and was not before."""
        while self._unappended and self._unappended[0].end_sequence <= end_sequence:
            rows = self._unappended.popleft()
            self._unappended_bytes -= rows.size_bytes
            self.lag.add(rows.end_sequence, rows.size_bytes)
            yield rows

    def commit(self, now: float, end_sequence: int) -> None:
        if self.window is not None:
            self.window.commit(now, end_sequence - self.committed_end, self.buffered)
        self.committed_end = end_sequence
        self.lag.commit(end_sequence)

    def allowed(self, sessions: int) -> int:
        """So many credits each of so many sessions may hold: an even share of what is left of the window, which is no
        less than `credits_min` as long as anything is left. Those who do not send do not use the window up: what they
        hold is not counted."""
        if self.is_disk_short or self.lag.bytes > self._limits.lag_bytes_max:
            return 0
        if self.window is None:
            return self._limits.credits_max
        room = self.window.size - self.buffered
        if room <= 0:
            return 0
        return min(self._limits.credits_max, max(self._limits.credits_min, room // max(1, sessions)))

    @property
    def is_over(self) -> bool:
        """Whether so much has come, on credits that were given before, that no more may be read."""
        limits = self._limits
        bound = limits.lag_bytes_max + self.lag.reserve_bytes + limits.overrun_bytes_max
        return self.is_disk_full or self.lag.bytes + self._unappended_bytes > bound

    def first(self, sessions: int) -> int:
        """So many credits a new session begins with: the text's fixed number, or its share; also while the others wait
        for a commit it gets the least that there is, to say what it has; and one when nobody is read, so that who comes
        again and again leaves next to nothing."""
        least = 1 if self.is_over else self._limits.credits_min
        return self.allowed(sessions) or min(least, self._limits.credits_max)

    def payable(self, owed: int, allowed: int) -> int:
        """What may be paid of what a session is owed: it holds no more credits than it is allowed."""
        return max(0, owed - (self._limits.credits_max - allowed)) if allowed else 0

    def is_due(self, owed: int, allowed: int) -> bool:
        """A quarter of what a session may hold is paid at once; less waits for the next ACK."""
        payable = self.payable(owed, allowed)
        return payable > 0 and payable * 4 >= allowed

    def status(self) -> dict[str, Any]:
        """What an operator wants to know, as plain values."""
        told: dict[str, Any] = {
            "credits": self._limits.credits,
            "buffered": self.buffered,
            "is_disk_short": self.is_disk_short,
            "is_over": self.is_over,
        }
        if self.window is not None:
            told |= {
                "window": self.window.size,
                "latency_target_s": self.window.target_s,
                "wait_s": round(self.window.wait_s, 6),
                "commits_per_s": round(self.window.rate, 3),
            }
        return told
