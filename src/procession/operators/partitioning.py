"""Partitioning: which rows go to which task after an exchange, and to which connection of a sink.

Invariant: every row goes to exactly one of them, in order. If the next stage has a watermark, all its tasks also get
the rows that advance it, as ticks. Used by `operators/chain`; `storage/run_store` writes the result. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from procession.operators.buckets import split_by_key, split_evenly
from procession.operators.chain_rows import INPUT, TICK, TIME, ChainOutput
from procession.operators.stage_rows import Numbers
from procession.operators.watermark_timers import InputSteps
from procession.planner.graph import Node
from procession.planner.strategies import Routing, routing_of


def partition_rows(
    index: int, node: Node, rows: pa.RecordBatch, keys: pa.Array | None, tasks: int, *, turn: int, reached: InputSteps
) -> Iterator[ChainOutput]:
    """The rows for each task of the stage with this index: by key, or evenly from task `turn` on. `reached` is how far
    this task's records have moved the watermark so far; it is updated."""
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
    """Rows, split evenly from bucket `turn` on."""
    for bucket, start, count in split_evenly(rows.num_rows, buckets, turn):
        yield ChainOutput(index, bucket, rows.slice(start, count))


def partition_by(index: int, rows: pa.RecordBatch, parts: Iterable[tuple[int, Numbers]]) -> Iterator[ChainOutput]:
    """Rows, split into these parts."""
    for bucket, own in parts:
        # If all rows are in one part, nothing is copied.
        yield ChainOutput(index, bucket, rows if len(own) == rows.num_rows else rows.take(pa.array(own)))


def with_ticks(
    rows: pa.RecordBatch, parts: Iterator[tuple[int, Numbers]], ticks: Numbers, buckets: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each bucket. Rows of other buckets that move the watermark are among them as ticks, in order."""
    own_rows = dict(parts)
    for bucket in range(buckets):
        mine = own_rows.get(bucket, np.empty(0, np.int64))
        others = np.setdiff1d(ticks, mine, assume_unique=True)
        if not len(others):
            if len(mine):
                yield bucket, rows.take(pa.array(mine))
            continue
        both = np.sort(np.concatenate((mine, others)))
        is_tick = pa.array(np.isin(both, others))
        taken = rows.take(pa.array(both))
        blank = {"payload": pa.scalar(b"", pa.binary()), "form": pa.scalar(TICK, pa.uint8())}
        columns = [
            pc.if_else(is_tick, blank[name], column) if name in blank else column
            for name, column in zip(taken.schema.names, taken.columns, strict=True)
        ]
        yield bucket, pa.record_batch(columns, names=taken.schema.names)
