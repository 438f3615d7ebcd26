"""Randomness as a value that is handed in: whoever runs a simulation brings a `random.Random` of a known seed.

The one rule: nothing in a simulation draws from anywhere else, so that a seed is a history. Before it: the runner.
After it: every part of the world.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Chance(Protocol):
    """The part of `random.Random` that a simulation uses."""

    def random(self) -> float: ...

    def randrange(self, start: int, stop: int, /) -> int: ...

    def choice(self, seq: Sequence[T], /) -> T: ...
