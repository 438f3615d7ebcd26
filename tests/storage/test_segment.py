"""Segments: bytes that are read back as they were written, changed bytes that are noticed, and an index of entries."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isal.isal_zlib import crc32

from procession.errors import StorageError
from procession.storage import segment
from procession.storage.segment import (
    HEADER_BYTES,
    INGRESS,
    INGRESS_SCHEMA,
    ORDERED,
    ORDERED_SCHEMA,
    VERSION,
    VERSION_MAX,
    SegmentEntry,
    SegmentHeader,
    SegmentIndex,
    batch_at,
    encode_entry,
    encode_header,
    entry_at,
    is_begun,
    is_intact,
    linked,
    read_header,
    segment_name,
)

PATH = Path("00000000000000000300.segment")
HEADER = SegmentHeader(300, 0x1122334455667788, 0x99AABBCCDDEEFF00)
U64 = st.integers(0, 2**64 - 1)


def batch(rows: int) -> pa.RecordBatch:
    columns = [pa.array([None if field.nullable else 0] * rows, field.type) for field in INGRESS_SCHEMA]
    return pa.record_batch(columns, schema=INGRESS_SCHEMA)


def buffer(data: bytes) -> pa.Buffer:
    return pa.py_buffer(data)


def entry_bytes(rows: int = 3, first: int = 300, durable_end: int = 290) -> bytes:
    head, body = encode_entry(batch(rows), first, durable_end)
    return head + bytes(body)


def version_1(base: int) -> bytes:
    checked = struct.pack("<4sIQ", b"PRSG", 1, base)
    return checked + struct.pack("<II", crc32(checked), 0)


@given(U64, U64, U64)
def test_a_header_is_read_back(base: int, incarnation: int, checksum: int) -> None:
    header = SegmentHeader(base, incarnation, checksum)
    assert read_header(buffer(encode_header(header)), base, PATH, INGRESS) == header
    assert len(encode_header(header)) == HEADER_BYTES
    assert HEADER_BYTES % 8 == 0


def test_a_header_of_version_1_has_no_incarnation_and_a_checksum_of_its_own() -> None:
    read = read_header(buffer(version_1(300)), 300, PATH, INGRESS)
    assert read == SegmentHeader(300, 0, linked(0, 300), len(version_1(300)))
    with pytest.raises(StorageError, match="is damaged"):
        read_header(buffer(version_1(300)[:-1]), 300, PATH, INGRESS)


def test_every_changed_byte_of_a_header_is_noticed() -> None:
    for place in range(HEADER_BYTES):
        changed = bytearray(encode_header(HEADER))
        changed[place] ^= 0x40
        with pytest.raises(StorageError):
            read_header(buffer(bytes(changed)), HEADER.base, PATH, INGRESS)


def test_a_header_that_is_cut_anywhere_is_damaged_and_names_the_file() -> None:
    for length in range(HEADER_BYTES):
        with pytest.raises(StorageError) as caught:
            read_header(buffer(encode_header(HEADER)[:length]), HEADER.base, PATH, ORDERED)
        assert caught.value.sentence.startswith(f"The ordered log is damaged: {PATH.name} at byte 0")
        assert caught.value.next_step.startswith(f"Restore {PATH} from a copy")


def test_the_header_of_another_segment_is_not_taken() -> None:
    with pytest.raises(StorageError, match="is damaged"):
        read_header(buffer(encode_header(HEADER)), HEADER.base + 1, PATH, INGRESS)


@pytest.mark.parametrize("version", [0, VERSION + 1, VERSION_MAX, VERSION_MAX + 1])
def test_a_later_version_is_named_and_a_number_that_makes_no_sense_is_damage(version: int) -> None:
    data = bytearray(encode_header(HEADER))
    data[4:8] = struct.pack("<I", version)
    is_later = VERSION < version <= VERSION_MAX
    with pytest.raises(StorageError, match=f"has format {version}" if is_later else "is damaged"):
        read_header(buffer(bytes(data)), HEADER.base, PATH, INGRESS)


def test_a_file_is_begun_when_its_header_is_there() -> None:
    whole = encode_header(HEADER)
    assert [is_begun(buffer(whole[:length])) for length in (0, HEADER_BYTES - 1, HEADER_BYTES)] == [False, False, True]
    assert is_begun(buffer(version_1(300))), "its header is shorter"


@given(rows=st.integers(1, 20), first=st.integers(0, 2**40), durable_end=st.integers(0, 2**40), before=st.binary())
def test_an_entry_is_read_back_at_its_place(rows: int, first: int, durable_end: int, before: bytes) -> None:
    data = before + entry_bytes(rows, first, durable_end)
    entry = entry_at(buffer(data), len(before), first)
    assert entry is not None
    assert (entry.first, entry.end, entry.durable_end) == (first, first + rows, durable_end)
    assert (entry.position, entry.position_end) == (len(before), len(data))
    assert is_intact(buffer(data), entry)
    assert entry_at(buffer(data), len(before)) == entry, "with any first sequence"
    assert entry_at(buffer(data), len(before), first + 1) is None


def test_the_rows_of_an_entry_are_read_back() -> None:
    data = buffer(entry_bytes(3))
    entry = entry_at(data, 0)
    assert entry is not None
    assert batch_at(data, entry).equals(batch(3))
    assert ORDERED_SCHEMA.names[: len(INGRESS_SCHEMA)] == INGRESS_SCHEMA.names


def test_every_changed_byte_of_an_entry_is_noticed() -> None:
    data = entry_bytes()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0x10
        entry = entry_at(buffer(bytes(changed)), 0, 300)
        assert entry is None or not is_intact(buffer(bytes(changed)), entry), place


def test_an_entry_truncated_anywhere_is_not_an_entry() -> None:
    data = entry_bytes()
    assert not any(entry_at(buffer(data[:length]), 0) for length in range(len(data)))


def test_a_batch_that_is_too_large_for_an_entry_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    size = batch(3).serialize().size
    monkeypatch.setattr(segment, "ENTRY_BYTES_MAX", size)
    encode_entry(batch(3), 0, 0)
    monkeypatch.setattr(segment, "ENTRY_BYTES_MAX", size - 1)
    with pytest.raises(ValueError, match=f"{size} bytes is over the limit"):
        encode_entry(batch(3), 0, 0)


def test_an_entry_without_rows_is_not_an_entry() -> None:
    assert entry_at(buffer(entry_bytes(0)), 0) is None


def test_names_sort_as_the_sequences_do() -> None:
    bases = [0, 9, 10, 99, 2**63]
    assert sorted(map(segment_name, reversed(bases))) == list(map(segment_name, bases))


@given(U64, U64, U64)
def test_a_running_checksum_depends_on_every_number_and_on_their_order(one: int, two: int, three: int) -> None:
    assert linked(one, two) == linked(one, two)
    assert (linked(one, two) == linked(one, three)) is (two == three)
    assert (linked(one, two) == linked(two, one)) is (one == two)


SIZES = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 50)), min_size=1, max_size=6)


def indexed(sizes: list[tuple[int, int]]) -> tuple[SegmentIndex, list[SegmentEntry]]:
    """Entries with these numbers of rows and of bytes."""
    index, entries = SegmentIndex(HEADER), []
    first, position = HEADER.base, HEADER.size_bytes
    for number, (rows, size) in enumerate(sizes):
        entry = SegmentEntry(first, first + rows, position, position + size, first - number, 7 * number)
        index.add(entry)
        entries.append(entry)
        first, position = entry.end, entry.position_end
    return index, entries


@given(SIZES)
def test_the_index_finds_the_entry_of_each_row(sizes: list[tuple[int, int]]) -> None:
    index, entries = indexed(sizes)
    assert (index.end, index.position_end) == (entries[-1].end, entries[-1].position_end)
    assert index.durable_end == max([HEADER.base, *(entry.durable_end for entry in entries)])
    checksum = HEADER.checksum
    assert index.checksum_at(HEADER.base) == checksum
    for entry in entries:
        assert index.first_from(entry.end - 1) == SegmentHeader(entry.first, HEADER.incarnation, checksum)
        checksum = linked(checksum, entry.crc)
        for sequence in range(entry.first, entry.end):
            assert index.at(sequence) == (entry.first, entry.position)
            assert index.checksum_at(sequence + 1) == checksum
        assert index.is_indexed(entry)
        assert not index.is_indexed(entry._replace(crc=entry.crc + 1))
        assert not index.is_indexed(entry._replace(first=entry.first + 1))
    assert index.checksum == checksum


def test_an_index_without_entries_ends_where_it_begins() -> None:
    index = SegmentIndex(HEADER)
    assert (index.base, index.end, index.position_end, index.durable_end) == (300, 300, HEADER_BYTES, 300)
    assert index.checksum == HEADER.checksum


@given(SIZES, st.integers(0, 320), st.integers(0, 200))
def test_whole_entries_are_taken_as_far_as_the_bytes_reach(
    sizes: list[tuple[int, int]], sequence: int, bytes_max: int
) -> None:
    index, entries = indexed(sizes)
    sequence = HEADER.base + sequence % (index.end - HEADER.base)
    taken = [entry for entry in entries if entry.first >= sequence]
    while taken and taken[-1].position_end - taken[0].position > bytes_max:
        taken.pop()
    if sequence not in {entry.first for entry in entries} or not taken:
        assert index.whole_within(sequence, bytes_max) == (sequence, 0)
    else:
        assert index.whole_within(sequence, bytes_max) == (taken[-1].end, taken[-1].position_end - taken[0].position)
