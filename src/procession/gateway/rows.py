"""Rows of the ingress log: made of what a session sent, and read again when a gateway recovers. Pure.

The one rule: the rows say all that a restarted gateway must know of what is not committed: ids seen, streams ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from procession.storage.segment import INGRESS_SCHEMA, KIND_EOS, KIND_RECORD
from procession.wire.messages import NOTHING_COMMITTED, Messages


def record_rows(messages: Messages) -> pa.RecordBatch:
    """Messages as a batch of the log's schema: the same columns, not copied."""
    kinds = np.full(len(messages), KIND_RECORD, np.uint8)
    numbers = [pa.array(column) for column in (kinds, messages.stream_ids, messages.message_ids, messages.event_times)]
    return pa.RecordBatch.from_arrays([*numbers, messages.keys, messages.payloads], schema=INGRESS_SCHEMA)


def eos_row(stream_id: int, last_id: int | None) -> pa.RecordBatch:
    """The end of a stream: a row of its own, so that it has a sequence and causes an epoch even on a quiet stream."""
    message_id = NOTHING_COMMITTED if last_id is None else last_id
    values = [[KIND_EOS], [stream_id], [message_id], [0], [b""], [b""]]
    arrays = [pa.array(value, kind) for value, kind in zip(values, INGRESS_SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=INGRESS_SCHEMA)


@dataclass(slots=True)
class Tail:
    """What the uncommitted end of a log says of each stream."""

    seen: dict[int, int] = field(default_factory=dict)
    """Stream id to the last message id."""
    eos_sequences: dict[int, int] = field(default_factory=dict)
    """Stream id to the sequence of its end."""


def read_tail(start: int, batches: Iterable[pa.RecordBatch]) -> Tail:
    """Read rows that begin with sequence `start`."""
    tail = Tail()
    for batch in batches:
        kinds = batch.column("kind").to_numpy()
        for row in np.flatnonzero(kinds == KIND_EOS).tolist():
            tail.eos_sequences[batch.column("stream_id")[row].as_py()] = start + row
        is_record = kinds == KIND_RECORD
        streams = batch.column("stream_id").to_numpy()[is_record][::-1]
        ids = batch.column("message_id").to_numpy()[is_record][::-1]
        # Ids of a stream only grow along the log, so the last one is the highest, here and in a later batch.
        names, lasts = np.unique(streams, return_index=True)
        tail.seen.update(zip(names.tolist(), ids[lasts].tolist(), strict=True))
        start += batch.num_rows
    return tail
