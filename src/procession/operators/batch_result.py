"""The result of a user's batch function, and the input row that each of its rows came from.

Invariant: a row that cannot be traced back to its input is refused if its place in the order matters. A result without
payloads is always refused. Errors raised here are errors of the record. Used by `operators/chain`. Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from procession.operators.stage_rows import Numbers, ordinals


def read_batch_result(result: Any, rows: Numbers, *, is_placed: bool) -> tuple[pa.Array, Numbers, Numbers]:
    """Return the payloads in the result for these rows, the row that each came from, and its number among the results
    of that row. `is_placed`: a later stage needs their order."""
    placed: Numbers | None = None
    if isinstance(result, pa.RecordBatch | pa.Table):
        if "row" in result.schema.names:
            placed = result.column("row").to_numpy()
        result = result.column("payload")
    payload = _payload(result)
    if placed is None and len(payload) == len(rows):
        return payload, rows, np.zeros(len(rows), np.int64)
    if placed is None and is_placed:
        raise TypeError(
            f"map_batches returned {len(payload)} rows for {len(rows)}, and a later stage needs their order: return a"
            " RecordBatch with the column 'row' of the input batch, so that each row can be traced back"
        )
    if placed is None:
        # The rows cannot be traced back, and no later stage needs their order. So they count as results of the first
        # row.
        return payload, np.full(len(payload), rows[0], np.int64), np.zeros(len(payload), np.int64)
    if len(placed) and ((np.diff(placed) < 0).any() or placed[0] < rows[0] or placed[-1] > rows[-1]):
        raise TypeError("map_batches returned rows in another order than the input: process each row on its own")
    starts = np.flatnonzero(np.diff(placed, prepend=-1))
    return payload, placed, ordinals(np.diff(starts, append=len(placed)))


def _payload(column: Any) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not isinstance(column, pa.Array):
        raise TypeError(f"map_batches returned {type(column).__name__}: return an Arrow array or a RecordBatch")
    if column.null_count:
        raise TypeError("map_batches returned a null payload")
    return column.cast(pa.binary())
