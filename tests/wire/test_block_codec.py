"""Record blocks as bytes: decoded blocks equal encoded ones, and all other bytes are refused."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.errors import LocalProtocolError, RemoteProtocolError
from procession.wire.block_codec import (
    BLOCK_RECORDS_MAX,
    block_batch,
    decode_block,
    encode_block,
    encode_blocks,
)
from procession.wire.frame_codec import FRAME_BYTES_MAX

BLOCK = encode_block(block_batch([b"one", b"two"], keys=[b"a", None], event_times_ns=[5, None]))

records = st.lists(
    st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=9), st.none() | st.integers(-(2**63), 2**63 - 1))
)


def batch_of(rows: list[tuple[bytes, bytes | None, int | None]]) -> pa.RecordBatch:
    return block_batch([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])


def ipc(batch: pa.RecordBatch, **options: str) -> bytes:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return bytes(stream.getvalue())


@given(records, st.integers(1, 60))
def test_blocks_hold_the_records_in_their_order_within_their_bound(
    rows: list[tuple[bytes, bytes | None, int | None]], bytes_max: int
) -> None:
    batches = [decode_block(block) for block in encode_blocks(batch_of(rows), bytes_max)]
    assert [tuple(row.values()) for batch in batches for row in batch.to_pylist()] == rows
    for batch in batches:
        sizes = [len(row["payload"]) + len(row["key"] or b"") for row in batch.to_pylist()]
        assert sum(sizes[1:]) <= bytes_max


def test_a_block_has_a_bounded_number_of_records_even_if_they_are_empty() -> None:
    counts = [decode_block(block).num_rows for block in encode_blocks(block_batch([b""] * (BLOCK_RECORDS_MAX + 1)))]
    assert counts == [BLOCK_RECORDS_MAX, 1]


def test_a_block_is_what_arrow_writes_as_a_stream() -> None:
    batch = block_batch([b"one", b"two"], keys=[b"a", None], event_times_ns=[5, None])
    assert encode_block(batch) == ipc(batch)


def test_a_slice_of_a_batch_is_a_block_of_its_own_records_only() -> None:
    batch = block_batch([b"%05d" % number for number in range(1000)])
    block = encode_block(batch.slice(500, 2))
    assert decode_block(block).column("payload").to_pylist() == [b"00500", b"00501"]
    assert len(block) < 1000


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not one record batch"),
        (b"garbage", "Expected to read"),
        (BLOCK[:-20], "Expected"),
        (BLOCK + b"x", "not one record batch"),
        (BLOCK + BLOCK, "not one record batch"),
        (ipc(pa.record_batch([pa.array([b"a"])], names=["payload"])), "its columns are payload binary"),
        (ipc(block_batch([b"a" * 10_000]), compression="zstd"), "compressed"),
        (ipc(block_batch([b"a" * 10_000]), compression="lz4"), "compressed"),
        (bytes(FRAME_BYTES_MAX + 1), "the limit is"),
    ],
)
def test_bytes_that_are_not_a_block_are_refused_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        decode_block(data)


def test_a_block_with_too_many_records_or_without_a_payload_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match=f"the limit is {BLOCK_RECORDS_MAX}"):
        decode_block(ipc(block_batch([b""] * (BLOCK_RECORDS_MAX + 1))))
    with pytest.raises(RemoteProtocolError, match="no payload"):
        decode_block(ipc(block_batch([None])))


def test_bytes_that_were_changed_are_refused_or_are_a_whole_block() -> None:
    chance = random.Random(16)
    refused = 0
    for _ in range(5000):
        changed = bytearray(BLOCK)
        for _ in range(chance.randint(1, 3)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        try:
            assert decode_block(bytes(changed)).to_pylist() is not None
        except RemoteProtocolError:
            refused += 1
    assert refused > 1000


def test_a_batch_of_other_columns_is_not_encoded() -> None:
    with pytest.raises(LocalProtocolError, match="a block has the columns"):
        encode_block(pa.record_batch([pa.array([b"a"])], names=["payload"]))
    with pytest.raises(LocalProtocolError, match="no payload"):
        encode_block(block_batch([None]))
