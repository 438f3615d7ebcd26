"""Dealing: which rows go to which task behind an exchange.

The one rule: every row goes to one task, in order; and where a watermark moves the stage behind, all tasks learn
of the rows that move it. Before it `plan/chain`, whose rows it deals; after it `storage/runs`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from procession.plan.alarms import Reached
from procession.plan.buckets import dealt, parted
from procession.plan.graph import Node
from procession.plan.rows import Output
from procession.plan.strategies import Way, way_of
from procession.plan.timed import with_ticks


def deal_out(
    index: int, node: Node, rows: pa.RecordBatch, keys: pa.Array | None, tasks: int, *, turn: int, reached: Reached
) -> Iterator[Output]:
    """The rows for each task of the stage with this index: by their keys, or evenly, beginning with the one whose turn
    it is. `reached` says how far this task's records have moved the watermark before, and is moved on."""
    if way_of(node) is not Way.BY_KEY:
        for bucket, start, count in dealt(rows.num_rows, tasks, turn):
            yield Output(index, bucket, rows.slice(start, count))
        return
    assert keys is not None
    parts = parted(keys, tasks)
    if node.stateful is not None and node.stateful.windowing is not None:
        ticks = node.stateful.windowing.ticks(rows, reached)
        yield from (Output(index, *part) for part in with_ticks(rows, parts, ticks, tasks))
        return
    for bucket, rows_of in parts:
        yield Output(index, bucket, rows.take(pa.array(rows_of)))
