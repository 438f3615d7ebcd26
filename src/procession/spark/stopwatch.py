"""Measures how long a task reads or merges its input, and how long it runs its stages.

Invariant: it changes nothing of what passes through it. The manifest of a task reports the two times.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Piece = TypeVar("Piece")


class Stopwatch:
    """Measures how long a task waits for its input, and how long it does everything else."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._read_s = 0.0

    def timed(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """The pieces, as they are read."""
        source = iter(pieces)
        while True:
            began = time.perf_counter()
            piece = next(source, None)
            self._read_s += time.perf_counter() - began
            if piece is None:
                return
            yield piece

    def spent_s(self) -> tuple[float, float]:
        """Seconds of reading, and of all else."""
        return round(self._read_s, 6), round(time.perf_counter() - self._began - self._read_s, 6)
