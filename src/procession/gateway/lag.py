"""The lag: how many bytes are appended and not committed.

Invariant: it is never below the true value, and above it by at most one step. What a restart finds is one step.
`gateway/state` withholds credits while it is too large. Pure.
"""

from __future__ import annotations

from collections import deque

STEP_BYTES = 1024 * 1024
"""Granularity: a step of this many bytes is committed as a whole."""


class Lag:
    reserve_bytes = 0
    """Additional bytes for the producer of the stream that the merge waits for."""

    def __init__(self, end_sequence: int = 0, size_bytes: int = 0) -> None:
        self.bytes = 0
        self._steps: deque[tuple[int, int]] = deque()
        if size_bytes:
            self.add(end_sequence, size_bytes)

    def add(self, end_sequence: int, size_bytes: int) -> None:
        """Rows up to `end_sequence` were appended."""
        self.bytes += size_bytes
        if self._steps and self._steps[-1][1] < STEP_BYTES:
            size_bytes += self._steps.pop()[1]
        self._steps.append((end_sequence, size_bytes))

    def commit(self, end_sequence: int) -> None:
        """Rows below `end_sequence` are committed."""
        while self._steps and self._steps[0][0] <= end_sequence:
            self.bytes -= self._steps.popleft()[1]
