"""Counts the records that are out of order, for the four levels of promised order. Pure.

Definition: *out of order* is the least number of records whose removal leaves the rest of each group in input order.
The level determines the groups: an input (`total` and `stream`; several inputs are interleaved in arrival order, so
each input is compared separately), or a key of an input (`key`). With `none` there are no groups. `verify/matching`
gives the input position of each output record.

The exact number needs all positions in memory. Above the memory limit it is estimated from both sides: the number of
records that were overtaken, and the number that overtook. The smaller number is an upper bound. It is zero only if no
record is out of order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
KeyOf = Callable[[bytes], bytes]

GROUPS_MAX = 4_000_000


class PromisedOrder(StrEnum):
    """The order that a pipeline promises for its output."""

    TOTAL = "total"
    KEY = "key"
    STREAM = "stream"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Disorder:
    """The number of records out of order, and the output number of the first one (-1 if there is none)."""

    count: int
    first: int


class TooManyGroups(Exception):
    """There are more keys than the memory limit allows."""


def key_field(number: int) -> KeyOf:
    """Return a function that gets the n-th field of a line (from 1), separated by whitespace, as key."""

    def key_of(line: bytes) -> bytes:
        fields = line.split(maxsplit=number)
        return fields[number - 1] if len(fields) >= number else b""

    return key_of


class GroupNumbers:
    """Assigns small numbers to groups as they appear, with 16 bytes of memory per group."""

    def __init__(self) -> None:
        self._known = np.empty(0, np.int64)
        self._numbers = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._known)

    def numbers(self, names: Numbers) -> Numbers:
        new = np.setdiff1d(names, self._known)
        if len(new):
            if len(self._known) + len(new) > GROUPS_MAX:
                raise TooManyGroups
            known = np.concatenate([self._known, new])
            numbers = np.concatenate([self._numbers, np.arange(len(self._known), len(known))])
            by_name = np.argsort(known)
            self._known, self._numbers = known[by_name], numbers[by_name]
        return self._numbers[np.searchsorted(self._known, names)]


class Overtaken:
    """Counts, chunk by chunk, the records that come after a record of their group with a greater input position."""

    def __init__(self) -> None:
        self.count = 0
        self.first = -1
        self._furthest = np.empty(0, np.int64)

    def take(self, groups: Numbers, positions: Numbers, numbers: Numbers) -> None:
        """Add the next chunk of an output. `numbers` are the records' output numbers, to report the first offender."""
        if not len(groups):
            return
        size = int(groups.max()) + 1
        if size > len(self._furthest):
            grown = np.full(max(size, 2 * len(self._furthest)), np.iinfo(np.int64).min, np.int64)
            grown[: len(self._furthest)] = self._furthest
            self._furthest = grown
        by_group = np.argsort(groups, kind="stable")
        group, position = groups[by_group], positions[by_group]
        begins = np.flatnonzero(np.diff(group, prepend=-1))
        is_late = position < self._furthest_before(group, position, begins)
        self._furthest[group[begins]] = np.maximum(self._furthest[group[begins]], np.maximum.reduceat(position, begins))
        late = numbers[by_group][is_late]
        self.count += len(late)
        if len(late) and (self.first < 0 or late.min() < self.first):
            self.first = int(late.min())

    def _furthest_before(self, group: Numbers, position: Numbers, begins: Numbers) -> Numbers:
        # Groups ascend, so one running maximum works for all groups if each group is shifted above the previous one.
        is_begin = np.zeros(len(group), np.int64)
        is_begin[begins] = 1
        rank = np.cumsum(is_begin) - 1
        low = int(position.min())
        lift = int(position.max()) - low + 1
        running = np.maximum.accumulate(position - low + rank * lift) - rank * lift + low
        before = np.empty_like(position)
        before[1:] = running[:-1]
        before[begins] = np.iinfo(np.int64).min
        return np.maximum(before, self._furthest[group])


def least_disorder(groups: Numbers, positions: Numbers, numbers: Numbers) -> Disorder:
    """Return the exact count, in memory. A duplicated record is in order if one of its occurrences is."""
    if not len(groups):
        return Disorder(0, -1)
    by_group = np.argsort(groups, kind="stable")
    group, position, number = groups[by_group], positions[by_group], numbers[by_group]
    lifted = position + group * (int(positions.max()) + 1)
    # If all positions before a point are smaller than all after it, the two sides are independent.
    highest = np.maximum.accumulate(lifted)
    lowest = np.minimum.accumulate(lifted[::-1])[::-1]
    edges = np.concatenate([[0], np.flatnonzero(highest[:-1] < lowest[1:]) + 1, [len(lifted)]])
    count, first = 0, -1
    for at in np.flatnonzero(np.diff(edges) > 1):
        start, end = edges[at], edges[at + 1]
        block = lifted[start:end]
        is_out = ~np.isin(block, _longest_increasing(block))
        if is_out.any():
            count += len(np.unique(block[is_out]))
            least = int(number[start:end][is_out].min())
            first = least if first < 0 else min(first, least)
    return Disorder(count, first)


def bounded_disorder(late: Overtaken, early: Overtaken) -> Disorder:
    """Return the smaller estimate. `early` was computed backwards, with negative positions."""
    chosen = late if late.count <= early.count else early
    return Disorder(chosen.count, chosen.first)


def _longest_increasing(positions: Numbers) -> Numbers:
    """Return a longest strictly increasing subsequence (patience sorting with back links)."""
    tops: list[int] = []
    pile_of = np.empty(len(positions), np.int64)
    for number, position in enumerate(positions.tolist()):
        if not tops or position > tops[-1]:
            pile_of[number] = len(tops)
            tops.append(position)
        else:
            pile_of[number] = pile = bisect_left(tops, position)
            tops[pile] = position
    # Backwards: take from each pile the last element that is smaller than the element taken from the next pile.
    taken = np.empty(len(tops), np.int64)
    pile, below = len(tops) - 1, np.iinfo(np.int64).max
    for position, its_pile in zip(reversed(positions.tolist()), reversed(pile_of.tolist()), strict=True):
        if its_pile == pile and position < below:
            taken[pile] = below = position
            pile -= 1
    return taken


def stream_of(positions: Numbers, ends: Iterable[int]) -> Numbers:
    """Return the number of the input that contains each position."""
    return np.searchsorted(np.fromiter(ends, np.int64), positions, "right").astype(np.int64)
