"""Interleaves the ordered logs of several gateways, each sorted, into one sequence. Pure.

Invariant: rows are ordered by (order time, stream id, message id), regardless of their gateway. So the sequence is the
same as that of a single gateway. A stream is at one gateway at a time, so the order is total. `spark/log_source` splits
the ordered logs; `spark/tasks` reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from procession.merge.stream_clocks import Ids, Numbers
from procession.merge.waiting_rows import Key


class RowPlaces(NamedTuple):
    """The order keys of rows of an ordered log, in columns."""

    order_times: Numbers
    stream_ids: Ids
    message_ids: Ids

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch]) -> RowPlaces:
        parts = list(batches)
        times = [np.empty(0, np.int64), *(part.column("order_time").to_numpy() for part in parts)]
        streams = [np.empty(0, np.uint64), *(part.column("stream_id").to_numpy() for part in parts)]
        ids = [np.empty(0, np.uint64), *(part.column("message_id").to_numpy() for part in parts)]
        return cls(np.concatenate(times), np.concatenate(streams), np.concatenate(ids))

    def key(self, row: int) -> Key:
        return Key(int(self.order_times[row]), int(self.stream_ids[row]), int(self.message_ids[row]))

    def count_up_to(self, key: Key) -> int:
        """Return the number of leading rows whose key is not above this one."""
        low, high = 0, len(self.order_times)
        for column, value in zip(self, key, strict=True):
            stretch, bound = column[low:high], column.dtype.type(value)
            low, high = low + int(stretch.searchsorted(bound)), low + int(stretch.searchsorted(bound, "right"))
        return high


def order_of(paths: Sequence[RowPlaces]) -> Numbers:
    """Return the sort order of the concatenated rows of all paths.

    The end of a stream has the id of its last record, and stays after it, because the sort is stable."""
    times, streams, ids = (np.concatenate(column) for column in zip(*paths, strict=True))
    return np.lexsort((ids, streams, times))


def row_ranges(paths: Sequence[RowPlaces], edges: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Cut the interleaved sequence at these edges. Yield for each part the rows [first, last) of every path in it."""
    starts = np.cumsum([0, *(len(path.order_times) for path in paths)])
    owners = np.searchsorted(starts[1:], order_of(paths), "right")
    at = np.bincount(owners[: edges[0]], minlength=len(paths))
    for first, last in pairwise(edges):
        reach = at + np.bincount(owners[first:last], minlength=len(paths))
        yield list(zip(at.tolist(), reach.tolist(), strict=True))
        at = reach


def interleaved(paths: Sequence[Sequence[pa.RecordBatch]]) -> pa.RecordBatch:
    """Return the rows of these non-empty paths as one batch in order."""
    order = order_of([RowPlaces.of(path) for path in paths])
    return pa.concat_batches([batch for path in paths for batch in path]).take(pa.array(order))
