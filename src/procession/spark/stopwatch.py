"""Measures how long a task reads or merges its input, and how long it runs its stages.

Invariant: all items are passed on unchanged. The manifest of a task contains the two times.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Piece = TypeVar("Piece")


class Stopwatch:
    """Measures how long a task waits for its input, and the rest of its time."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._read_s = 0.0

    def timed(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yield the pieces, and add the time of reading each."""
        source = iter(pieces)
        while True:
            began = time.perf_counter()
            piece = next(source, None)
            self._read_s += time.perf_counter() - began
            if piece is None:
                return
            yield piece

    def spent_s(self) -> tuple[float, float]:
        """Return the seconds of reading, and the remaining seconds."""
        return round(self._read_s, 6), round(time.perf_counter() - self._began - self._read_s, 6)
