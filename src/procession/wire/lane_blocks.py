"""Lane blocks: the records of one lane with their order keys, and frontiers that mark complete epochs. Pure.

    header   magic "PRLN", u8 format, u8 kind, u16 number of key columns, u32 rows, u32 bytes of the body, u64 epoch,
             u32 crc32 of all this and the body, u32 zero
    body     of records: an Arrow record batch (an IPC message without its schema), see `lane_schema`
             of a frontier: JSON, see `Frontier`; filled up with spaces to a multiple of 8

Invariant: a lane is a sequence of blocks. The records of an epoch are sorted by their order key, and a frontier follows
them: after it, the lane has no more records of this epoch. So an epoch without records still has a frontier, and a
merger never waits for an idle lane. The frontier says which lanes belong together. `commit/lane_emitter` makes blocks;
`sdk/lane_files` and the Kafka sink read them.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

import pyarrow as pa
from isal.isal_zlib import crc32  # the same values as zlib's, ten times as fast

from procession.errors import RemoteProtocolError
from procession.record import ORDER

FORMAT = 1
KEY_COLUMNS_MAX = 1024

_HEAD = struct.Struct("<4sBBHIIQ")
_CHECK = struct.Struct("<I4x")
_MAGIC = b"PRLN"
HEADER_BYTES = _HEAD.size + _CHECK.size
BODY_BYTES_MAX = 256 * 1024 * 1024


class BlockKind(IntEnum):
    RECORDS = 1
    FRONTIER = 2


@dataclass(frozen=True, slots=True)
class LaneIdentity:
    """The output that a lane is part of. Lanes with the same `group` have the records of one output together."""

    group: str
    """A digest of the pipeline's checkpoint, the sink and the number of lanes: `group_of`."""
    pipeline: str
    sink: str
    covers: tuple[int, ...]
    """The lanes of the sink whose records are in this lane: one, or several if a merger wrote this lane."""
    lanes: int
    """Number of lanes of the sink."""
    order: str
    """The order of the sink. `total`: a lane has the records of some tasks. `key` or `stream`: of some keys or
    streams."""
    framing: str = "lines"
    """How a merger separates records by default."""
    paths: int = 0
    """Number of tasks that the sink's records come from. Path p goes to lane p modulo `lanes` (order `total`)."""

    def covering(self, covers: Sequence[int]) -> LaneIdentity:
        """Return the identity of a lane that a merger makes of these lanes."""
        return replace(self, covers=tuple(covers))


class Frontier(NamedTuple):
    """The end of an epoch in a lane."""

    epoch: int
    identity: LaneIdentity
    records: int
    """Number of records of the epoch in this lane."""
    total: int
    """Number of records of the epoch in all lanes of the sink."""


class LaneRecords(NamedTuple):
    """Records of an epoch in a lane, sorted, with the columns of `lane_schema`."""

    epoch: int
    batch: pa.RecordBatch


class LaneBlock(NamedTuple):
    """A block and the position after it."""

    content: LaneRecords | Frontier
    end: int


def group_of(checkpoint: str, pipeline: str, sink: str, lanes: int) -> str:
    return hashlib.sha256(json.dumps([checkpoint, pipeline, sink, lanes]).encode()).hexdigest()[:16]


def lane_schema(keys: int) -> pa.Schema:
    """Return the columns of records in a lane, with this number of columns of the order key."""
    return pa.schema(
        [
            pa.field("payload", pa.binary(), nullable=False),
            pa.field("key", pa.binary()),
            pa.field("event_time", pa.int64()),
            *(pa.field(f"{ORDER}{number}", pa.int64(), nullable=False) for number in range(keys)),
        ]
    )


def lane_batch(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Convert the rows of a run to the columns of a lane."""
    keys = sum(name.startswith(ORDER) for name in rows.schema.names)
    schema = lane_schema(keys)
    return pa.RecordBatch.from_arrays([rows.column(name) for name in schema.names], schema=schema)


def encode_records(epoch: int, batch: pa.RecordBatch) -> bytes:
    keys = len(batch.schema.names) - 3
    return _encoded(BlockKind.RECORDS, keys, batch.num_rows, epoch, bytes(batch.serialize()))


def encode_frontier(frontier: Frontier) -> bytes:
    facts = {**asdict(frontier.identity), "records": frontier.records, "total": frontier.total}
    body = json.dumps(facts, separators=(",", ":")).encode()
    return _encoded(BlockKind.FRONTIER, 0, 0, frontier.epoch, body.ljust(-(-len(body) // 8) * 8))


def _encoded(kind: BlockKind, keys: int, rows: int, epoch: int, body: bytes) -> bytes:
    head = _HEAD.pack(_MAGIC, FORMAT, kind, keys, rows, len(body), epoch)
    return b"".join((head, _CHECK.pack(crc32(body, crc32(head))), body))


def decode_blocks(data: Any, position: int = 0, end: int | None = None) -> Iterator[LaneBlock]:
    """Decode the blocks of these bytes (or of a buffer) from a position on. Records refer to `data`, without a copy.

    Raises:
        RemoteProtocolError: The bytes at a position are not a block, or the last block is incomplete.
    """
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    end = buffer.size if end is None else end
    while position < end:
        block = _decoded(buffer, position, end)
        yield block
        position = block.end


class BlockEdges(NamedTuple):
    """The position and size of a block, read from its header alone."""

    kind: int
    epoch: int
    rows: int
    keys: int
    start: int
    end: int


def block_edges(buffer: pa.Buffer, position: int, end: int) -> Iterator[BlockEdges]:
    """Yield the blocks of a buffer from a position on, without reading their bodies. Raises RemoteProtocolError."""
    view = memoryview(buffer)
    while position < end:
        edges = _edges(view, position, end)
        yield edges
        position = edges.end


def _edges(view: memoryview, position: int, end: int) -> BlockEdges:
    if end - position < HEADER_BYTES:
        raise RemoteProtocolError(f"a lane ends within a block at byte {position}")
    magic, number, kind, keys, rows, length, epoch = _HEAD.unpack_from(view, position)
    if magic != _MAGIC:
        raise RemoteProtocolError(f"there is no lane block at byte {position}")
    if number != FORMAT:
        raise RemoteProtocolError(f"the lane block at byte {position} has format {number}, this version reads {FORMAT}")
    body = position + HEADER_BYTES
    if length > min(BODY_BYTES_MAX, end - body) or keys > KEY_COLUMNS_MAX:
        raise RemoteProtocolError(f"a lane ends within a block at byte {position}")
    return BlockEdges(kind, epoch, rows, keys, position, body + length)


def _decoded(buffer: pa.Buffer, position: int, end: int) -> LaneBlock:
    view = memoryview(buffer)
    kind, epoch, rows, keys, _, block_end = _edges(view, position, end)
    body, length = position + HEADER_BYTES, block_end - position - HEADER_BYTES
    (check,) = _CHECK.unpack_from(view, position + _HEAD.size)
    if crc32(view[body : body + length], crc32(view[position : position + _HEAD.size])) != check:
        raise RemoteProtocolError(f"the lane block at byte {position} does not match its checksum")
    if kind == BlockKind.RECORDS:
        return LaneBlock(LaneRecords(epoch, _batch(buffer.slice(body, length), keys, rows, position)), body + length)
    if kind == BlockKind.FRONTIER:
        return LaneBlock(_frontier(epoch, bytes(view[body : body + length]), position), body + length)
    raise RemoteProtocolError(f"the lane block at byte {position} is of the unknown kind {kind}")


def _batch(buffer: pa.Buffer, keys: int, rows: int, position: int) -> pa.RecordBatch:
    try:
        batch = pa.ipc.read_record_batch(buffer, lane_schema(keys))
        batch.validate()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RemoteProtocolError(
            f"the lane block at byte {position} cannot be read: {str(error).splitlines()[0]}"
        ) from None
    if batch.num_rows != rows:
        raise RemoteProtocolError(
            f"the lane block at byte {position} has {batch.num_rows} records, its header says {rows}"
        )
    return batch


def _frontier(epoch: int, body: bytes, position: int) -> Frontier:
    try:
        facts = json.loads(body)
        records, total = int(facts.pop("records")), int(facts.pop("total"))
        identity = LaneIdentity(**{**facts, "covers": tuple(map(int, facts["covers"]))})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RemoteProtocolError(f"the frontier at byte {position} cannot be read: {error}") from None
    return Frontier(epoch, identity, records, total)
