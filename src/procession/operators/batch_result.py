"""The result of a user's batch function, and which input row each of its rows came from.

The one rule: a row that cannot be traced back to its input is refused where its place in the order matters. A result
without payloads is always refused. Errors raised here are errors of the record. Used by `operators/chain`. Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from procession.operators.stage_rows import Numbers, ordinals


def read_answer(answer: Any, rows: Numbers, *, is_placed: bool) -> tuple[pa.Array, Numbers, Numbers]:
    """The payloads of an answer for these rows, the row that each came from, and its number among those of that row.
    `is_placed`: somebody behind must know their place."""
    placed: Numbers | None = None
    if isinstance(answer, pa.RecordBatch | pa.Table):
        if "row" in answer.schema.names:
            placed = answer.column("row").to_numpy()
        answer = answer.column("payload")
    payload = _payload(answer)
    if placed is None and len(payload) == len(rows):
        return payload, rows, np.zeros(len(rows), np.int64)
    if placed is None and is_placed:
        raise TypeError(
            f"map_batches made {len(payload)} rows of {len(rows)}, and they must be put in order behind it:"
            " give back a RecordBatch with the column 'row' of the batch that came, so that each row is known again"
        )
    if placed is None:
        # The rows have lost their numbers, and nobody behind needs them: they are said to come from the first.
        return payload, np.full(len(payload), rows[0], np.int64), np.zeros(len(payload), np.int64)
    if len(placed) and ((np.diff(placed) < 0).any() or placed[0] < rows[0] or placed[-1] > rows[-1]):
        raise TypeError("map_batches gave rows back in another order than they came: treat each row on its own")
    starts = np.flatnonzero(np.diff(placed, prepend=-1))
    return payload, placed, ordinals(np.diff(starts, append=len(placed)))


def _payload(answer: Any) -> pa.Array:
    if isinstance(answer, pa.ChunkedArray):
        answer = answer.combine_chunks()
    if not isinstance(answer, pa.Array):
        raise TypeError(f"map_batches gave back {type(answer).__name__}: give an Arrow array or a RecordBatch")
    if answer.null_count:
        raise TypeError("map_batches gave back a null payload")
    return answer.cast(pa.binary())
