"""Rows of the ingress log: built from a session's messages, and read again when a gateway recovers. Pure.

Invariant: the rows contain everything that a restarted gateway must know about uncommitted records: the received ids,
the ended streams, and the groups that an epoch must not split.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from procession.storage.segment import (
    INGRESS_SCHEMA,
    KIND_BOUNDARY,
    KIND_EOS,
    KIND_GIVEN,
    KIND_MOVED,
    KIND_RECORD,
    KIND_TICK,
    KIND_UNSTABLE,
)
from procession.wire.messages import NOTHING_COMMITTED, Messages


def record_rows(messages: Messages) -> pa.RecordBatch:
    """Convert messages to a batch with the log's schema. The columns are not copied."""
    count = len(messages)
    columns = (np.full(count, KIND_RECORD, np.uint8), messages.stream_ids, messages.message_ids, messages.event_times)
    numbers = [
        pa.Array.from_buffers(kind, count, [None, pa.py_buffer(column)])
        for kind, column in zip(INGRESS_SCHEMA.types, columns, strict=False)
    ]
    return pa.RecordBatch.from_arrays([*numbers, messages.keys, messages.payloads], schema=INGRESS_SCHEMA)


_NUMBERS_BYTES = 1 + 3 * 8
"""Bytes of the kind, stream id, message id and event time of one row."""


def size_of(batch: pa.RecordBatch) -> int:
    """Return the approximate bytes of rows. `nbytes` is exact, but costs more than all other work on a batch here."""
    rows: int = batch.num_rows
    return rows * _NUMBERS_BYTES + sum(_binary_bytes(batch.column(name)) for name in ("key", "payload"))


def _binary_bytes(array: pa.Array) -> int:
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)
    return offsets.nbytes + int(offsets[-1] - offsets[0])


def row_sizes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the bytes of each row. Their sum is approximately `size_of` the batch."""
    sizes = np.full(batch.num_rows, _NUMBERS_BYTES + 2 * 4, np.int64)
    for name in ("key", "payload"):
        array = batch.column(name)
        offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)
        sizes += np.diff(offsets)
    return sizes


_ROW = pa.struct(list(INGRESS_SCHEMA))


class LogRow(NamedTuple):
    """One row of the ingress log."""

    kind: int
    stream_id: int
    message_id: int
    event_time: int = 0
    key: bytes = b""
    payload: bytes = b""


def eos_row(stream_id: int, last_id: int | None) -> LogRow:
    """Return a row for the end of a stream. With a row, the end has a sequence and causes an epoch even on a quiet
    stream."""
    return LogRow(KIND_EOS, stream_id, NOTHING_COMMITTED if last_id is None else last_id)


def tick_row(stream_id: int, last_id: int | None, watermark: int) -> LogRow:
    """Return a row for the watermark of an idle stream, so that the merge stops waiting for it. In the log, the
    watermark survives a restart."""
    return LogRow(KIND_TICK, stream_id, last_id or 0, watermark)


def moved_out_row(stream_id: int, watermark: int) -> LogRow:
    """Return a row that says: from here on, the stream and its waiting records come through another gateway."""
    return LogRow(KIND_GIVEN, stream_id, 0, watermark)


def moved_in_row(stream_id: int, last_id: int, watermark: int) -> LogRow:
    """Return a row that says: from here on, the stream comes through this gateway, after another gateway."""
    return LogRow(KIND_MOVED, stream_id, last_id, watermark)


def batch_of(rows: Sequence[LogRow]) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.array(rows, _ROW))


@dataclass(slots=True)
class LogTail:
    """The state of each stream, as read from the uncommitted end of a log."""

    seen: dict[int, int | None] = field(default_factory=dict)
    """The last message id of each stream. None: all rows of the stream here are from before its stay at another
    gateway."""
    eos_sequences: dict[int, int] = field(default_factory=dict)
    """The sequence of the end of each ended stream."""
    groups_end: int = 0
    """Sequence after the last row of a group. No row from here on belongs to a group."""


def read_tail(start: int, batches: Iterable[pa.RecordBatch]) -> LogTail:
    """Read rows whose first row has the sequence `start`."""
    tail = LogTail()
    for batch in batches:
        kinds = batch.column("kind").to_numpy()
        for row in np.flatnonzero(kinds == KIND_EOS).tolist():
            tail.eos_sequences[batch.column("stream_id")[row].as_py()] = start + row
        for row in np.flatnonzero(kinds == KIND_UNSTABLE)[-1:].tolist():
            tail.groups_end = start + row + 2
        is_reference = (kinds == KIND_RECORD) | (kinds == KIND_BOUNDARY)
        streams = batch.column("stream_id").to_numpy()[is_reference][::-1]
        ids = batch.column("message_id").to_numpy()[is_reference][::-1]
        # The ids of a stream increase along the log, so the last id is the highest, in this batch and in later ones.
        names, lasts = np.unique(streams, return_index=True)
        tail.seen.update(zip(names.tolist(), ids[lasts].tolist(), strict=True))
        start += batch.num_rows
    return tail


def whole_groups(start: int, end: int, before: Iterable[pa.RecordBatch], after: Iterable[pa.RecordBatch]) -> int:
    """Return the end of an epoch that begins at `start`, so that it splits no group. That is the start of the group
    that `end` would split, or the end of that group if the epoch would be empty. `before` are the rows up to `end`,
    `after` the rows that follow."""
    first, edge = start, start
    for batch in before:
        closing = np.flatnonzero(batch.column("kind").to_numpy() != KIND_UNSTABLE)
        edge = first + int(closing[-1]) + 1 if closing.size else edge
        first += batch.num_rows
    if edge > start:
        return edge
    for batch in after:
        closing = np.flatnonzero(batch.column("kind").to_numpy() != KIND_UNSTABLE)
        if closing.size:
            return first + int(closing[0]) + 1
        first += batch.num_rows
    return end
