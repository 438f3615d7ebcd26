"""Partitioning: which rows go to which task behind an exchange, and to which connection of a sink.

The one rule: every row goes to exactly one of them, in order. If the next stage has a watermark, all its tasks also
learn of the rows that advance it. Used by `operators/chain`; written by `storage/run_store`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from procession.operators.buckets import dealt, parted
from procession.operators.chain_rows import INPUT, TIME, Output
from procession.operators.stage_rows import Numbers
from procession.operators.watermark_timers import Reached
from procession.operators.window_operator import with_ticks
from procession.planner.graph import Node
from procession.planner.strategies import Way, way_of


def deal_out(
    index: int, node: Node, rows: pa.RecordBatch, keys: pa.Array | None, tasks: int, *, turn: int, reached: Reached
) -> Iterator[Output]:
    """The rows for each task of the stage with this index: by their keys, or evenly, beginning with the one whose turn
    it is. `reached` says how far this task's records have moved the watermark before, and is moved on."""
    if way_of(node) is not Way.BY_KEY:
        yield from dealt_out(index, rows, tasks, turn)
        return
    assert keys is not None
    parts = parted(keys, tasks)
    if node.stateful is not None and node.stateful.windowing is not None:
        ids = rows.column(INPUT).to_numpy() if INPUT in rows.schema.names else None
        ticks = reached.moved_at(node.stateful.windowing.steps(rows.column(TIME).to_numpy()), ids)
        yield from (Output(index, *part) for part in with_ticks(rows, parts, ticks, tasks))
        return
    yield from shared_out(index, rows, parts)


def dealt_out(index: int, rows: pa.RecordBatch, buckets: int, turn: int) -> Iterator[Output]:
    """Rows dealt out evenly."""
    for bucket, start, count in dealt(rows.num_rows, buckets, turn):
        yield Output(index, bucket, rows.slice(start, count))


def shared_out(index: int, rows: pa.RecordBatch, parts: Iterable[tuple[int, Numbers]]) -> Iterator[Output]:
    """Rows, each in the part that it is named in."""
    for bucket, own in parts:
        # All of them, as where a task has the keys of one connection only: nothing is copied.
        yield Output(index, bucket, rows if len(own) == rows.num_rows else rows.take(pa.array(own)))
