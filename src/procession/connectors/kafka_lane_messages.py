"""Converts lanes to and from Kafka messages: messages with order keys, plain messages with records, and frontiers.

    procession-order     header of a message before records: u64 epoch, big-endian. The value is a lane block
                         (`wire/lane_blocks`) with the order keys and event times of as many records as it has rows, and
                         without their payloads and keys. The messages of these records follow.
    procession-block     header of a message with records: u64 epoch, big-endian. The value is a lane block with order
                         keys, event times, payloads and keys. Used instead of the first two kinds, if configured.
    procession-frontier  header of a frontier: u64 epoch, big-endian. The value is a lane block.

Invariant: a record's message has the same key, value and timestamp, and the same size, as without lanes. So a plain
consumer can read the records, and skips messages with one of these headers. A lane is written by one producer, so the
messages of an epoch have consecutive offsets, and a reader need not read the headers of records. Messages with blocks
are for mergers only: client and broker then have one message for thousands of records. `connectors/kafka_sink` writes
the messages; `connectors/kafka_lanes` reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from procession.connectors.kafka_messages import MESSAGE_SCHEMA, MessageEncoder
from procession.errors import RemoteProtocolError
from procession.sdk.record_blocks import block_batch
from procession.wire.lane_blocks import Frontier, LaneRecords, decode_blocks, encode_frontier, encode_records

ORDER_HEADER = "procession-order"
BLOCK_HEADER = "procession-block"
FRONTIER_HEADER = "procession-frontier"
LANE_HEADERS = frozenset({ORDER_HEADER, BLOCK_HEADER, FRONTIER_HEADER})
ORDER_BYTES_MAX = 256 * 1024
"""Maximum size of a message with order keys."""
BLOCK_BYTES_MAX = 256 * 1024
"""Maximum size of a message with a block of several records."""

_EPOCH = struct.Struct(">Q")
_ROW_BYTES = 16
"""Size of a row without its order key: event time, and two empty binaries."""


def messages_of(blocks: Any, encoder: MessageEncoder) -> Iterator[pa.RecordBatch]:
    """Yield the messages of lane blocks, one for each record, as batches of MESSAGE_SCHEMA. Raises
    RemoteProtocolError."""
    for block in decode_blocks(blocks):
        content = block.content
        if isinstance(content, Frontier):
            yield _marked_message(FRONTIER_HEADER, content.epoch, encode_frontier(content))
            continue
        step = max(1, ORDER_BYTES_MAX // (_ROW_BYTES + 8 * (content.batch.num_columns - 3)))
        for start in range(0, content.batch.num_rows, step):
            piece = content.batch.slice(start, step)
            yield _marked_message(ORDER_HEADER, content.epoch, encode_records(content.epoch, _without_contents(piece)))
            yield encoder.encode(block_batch(*(piece.column(place) for place in range(3))))


def block_messages_of(blocks: Any) -> Iterator[pa.RecordBatch]:
    """Yield the messages of lane blocks, one for each block, as batches of MESSAGE_SCHEMA. Raises
    RemoteProtocolError."""
    for block in decode_blocks(blocks):
        content = block.content
        if isinstance(content, Frontier):
            yield _marked_message(FRONTIER_HEADER, content.epoch, encode_frontier(content))
            continue
        for piece in _pieces(content.batch, BLOCK_BYTES_MAX):
            yield _marked_message(BLOCK_HEADER, content.epoch, encode_records(content.epoch, piece))


def _pieces(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of up to `bytes_max` bytes, or of one row."""
    ends = np.arange(1, batch.num_rows + 1) * (_ROW_BYTES + 8 * (batch.num_columns - 3))
    for column in (batch.column(0), batch.column(1)):
        ends += np.cumsum(pc.fill_null(pc.binary_length(column), 0).to_numpy(), dtype=np.int64)
    start = 0
    while start < batch.num_rows:
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + bytes_max, "right")))
        yield batch.slice(start, end - start)
        start = end


def _marked_message(header: str, epoch: int, value: bytes) -> pa.RecordBatch:
    columns = ([None], [value], [0], [[{"name": header, "value": _EPOCH.pack(epoch)}]])
    kinds = zip(columns, MESSAGE_SCHEMA.types, strict=True)
    return pa.record_batch([pa.array(column, kind) for column, kind in kinds], schema=MESSAGE_SCHEMA)


def _without_contents(batch: pa.RecordBatch) -> pa.RecordBatch:
    count = batch.num_rows
    edges = pa.py_buffer(np.zeros(count + 1, np.int32))
    empty = pa.Array.from_buffers(pa.binary(), count, [None, edges, pa.py_buffer(b"")])
    return batch.set_column(0, batch.schema.field(0), empty).set_column(1, batch.schema.field(1), empty)


def content_of(value: bytes | None) -> Frontier | LaneRecords:
    """Return the content of a message with one of these headers: a frontier, order keys or records. Raises
    RemoteProtocolError."""
    contents = [block.content for block in decode_blocks(value or b"")]
    if len(contents) != 1:
        raise RemoteProtocolError(f"a message with the header of a lane has {len(contents)} blocks")
    return contents[0]


def with_contents(orders: pa.RecordBatch, payloads: Sequence[bytes | None], keys: Sequence[bytes | None]) -> Any:
    """Combine the records of messages with their order keys into the columns of a lane."""
    payload = pa.array(payloads, pa.binary())
    if payload.null_count:
        payload = payload.fill_null(b"")
    schema = orders.schema
    return orders.set_column(0, schema.field(0), payload).set_column(1, schema.field(1), pa.array(keys, pa.binary()))
