"""Lanes in Kafka's messages: a record with its order key in a header, and a frontier as a message of its own.

    procession-order     header of a record: u64 epoch, u8 1 if it has an event time, i64 event time in nanoseconds,
                         then i64 for each column of the order key; all big-endian
    procession-frontier  header of a frontier: u64 epoch, big-endian; the value is a lane block (`wire/lane_blocks`)

Invariant: key, value and timestamp of a record's message are those of every Kafka sink. So a plain consumer reads the
records, and skips messages with the header `procession-frontier`. `connectors/kafka_sink` writes the messages;
`connectors/kafka_lanes` reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from procession.connectors.kafka_messages import MESSAGE_SCHEMA, MessageEncoder
from procession.errors import RemoteProtocolError
from procession.merge.kway import key_columns
from procession.sdk.record_blocks import block_batch
from procession.wire.lane_blocks import Frontier, LaneRecords, decode_blocks, encode_frontier, lane_schema

ORDER_HEADER = "procession-order"
FRONTIER_HEADER = "procession-frontier"

_FIXED_BYTES = 17
_EPOCH = struct.Struct(">Q")


def _order_type(keys: int) -> np.dtype[Any]:
    return np.dtype([("epoch", ">u8"), ("has_time", "u1"), ("time", ">i8"), ("keys", ">i8", (keys,))])


def messages_of(blocks: Any, encoder: MessageEncoder) -> Iterator[pa.RecordBatch]:
    """The messages of lane blocks, as batches of MESSAGE_SCHEMA. Raises RemoteProtocolError."""
    for block in decode_blocks(blocks):
        if isinstance(block.content, Frontier):
            yield _frontier_message(block.content)
        else:
            yield _record_messages(block.content, encoder)


def _frontier_message(frontier: Frontier) -> pa.RecordBatch:
    header = {"name": FRONTIER_HEADER, "value": _EPOCH.pack(frontier.epoch)}
    columns = ([None], [encode_frontier(frontier)], [0], [[header]])
    kinds = zip(columns, MESSAGE_SCHEMA.types, strict=True)
    return pa.record_batch([pa.array(column, kind) for column, kind in kinds], schema=MESSAGE_SCHEMA)


def _record_messages(records: LaneRecords, encoder: MessageEncoder) -> pa.RecordBatch:
    batch, count = records.batch, records.batch.num_rows
    times, keys = batch.column("event_time"), key_columns(batch)
    orders = np.zeros(count, _order_type(len(keys)))
    orders["epoch"] = records.epoch
    orders["has_time"] = times.is_valid().to_numpy(zero_copy_only=False)
    orders["time"] = times.fill_null(0).to_numpy()
    orders["keys"] = np.column_stack(keys)
    edges = pa.py_buffer((np.arange(count + 1) * orders.itemsize).astype(np.int32))
    values = pa.Array.from_buffers(pa.binary(), count, [None, edges, pa.py_buffer(orders.tobytes())])
    names = pa.array([ORDER_HEADER] * count, pa.string())
    pairs = pa.StructArray.from_arrays([names, values], fields=list(MESSAGE_SCHEMA.field("headers").type.value_type))
    headers = pa.ListArray.from_arrays(pa.array(np.arange(count + 1), pa.int32()), pairs)
    messages = encoder.encode(block_batch(batch.column("payload"), batch.column("key"), times))
    return messages.set_column(3, MESSAGE_SCHEMA.field("headers"), headers.cast(MESSAGE_SCHEMA.field("headers").type))


def frontier_of(value: bytes | None) -> Frontier:
    """The frontier in a message. Raises RemoteProtocolError."""
    contents = [block.content for block in decode_blocks(value or b"")]
    if len(contents) != 1 or not isinstance(contents[0], Frontier):
        raise RemoteProtocolError("a message with the header of a frontier has none")
    return contents[0]


def epoch_of(order: bytes) -> int:
    """The epoch in the header of a record."""
    if len(order) < _FIXED_BYTES or (len(order) - _FIXED_BYTES) % 8:
        raise RemoteProtocolError(f"the header {ORDER_HEADER} has {len(order)} bytes")
    return int(_EPOCH.unpack_from(order)[0])


def records_of(payloads: Sequence[bytes], keys: Sequence[bytes | None], orders: Sequence[bytes]) -> pa.RecordBatch:
    """The records of messages of one epoch, with the columns of a lane. Raises RemoteProtocolError."""
    sizes = {len(order) for order in orders}
    if len(sizes) != 1:
        raise RemoteProtocolError("records of one epoch have order keys of different lengths")
    count = (sizes.pop() - _FIXED_BYTES) // 8
    rows = np.frombuffer(b"".join(orders), _order_type(count))
    times = pa.array(rows["time"].astype(np.int64), mask=rows["has_time"] == 0)
    columns = [pa.array(rows["keys"][:, place].astype(np.int64)) for place in range(count)]
    named = [pa.array(payloads, pa.binary()), pa.array(keys, pa.binary()), times, *columns]
    return pa.RecordBatch.from_arrays(named, schema=lane_schema(count))
