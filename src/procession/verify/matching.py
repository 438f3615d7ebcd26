"""Matches each output record with its input record, in bounded memory.

The one rule: equal lines are in the same bucket. Each line is reduced to a 64-bit hash and its number, and stored in
the bucket of its hash. Then both sides of each bucket are sorted and paired, the first of equal lines with the first.
Only one bucket is in memory at a time. Pure: storage for buckets on disk is passed in (`verify/spill`). Takes lines
from `verify/lines`; used by `verify/verifier`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from procession.verify.lines import Numbers, hashes, split_lines
from procession.verify.order import KeyOf

ROWS_FILED_AT_ONCE = 262_144

# Rows of 64-bit numbers; what the columns are, whoever files them knows.
Rows = npt.NDArray[np.int64]
HASH, NUMBER, KEY = range(3)


class Shelves(Protocol):
    """Where rows wait. What was put on a shelf is taken from it in the same order, as often as wanted."""

    def put(self, shelf: int, rows: Rows) -> None: ...

    def take(self, shelf: int) -> Rows: ...


# Gives empty shelves for rows of so many columns.
NewShelves = Callable[[int], Shelves]


class MemoryShelves:
    """Shelves for what is small."""

    def __init__(self, columns: int) -> None:
        self._shelves: dict[int, list[Rows]] = defaultdict(lambda: [np.empty((0, columns), np.int64)])

    def put(self, shelf: int, rows: Rows) -> None:
        self._shelves[shelf].append(rows)

    def take(self, shelf: int) -> Rows:
        return np.concatenate(self._shelves[shelf])


class Filed(NamedTuple):
    """How many lines there were, and the numbers of those that are not whole (which are on no shelf)."""

    lines: int
    broken: tuple[int, ...]


def file_lines(
    chunks: Iterable[bytes], shelves: Shelves, buckets: int, *, begin: int = 0, key_of: KeyOf | None = None
) -> Filed:
    """File every line by its hash. Lines are numbered from `begin`."""
    number = begin
    broken: list[int] = []
    waiting: list[Rows] = []
    waiting_count = 0
    for lines, are_whole in split_lines(chunks):
        if are_whole:
            columns = [hashes(lines), np.arange(number, number + len(lines))]
            if key_of is not None:
                columns.append(hashes([key_of(line) for line in lines]))
            waiting.append(np.column_stack(columns))
            waiting_count += len(lines)
        else:
            broken.append(number)
        number += len(lines)
        if waiting_count >= ROWS_FILED_AT_ONCE:
            file_rows(shelves, np.concatenate(waiting), buckets)
            waiting, waiting_count = [], 0
    if waiting:
        file_rows(shelves, np.concatenate(waiting), buckets)
    return Filed(number - begin, tuple(broken))


def file_rows(shelves: Shelves, rows: Rows, buckets: int) -> None:
    put_sorted(shelves, rows, rows[:, HASH].astype(np.uint64) % np.uint64(buckets))


def put_sorted(shelves: Shelves, rows: Rows, at: npt.NDArray[np.generic]) -> None:
    """Put each row on the shelf that is named for it, keeping their order."""
    if not len(rows):
        return
    by_shelf = np.argsort(at, kind="stable")
    ordered, places = rows[by_shelf], at[by_shelf]
    is_begin = np.ones(len(rows), bool)
    is_begin[1:] = places[1:] != places[:-1]
    begins = np.flatnonzero(is_begin).tolist()
    for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
        shelves.put(int(places[begin]), ordered[begin:end])


class Pairs(NamedTuple):
    """For each output row: its place among the input rows, -1 if it has none, and whether it came too often. For each
    input row: whether it came out. And whether the input repeats a line."""

    place: Numbers
    is_doubled: npt.NDArray[np.bool_]
    is_present: npt.NDArray[np.bool_]
    has_repeats: bool


def pair(expected: Numbers, actual: Numbers) -> Pairs:
    """Pair the hashes of a bucket, both sides in the order of their numbers: the n-th of equals with the n-th."""
    order, turn = np.argsort(expected, kind="stable"), np.argsort(actual, kind="stable")
    known, seen = expected[order], actual[turn]
    begin, end = np.searchsorted(known, seen, "left"), np.searchsorted(known, seen, "right")
    nth = np.arange(len(seen)) - np.searchsorted(seen, seen, "left")
    place = np.full(len(actual), -1, np.int64)
    is_doubled = np.zeros(len(actual), bool)
    is_present = np.zeros(len(expected), bool)
    is_known = end > begin
    # One too many stands where the last of its equals stands.
    place[turn[is_known]] = order[np.minimum(begin + nth, end - 1)[is_known]]
    is_doubled[turn] = is_known & (begin + nth >= end)
    is_present[place[place >= 0]] = True
    return Pairs(place, is_doubled, is_present, bool((known[1:] == known[:-1]).any()))
