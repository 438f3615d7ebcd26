"""The ends of a stage's input in an epoch, and the row that stands for an end.

Invariant: an end has a position in the sequence, as a record has. All results that it causes have that position, by
stage in the order of the program, and within a stage in the stage's own order. `operators/end_of_input` finds the
position; `operators/chain` asks the operator what it emits. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from procession.operators.chain_rows import ChainRows
from procession.operators.end_of_input import ENDS, EndCondition, EndOfInput, StreamChange, new_mark
from procession.operators.operator import StateAccess
from procession.operators.value_codec import BYTES
from procession.planner.inputs import InputChange
from procession.planner.keys import NO_KEY


def find_ends(ending: EndCondition, states: StateAccess, changes: Sequence[StreamChange]) -> list[EndOfInput]:
    """Find the ends of a stage's input in this epoch. Data for the next epoch is stored with the stage's states."""
    if not changes:
        return []
    mark = states.take([ENDS]).setdefault(ENDS, new_mark())
    ends = ending.follow(mark, changes)
    states.touch([ENDS])
    return ends


def row_of_end(key: Sequence[int], end: EndOfInput | InputChange, *, is_carrying: bool) -> ChainRows:
    """Return a row that stands for the end, with this order key. It is the origin of the results."""
    columns = {
        "key": pa.array([NO_KEY], pa.binary()),
        "event_time": pa.array([end.time], pa.int64()),
        "stream_id": pa.array([end.stream], pa.uint64()),
        "message_id": pa.array([0], pa.uint64()),
    }
    return ChainRows(
        pa.array([b""], pa.binary()),
        tuple(np.array([number], np.int64) for number in key),
        np.array([BYTES], np.uint8),
        pa.record_batch(columns) if is_carrying else None,
        pa.array([NO_KEY], pa.binary()),
        np.array([end.time], np.int64),
    )
