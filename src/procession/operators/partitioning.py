"""Partitioning: assigns rows to tasks after an exchange, and to connections of a sink.

Invariant: every row goes to exactly one bucket, and rows keep their order within a bucket. If rows are distributed by
key, the same key always goes to the same bucket, in every process and every version. If the next stage has a watermark,
all its tasks also get the rows that advance it, as ticks. Used by `operators/chain`; `storage/run_store` stores a run
for each bucket. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from procession.operators.chain_rows import INPUT, TICK, TIME, ChainOutput
from procession.operators.stage_rows import Numbers
from procession.operators.stream_join import LEFT, RIGHT
from procession.operators.watermark_timers import InputSteps
from procession.planner.graph import Node
from procession.planner.ownership import separate
from procession.planner.strategies import Routing, routing_of

SHARES = 4096
"""Number of shares into which keys are hashed, for any number of tasks. With n tasks, each has every n-th share."""


def split_evenly(rows: int, buckets: int, turn: int) -> Iterator[tuple[int, int, int]]:
    """Split rows evenly. Yields (bucket, first row, number of rows). The ranges are contiguous, so no row is copied,
    and a merge finds long stretches. `turn` is the first bucket to fill, so that small batches do not all go to bucket
    0."""
    edges = [rows * number // buckets for number in range(buckets + 1)]
    for number in range(buckets):
        if count := edges[number + 1] - edges[number]:
            yield (number + turn) % buckets, edges[number], count


def split_by_key(keys: pa.Array, buckets: int) -> Iterator[tuple[int, Numbers]]:
    """Split rows by their key. Yields (bucket, rows in their order)."""
    # Each distinct key is hashed once, with the same arithmetic as `share_of`.
    encoded = keys.dictionary_encode()
    hashes = np.fromiter(map(zlib.crc32, encoded.dictionary.to_pylist()), np.uint32, len(encoded.dictionary))
    of_key = (hashes % SHARES % buckets).astype(np.uint16)
    yield from _in_buckets(of_key[encoded.indices.to_numpy()])


def split_by_stream(streams: pa.Array, buckets: int) -> Iterator[tuple[int, Numbers]]:
    """Split rows by the id of their stream. Consecutive ids go to consecutive buckets."""
    yield from _in_buckets(streams.to_numpy() % np.uint64(SHARES) % np.uint64(buckets))


def _in_buckets(of_row: Any) -> Iterator[tuple[int, Numbers]]:
    if not len(of_row):
        return
    order = np.argsort(of_row, kind="stable")
    found, firsts = np.unique(of_row[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, firsts[1:]), strict=True)


def share_of(key: bytes) -> int:
    return zlib.crc32(key) % SHARES


def as_result_list(
    function: Callable[[Any], Any], *, is_exposed: bool = True, is_changing: bool = True
) -> Callable[[Any], list[Any]]:
    """Return a function that collects the results of `function` in a list. A result is copied when it is produced if it
    may change later: `is_exposed` means that a later stage may change it, `is_changing` that the function itself
    may."""
    if not is_exposed and not is_changing:
        return lambda value: list(function(value))

    def results(value: Any) -> list[Any]:
        given = function(value)
        return separate(given) if is_exposed or type(given) not in (list, tuple) else list(given)

    return results


def partition_rows(
    index: int, node: Node, rows: pa.RecordBatch, keys: pa.Array | None, tasks: int, *, turn: int, reached: InputSteps
) -> Iterator[ChainOutput]:
    """Yield the rows for each task of the stage with this index: by key, or evenly from task `turn` on. `reached` is
    the progress of the watermark from this task's records, and is updated."""
    if routing_of(node) is not Routing.BY_KEY:
        yield from partition_evenly(index, rows, tasks, turn)
        return
    assert keys is not None
    parts = split_by_key(keys, tasks)
    if node.operator is not None and (steps := node.operator.state.steps) is not None:
        ids = rows.column(INPUT).to_numpy() if INPUT in rows.schema.names else None
        ticks = reached.moved_at(steps(rows.column(TIME).to_numpy()), ids)
        yield from (ChainOutput(index, *part) for part in with_ticks(rows, parts, ticks, tasks))
        return
    yield from partition_by(index, rows, parts)


def partition_evenly(index: int, rows: pa.RecordBatch, buckets: int, turn: int) -> Iterator[ChainOutput]:
    """Yield the rows, split evenly from bucket `turn` on."""
    for bucket, start, count in split_evenly(rows.num_rows, buckets, turn):
        yield ChainOutput(index, bucket, rows.slice(start, count))


def partition_by(index: int, rows: pa.RecordBatch, parts: Iterable[tuple[int, Numbers]]) -> Iterator[ChainOutput]:
    """Yield the rows, split into these parts."""
    for bucket, indexes in parts:
        # If all rows are in one part, no row is copied.
        yield ChainOutput(index, bucket, rows if len(indexes) == rows.num_rows else rows.take(pa.array(indexes)))


def partition_sides(index: int, rows: pa.RecordBatch, sides: Numbers, buckets: int, turn: int) -> Iterator[ChainOutput]:
    """Yield rows of two sides: every bucket gets all rows of the right side, and an even share of the left side."""
    left, right = np.flatnonzero(sides == LEFT), np.flatnonzero(sides == RIGHT)
    own = {bucket: left[start : start + count] for bucket, start, count in split_evenly(len(left), buckets, turn)}
    for bucket in range(buckets) if len(right) else own:
        both = np.sort(np.concatenate((right, own.get(bucket, left[:0]))))
        yield from partition_by(index, rows, [(bucket, both)])


def with_ticks(
    rows: pa.RecordBatch, parts: Iterator[tuple[int, Numbers]], ticks: Numbers, buckets: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each bucket. Rows of other buckets that move the watermark are among them as ticks, in
    order."""
    own_rows = dict(parts)
    for bucket in range(buckets):
        own_indexes = own_rows.get(bucket, np.empty(0, np.int64))
        others = np.setdiff1d(ticks, own_indexes, assume_unique=True)
        if not len(others):
            if len(own_indexes):
                yield bucket, rows.take(pa.array(own_indexes))
            continue
        both = np.sort(np.concatenate((own_indexes, others)))
        is_tick = pa.array(np.isin(both, others))
        taken = rows.take(pa.array(both))
        blank = {"payload": pa.scalar(b"", pa.binary()), "form": pa.scalar(TICK, pa.uint8())}
        columns = [
            pc.if_else(is_tick, blank[name], column) if name in blank else column
            for name, column in zip(taken.schema.names, taken.columns, strict=True)
        ]
        yield bucket, pa.record_batch(columns, names=taken.schema.names)
