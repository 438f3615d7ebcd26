"""The k-way merge: merges sorted paths into one sorted sequence, in whole batches. Pure.

Invariant: rows are compared only by their order key, in columns and never one by one. Two rows with the same key are an
error, because a sequential run has no such rows. The last key of each path's current batch is its frontier, so an empty
or finished path holds nothing back. Used for the runs of an exchange, and of the plan's last chains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from procession.errors import StorageError
from procession.record import ORDER

STRETCH_ROWS_MIN = 64
"""Minimum average length of a stretch of rows from one path for slices instead of copies."""

Key = tuple[int, ...]
Numbers = npt.NDArray[np.int64]


def merged(paths: Iterable[Iterable[pa.RecordBatch]], columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield these columns (None: all) of the rows of all paths, in key order. Holds one batch per path in memory."""
    live = [path for path in map(_Path, paths) if path.batch is not None]
    while len(live) > 1:
        live.sort(key=lambda path: path.first)
        head = live[0]
        if head.last < live[1].first:
            # The whole batch comes before all others, which is common with contiguous ranges and costs nothing.
            yield _chosen(head.take(), columns)
        else:
            frontier = min(path.last for path in live)
            yield from _in_order([path.take_up_to(frontier) for path in live if path.first <= frontier], columns)
        live = [path for path in live if path.batch is not None]
    for path in live:
        while path.batch is not None:
            yield _chosen(path.take(), columns)


class _Path:
    """A path and its current batch."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self.batch: pa.RecordBatch | None = None
        self._next(None)

    def _next(self, rest: pa.RecordBatch | None) -> None:
        while rest is None or not rest.num_rows:
            rest = next(self._batches, None)
            if rest is None:
                self.batch = None
                return
        self.batch = rest
        self.keys = key_columns(rest)
        self.first: Key = tuple(int(column[0]) for column in self.keys)
        self.last: Key = tuple(int(column[-1]) for column in self.keys)

    def take(self) -> pa.RecordBatch:
        """Return the current batch and read the next."""
        batch, before = self.batch, self.last
        self._next(None)
        if self.batch is not None and self.first <= before:
            raise _disorder(self.first)
        return batch

    def take_up_to(self, frontier: Key) -> pa.RecordBatch:
        """Return the current rows whose keys are not above the frontier."""
        assert self.batch is not None
        if self.last <= frontier:
            return self.take()
        count = rows_up_to(self.keys, frontier)
        batch = self.batch
        self._next(batch.slice(count))
        return batch.slice(0, count)


def key_columns(batch: pa.RecordBatch) -> list[Numbers]:
    return [batch.column(name).to_numpy() for name in batch.schema.names if name.startswith(ORDER)]


def rows_up_to(keys: Sequence[Numbers], bound: Key) -> int:
    """Return the number of leading rows whose key is not above this one."""
    low, high = 0, len(keys[0])
    for column, value in zip(keys, bound, strict=True):
        # Not by `value + 1`, which may overflow.
        stretch, bound_here = column[low:high], np.int64(value)
        low, high = low + int(stretch.searchsorted(bound_here)), low + int(stretch.searchsorted(bound_here, "right"))
    return high


def _in_order(parts: Sequence[pa.RecordBatch], columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """Merge the rows of these sorted parts."""
    keys = [np.concatenate(column) for column in zip(*map(key_columns, parts), strict=True)]
    # Skip constant columns. Most of the many key columns of a fired result are constant.
    varying = [column for column in keys if (column != column[0]).any()] or keys[:1]
    order = np.argsort(varying[0], kind="stable") if len(varying) == 1 else np.lexsort(varying[::-1])
    if (row := _first_duplicate([column[order] for column in varying])) is not None:
        raise _disorder(tuple(int(column[order[row]]) for column in keys))
    starts = np.cumsum([0, *(part.num_rows for part in parts)])
    # A stretch ends where the next row is not the next row of the same part.
    is_broken = np.diff(order) != 1
    is_broken |= np.isin(order[1:], starts[1:-1])
    breaks = np.concatenate(([0], np.flatnonzero(is_broken) + 1, [len(order)]))
    if len(breaks) * STRETCH_ROWS_MIN > len(order):
        yield _chosen(pa.concat_batches([_chosen(part, columns) for part in parts]).take(pa.array(order)), None)
        return
    firsts = order[breaks[:-1]]
    owners = np.searchsorted(starts, firsts, side="right") - 1
    for owner, first, count in zip(owners.tolist(), firsts.tolist(), np.diff(breaks).tolist(), strict=True):
        yield _chosen(parts[owner], columns).slice(first - int(starts[owner]), count)


def _first_duplicate(keys: Sequence[Numbers]) -> int | None:
    """Return the first row with the same key as the next row. It shows that paths were counted wrongly."""
    is_same = np.ones(max(0, len(keys[0]) - 1), bool)
    for column in keys:
        is_same &= column[1:] == column[:-1]
    return int(np.argmax(is_same)) if is_same.any() else None


def _disorder(key: Key) -> StorageError:
    return StorageError(f"two records have the same order key {key}, or a path is not sorted there")


def _chosen(batch: Any, columns: Sequence[str] | None) -> pa.RecordBatch:
    return batch if columns is None else batch.select(columns)
