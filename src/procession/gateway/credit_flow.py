"""Flow control: how many credits a session may hold now. Pure.

Invariant: granted credits are never revoked; replenishment may be withheld. When everything is committed, every session
may send. Credits count frames and limits count bytes. So above a second limit, the gateway stops reading even from
sessions that have credits. `gateway/state` reports rows and commits.

The lag is never below the true value, and at most one step above it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from procession.gateway.credit_window import AdaptiveWindow, CreditBounds
from procession.gateway.gateway_limits import Limits

STEP_BYTES = 1024 * 1024
"""Size of a step. The bytes of a step count as committed only when all its rows are committed."""


class Lag:
    """The number of bytes that are appended and not committed. After a restart, all bytes found in the log form one
    step."""

    reserve_bytes = 0
    """Additional bytes for the producer of the stream that the merge waits for."""

    def __init__(self, end_sequence: int = 0, size_bytes: int = 0) -> None:
        self.bytes = 0
        self._steps: deque[tuple[int, int]] = deque()
        if size_bytes:
            self.add(end_sequence, size_bytes)

    def add(self, end_sequence: int, size_bytes: int) -> None:
        """Note that rows up to `end_sequence` were appended."""
        self.bytes += size_bytes
        if self._steps and self._steps[-1][1] < STEP_BYTES:
            size_bytes += self._steps.pop()[1]
        self._steps.append((end_sequence, size_bytes))

    def commit(self, end_sequence: int) -> None:
        """Note that rows below `end_sequence` are committed."""
        while self._steps and self._steps[0][0] <= end_sequence:
            self.bytes -= self._steps.popleft()[1]


class UnappendedRows(NamedTuple):
    """Received rows that are not in the log yet."""

    end_sequence: int
    size_bytes: int
    session: int
    frames: int


class CreditFlow:
    def __init__(self, limits: Limits, committed_end: int, end_sequence: int, lag_bytes: int) -> None:
        self._limits = limits
        self.lag = Lag(end_sequence, lag_bytes)
        self.committed_end = committed_end
        self.end_sequence = end_sequence
        """Sequence after the last received row, which may not be appended yet."""
        self.skipped = 0
        """Number of rows that only the gateway uses and that are never committed."""
        self._unappended: deque[UnappendedRows] = deque()
        self.is_disk_short = False
        """Whether the disk is low on space. No credits are granted then."""
        self.are_replicas_behind = False
        """Whether the replicas lag. No credits are granted then, and producers are not read."""
        self.is_disk_full = False
        """Whether less than half of the minimum space is free. Producers are not read then."""
        self.is_paused = False
        """Whether an operator has paused the gateway. No credits are granted then, and producers are not read."""
        self._unappended_bytes = 0
        self.window: AdaptiveWindow | None = None
        if limits.credits == "adaptive":
            first = min(limits.window_first, limits.credits_max)
            self.window = AdaptiveWindow(
                CreditBounds(limits.latency_target_s, first, limits.credits_min, limits.backlog_max)
            )

    @property
    def buffered(self) -> int:
        """Number of rows that are received and not committed."""
        return self.end_sequence - self.skipped - self.committed_end

    def receive(self, now: float, rows: UnappendedRows) -> None:
        self.end_sequence = rows.end_sequence
        self._unappended.append(rows)
        self._unappended_bytes += rows.size_bytes
        if self.window is not None:
            self.window.receive(now, self.buffered)

    def append(self, end_sequence: int) -> Iterator[UnappendedRows]:
        """Note that rows below `end_sequence` are in the log. Yields these rows."""
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
        """Return the credits that each of `sessions` sessions may hold: an equal share of the rest of the window.

        The result is at least `credits_min` while the window has room. Credits that are held but not used do not count.
        """
        if self.is_withheld or self.lag.bytes > self._limits.lag_bytes_max:
            return 0
        if self.window is None:
            return self._limits.credits_max
        room = self.window.size - self.buffered
        if room <= 0:
            return 0
        return min(self._limits.credits_max, max(self._limits.credits_min, room // max(1, sessions)))

    @property
    def is_withheld(self) -> bool:
        """Whether no session gets credits, not even for the stream that the merge waits for."""
        return self.is_disk_short or self.is_paused or self.are_replicas_behind

    @property
    def is_closed(self) -> bool:
        """Whether no session is read."""
        return self.is_disk_full or self.is_paused or self.are_replicas_behind

    @property
    def is_over(self) -> bool:
        """Whether so many bytes have arrived on earlier credits that reading must stop."""
        limits = self._limits
        bound = limits.lag_bytes_max + self.lag.reserve_bytes + limits.overrun_bytes_max
        return self.is_closed or self.lag.bytes + self._unappended_bytes > bound

    def first(self, sessions: int) -> int:
        """Return the credits of a new session: the fixed number, or its share of the window.

        A new session gets the minimum while others wait for a commit, and one credit while reading is paused, so
        reconnecting cannot bypass the limit.
        """
        least = 1 if self.is_over else self._limits.credits_min
        return self.allowed(sessions) or min(least, self._limits.credits_max)

    def grantable(self, owed: int, allowed: int) -> int:
        """Return the part of the owed credits that may be granted now."""
        return max(0, owed - (self._limits.credits_max - allowed)) if allowed else 0

    def is_due(self, owed: int, allowed: int) -> bool:
        """Whether to grant the owed credits at once. A quarter of a session's credits is granted at once; less waits
        for the next ACK."""
        grantable = self.grantable(owed, allowed)
        return grantable > 0 and grantable * 4 >= allowed

    def status(self) -> dict[str, Any]:
        """Return the figures for an operator."""
        status: dict[str, Any] = {
            "credits": self._limits.credits,
            "buffered": self.buffered,
            "is_disk_short": self.is_disk_short,
            "are_replicas_behind": self.are_replicas_behind,
            "is_paused": self.is_paused,
            "is_over": self.is_over,
        }
        if self.window is not None:
            status |= {
                "window": self.window.size,
                "latency_target_s": self.window.target_s,
                "wait_s": round(self.window.wait_s, 6),
                "commits_per_s": round(self.window.rate, 3),
            }
        return status
