"""Matches each output record with its input record, in bounded memory.

Invariant: equal lines are in the same bucket. Each line is reduced to a 64-bit hash and its number, and stored in
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

# Rows of 64-bit numbers. The caller defines the columns.
Rows = npt.NDArray[np.int64]
HASH, NUMBER, KEY = range(3)


class Buckets(Protocol):
    """Storage for rows. Each call returns a bucket's rows in the order in which they were added."""

    def put(self, bucket: int, rows: Rows) -> None: ...

    def take(self, bucket: int) -> Rows: ...


# Returns empty buckets for rows with this number of columns.
NewBuckets = Callable[[int], Buckets]


class MemoryBuckets:
    """Buckets in memory."""

    def __init__(self, columns: int) -> None:
        self._rows: dict[int, list[Rows]] = defaultdict(lambda: [np.empty((0, columns), np.int64)])

    def put(self, bucket: int, rows: Rows) -> None:
        self._rows[bucket].append(rows)

    def take(self, bucket: int) -> Rows:
        return np.concatenate(self._rows[bucket])


class FiledLines(NamedTuple):
    """The number of lines that were put into buckets, and the incomplete lines, which are in no bucket."""

    lines: int
    broken: tuple[int, ...]


def file_lines(
    chunks: Iterable[bytes], storage: Buckets, buckets: int, *, begin: int = 0, key_of: KeyOf | None = None
) -> FiledLines:
    """Put every line into the bucket of its hash. Lines are numbered from `begin`."""
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
            file_rows(storage, np.concatenate(waiting), buckets)
            waiting, waiting_count = [], 0
    if waiting:
        file_rows(storage, np.concatenate(waiting), buckets)
    return FiledLines(number - begin, tuple(broken))


def file_rows(storage: Buckets, rows: Rows, buckets: int) -> None:
    put_sorted(storage, rows, rows[:, HASH].astype(np.uint64) % np.uint64(buckets))


def put_sorted(storage: Buckets, rows: Rows, at: npt.NDArray[np.generic]) -> None:
    """Put each row into its bucket, in order."""
    if not len(rows):
        return
    by_bucket = np.argsort(at, kind="stable")
    ordered, places = rows[by_bucket], at[by_bucket]
    is_begin = np.ones(len(rows), bool)
    is_begin[1:] = places[1:] != places[:-1]
    begins = np.flatnonzero(is_begin).tolist()
    for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
        storage.put(int(places[begin]), ordered[begin:end])


class MatchedRows(NamedTuple):
    """The matches of a bucket: for each output row its input row, or -1, and whether it is a duplicate; for each
    input row whether it is in the output; and whether the input repeats a line."""

    place: Numbers
    is_doubled: npt.NDArray[np.bool_]
    is_present: npt.NDArray[np.bool_]
    has_repeats: bool


def pair(expected: Numbers, actual: Numbers) -> MatchedRows:
    """Pair the hashes of a bucket: the n-th of several equal lines in the output with the n-th in the input."""
    order, turn = np.argsort(expected, kind="stable"), np.argsort(actual, kind="stable")
    known, seen = expected[order], actual[turn]
    begin, end = np.searchsorted(known, seen, "left"), np.searchsorted(known, seen, "right")
    nth = np.arange(len(seen)) - np.searchsorted(seen, seen, "left")
    place = np.full(len(actual), -1, np.int64)
    is_doubled = np.zeros(len(actual), bool)
    is_present = np.zeros(len(expected), bool)
    is_known = end > begin
    # A duplicate gets the position of the last equal line.
    place[turn[is_known]] = order[np.minimum(begin + nth, end - 1)[is_known]]
    is_doubled[turn] = is_known & (begin + nth >= end)
    is_present[place[place >= 0]] = True
    return MatchedRows(place, is_doubled, is_present, bool((known[1:] == known[:-1]).any()))
