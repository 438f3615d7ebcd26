"""What stages emit when their input has ended.

The one rule: an end is a position in the sequence, like a record's. All results that it causes have that position,
stage by stage in the order in which they were written, and within a stage in the stage's own order.
`operators/end_of_input` finds the position; `operators/chain` passes the results on. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from procession.operators.chain_rows import Rows
from procession.operators.end_of_input import ENDS, Change, End, Ending, new_mark
from procession.operators.keyed import States
from procession.operators.value_codec import BYTES
from procession.planner.inputs import Turn
from procession.planner.keyed_spec import Stateful
from procession.planner.keys import NO_KEY
from procession.planner.order_key import Result


def followed(ending: Ending, states: States, changes: Sequence[Change]) -> list[End]:
    """The ends of a stage's input in this epoch; what must be known in the next is put with its states."""
    if not changes:
        return []
    mark = states.take([ENDS]).setdefault(ENDS, new_mark())
    ends = ending.follow(mark, changes)
    states.touch([ENDS])
    return ends


def fired_at_end(stateful: Stateful, states: States) -> Iterator[Sequence[Result]]:
    """What the stage lets out, in order, and a bounded number at a time."""
    stage = stateful.windowing or stateful.totals or stateful.sorting
    assert stage is not None
    return stage.end(states)


def row_of_end(key: Sequence[int], end: End | Turn, *, is_carrying: bool) -> Rows:
    """A row that stands for the end, with this order key: what the results come from."""
    columns = {
        "key": pa.array([NO_KEY], pa.binary()),
        "event_time": pa.array([end.time], pa.int64()),
        "stream_id": pa.array([end.stream], pa.uint64()),
        "message_id": pa.array([0], pa.uint64()),
    }
    return Rows(
        pa.array([b""], pa.binary()),
        tuple(np.array([number], np.int64) for number in key),
        np.array([BYTES], np.uint8),
        pa.record_batch(columns) if is_carrying else None,
        pa.array([NO_KEY], pa.binary()),
        np.array([end.time], np.int64),
    )
