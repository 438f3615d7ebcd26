"""Record blocks: many records with key and event time in the payload of one MESSAGE, as an Arrow record batch.

Invariant: a block is one Arrow IPC stream with `BLOCK_SCHEMA`, exactly one record batch and no compression. So a
decoded block needs no more memory than its bytes, and its columns are views of them. The same records give the same
bytes. `commit/sink_link` sends blocks to sinks that want records; `sdk/record_blocks` reads them.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from procession.errors import LocalProtocolError, RemoteProtocolError
from procession.wire.frame_codec import FRAME_BYTES_MAX

BLOCK_SCHEMA = pa.schema(
    [
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("event_time_ns", pa.int64()),
    ]
)

BLOCK_BYTES_MAX = 256 * 1024
"""Maximum bytes of a block's payloads and keys after its first record. Larger blocks cost less per record, but more
memory."""

BLOCK_RECORDS_MAX = 65_536
"""Maximum number of records in a block."""

_HEAD = bytes(BLOCK_SCHEMA.serialize())
_END = b"\xff\xff\xff\xff\0\0\0\0"
"""The bytes before and after the batch in an IPC stream."""

_HEADER_FIELD, _COMPRESSION_FIELD = 2, 3
"""Numbers of the fields in Arrow's flatbuffer tables `Message` and `RecordBatch`."""


def encode_block(batch: pa.RecordBatch) -> bytes:
    """Encode a block.

    Args:
        batch: Records with the columns of `BLOCK_SCHEMA`.

    Example:
        >>> batch = block_batch([b"one", b"two"], keys=[b"a", None])
        >>> decode_block(encode_block(batch)).to_pylist()[1]
        {'payload': b'two', 'key': None, 'event_time_ns': None}
    """
    if not batch.schema.equals(BLOCK_SCHEMA):
        raise LocalProtocolError(f"a block has the columns {_shown(BLOCK_SCHEMA)}, not {_shown(batch.schema)}")
    if batch.column(0).null_count:
        raise LocalProtocolError("a record of a block has no payload")
    return b"".join((_HEAD, memoryview(batch.serialize()), _END))


def encode_blocks(batch: pa.RecordBatch, bytes_max: int = BLOCK_BYTES_MAX) -> Iterator[bytes]:
    """Encode the records as blocks, in their order. Each block has at most `bytes_max` bytes of payloads and keys after
    its first record."""
    if not len(batch):
        return
    sizes = pc.add(
        pc.binary_length(batch.column("payload")), pc.fill_null(pc.binary_length(batch.column("key")), 0)
    ).to_numpy(zero_copy_only=False)
    # The blocks result from a cut every `bytes_max` bytes. A record belongs to the block of its last byte.
    ends = np.cumsum(sizes, dtype=np.int64)
    cuts = np.flatnonzero(np.diff(np.maximum(ends - 1, 0) // max(1, bytes_max))) + 1
    edges = [0, *cuts.tolist(), len(batch)]
    for start, end in itertools.pairwise(edges):
        for first in range(start, end, BLOCK_RECORDS_MAX):
            yield encode_block(batch.slice(first, min(BLOCK_RECORDS_MAX, end - first)))


def decode_block(data: bytes | memoryview | pa.Buffer) -> pa.RecordBatch:
    """Decode a block, and check its columns, offsets and limits. The records refer to `data`, without a copy.

    Raises:
        RemoteProtocolError: These bytes are not a block. The sentence says why.
    """
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    if buffer.size > FRAME_BYTES_MAX:
        raise RemoteProtocolError(f"a block has {buffer.size} bytes, the limit is {FRAME_BYTES_MAX}")
    try:
        batch = _read(buffer)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError, struct.error, EOFError) as error:
        raise RemoteProtocolError(f"a block cannot be read: {_first_line(error)}") from None
    if batch.num_rows > BLOCK_RECORDS_MAX:
        raise RemoteProtocolError(f"a block has {batch.num_rows} records, the limit is {BLOCK_RECORDS_MAX}")
    if batch.column(0).null_count:
        raise RemoteProtocolError("a record of a block has no payload")
    return batch


def block_batch(
    payloads: Any, keys: Any | None = None, event_times_ns: Any | None = None, *, count: int | None = None
) -> pa.RecordBatch:
    """Return records as a batch with the columns of `BLOCK_SCHEMA`. Each argument is an Arrow array or a sequence.

    Args:
        payloads: The records.
        keys: A key or None for each record. None: no record has a key.
        event_times_ns: An event time or None for each record. None: no record has an event time.
        count: Number of records, if it is known.
    """
    count = len(payloads) if count is None else count
    columns = []
    for given, kind in zip((payloads, keys, event_times_ns), BLOCK_SCHEMA.types, strict=True):
        if given is None:
            columns.append(pa.nulls(count, kind))
        elif isinstance(given, pa.Array):
            columns.append(given if given.type == kind else given.cast(kind))
        else:
            columns.append(pa.array(given, kind))
    return pa.record_batch(columns, schema=BLOCK_SCHEMA)


def _read(buffer: pa.Buffer) -> pa.RecordBatch:
    reader = pa.BufferReader(buffer)
    messages = pa.ipc.MessageReader.open_stream(reader)
    head = next(messages, None)
    body = next(messages, None)
    if head is None or body is None or next(messages, None) is not None or reader.tell() != buffer.size:
        raise ValueError("it is not one record batch")
    if head.type != "schema" or body.type != "record batch":
        raise ValueError("it is not one record batch after its schema")
    schema = pa.ipc.read_schema(head)
    if not schema.equals(BLOCK_SCHEMA):
        raise ValueError(f"its columns are {_shown(schema)}, not {_shown(BLOCK_SCHEMA)}")
    if _is_compressed(body.metadata):
        raise ValueError("it is compressed")
    return pa.ipc.read_record_batch(body, schema)


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Whether a message of a record batch names a codec. Arrow would allocate the size that such a message claims."""
    data = memoryview(metadata)

    def field(table: int, number: int) -> int:
        vtable = table - struct.unpack_from("<i", data, table)[0]
        if 4 + 2 * number >= struct.unpack_from("<H", data, vtable)[0]:
            return 0
        return int(struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0])

    message = struct.unpack_from("<I", data, 0)[0]
    header = message + field(message, _HEADER_FIELD)
    header += struct.unpack_from("<I", data, header)[0]
    return bool(field(header, _COMPRESSION_FIELD))


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
