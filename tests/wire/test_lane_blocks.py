"""Lane blocks: they decode to what was encoded, and anything else is refused with a reason."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.errors import RemoteProtocolError
from procession.wire.lane_blocks import (
    HEADER_BYTES,
    BlockKind,
    Frontier,
    LaneIdentity,
    LaneRecords,
    block_edges,
    decode_blocks,
    encode_frontier,
    encode_records,
    lane_schema,
)

IDENTITY = LaneIdentity("0123456789abcdef", "shop", "trades", (3,), 8, "total", "lines", 15)
RECORDS = st.lists(
    st.tuples(st.binary(max_size=9), st.none() | st.binary(max_size=3), st.none() | st.integers(-9, 9)), max_size=9
)


def lane(rows: list[tuple[bytes, bytes | None, int | None]], epoch: int, keys: int) -> bytes:
    kinds = enumerate(lane_schema(0).types)
    columns = [pa.array([row[place] for row in rows], kind) for place, kind in kinds]
    order = [pa.array(range(len(rows)), pa.int64()) for _ in range(keys)]
    batch = pa.RecordBatch.from_arrays([*columns, *order], schema=lane_schema(keys))
    return encode_records(epoch, batch) + encode_frontier(Frontier(epoch, IDENTITY, len(rows), len(rows) + 5))


@given(rows=RECORDS, epoch=st.integers(0, 2**64 - 1), keys=st.integers(1, 5))
def test_what_was_encoded_is_decoded(rows: list[tuple[bytes, bytes | None, int | None]], epoch: int, keys: int) -> None:
    data = lane(rows, epoch, keys)
    records, frontier = (block.content for block in decode_blocks(data))
    assert isinstance(records, LaneRecords)
    assert records.epoch == epoch
    assert [tuple(row.values())[:3] for row in records.batch.to_pylist()] == rows
    assert frontier == Frontier(epoch, IDENTITY, len(rows), len(rows) + 5)
    edges = list(block_edges(pa.py_buffer(data), 0, len(data)))
    assert [edge.kind for edge in edges] == [BlockKind.RECORDS, BlockKind.FRONTIER]
    assert edges[-1].end == len(data)
    assert len(data) % 8 == 0, "so that columns in a mapped file are aligned"


@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_is_noticed(place: int, bit: int) -> None:
    whole = lane([(b"abc", None, 1), (b"d", b"k", None)], 7, 2)
    place %= len(whole)
    starts = [edges.start for edges in block_edges(pa.py_buffer(whole), 0, len(whole))]
    data = bytearray(whole)
    data[place] ^= 1 << bit
    if not any(start + HEADER_BYTES - 4 <= place < start + HEADER_BYTES for start in starts):  # the padding
        with pytest.raises(RemoteProtocolError):
            list(decode_blocks(bytes(data)))


@given(end=st.integers(1, 10_000))
def test_a_block_that_is_cut_off_is_noticed(end: int) -> None:
    data = lane([(b"abc", None, 1)], 7, 2)
    first = next(iter(block_edges(pa.py_buffer(data), 0, len(data)))).end
    if end < len(data) and end != first:
        with pytest.raises(RemoteProtocolError, match="ends within a block"):
            list(decode_blocks(data[:end]))


def test_a_block_of_a_later_format_is_refused() -> None:
    data = bytearray(lane([], 0, 1))
    data[4] = 2
    with pytest.raises(RemoteProtocolError, match="has format 2, this version reads 1"):
        list(decode_blocks(bytes(data)))


def test_bytes_of_another_kind_of_sink_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="no lane block at byte 0"):
        list(decode_blocks(b"one line of a file sink, longer than a header\n"))


def test_a_huge_length_needs_no_memory() -> None:
    data = bytearray(lane([], 0, 1))
    struct.pack_into("<I", data, 12, 2**32 - 1)
    with pytest.raises(RemoteProtocolError, match="ends within a block"):
        list(decode_blocks(bytes(data)))
