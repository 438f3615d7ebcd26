"""Randomness as a parameter: the runner passes a `random.Random` with a known seed.

Invariant: a simulation uses no other source of randomness, so a seed determines the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Randomness(Protocol):
    """The part of `random.Random` that a simulation uses."""

    def random(self) -> float: ...

    def randrange(self, start: int, stop: int, /) -> int: ...

    def choice(self, seq: Sequence[T], /) -> T: ...
