"""A segment: one file of the ingress log, a header and then entries, each an Arrow record batch with its checksum.

    file   magic "PRSG", u32 version, u64 base sequence, u64 incarnation, u64 checksum, u32 crc32 of these, u32 zero
    entry  magic "PREN", u32 crc32 of what follows, u64 first sequence, u64 durable end, u32 count, u32 length, batch

Little-endian; everything starts at a multiple of eight, so a mapped batch is used in place, uncopied. A row's
sequence is its entry's first sequence plus the row's number. `durable end` says how far the log was on disk when the
entry was written: with it, recovery tells a hole left by a power cut (never promised to anyone: cut off) from damage
to what was promised (an error).

`incarnation` is a random number that a log gets when it is begun. `checksum` is the running checksum of all entries
before the file: each entry's own crc32 is folded into it. Both together say whether two logs that reach the same
sequence are the same log. A file of version 1 has neither: its incarnation is 0, and its checksum begins anew with its
base, so that it does not depend on files that are already deleted.

The one rule: nothing read from disk is trusted before its checksum, and the index is always derived. Before it on the
walk: storage/log. After it: storage/durable, and the mapped file that spark/log_source slices.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from isal.isal_zlib import crc32  # zlib's, in the same values and a tenth of the time

from procession.errors import StorageError
from procession.storage.durable import storage_error

INGRESS_SCHEMA = pa.schema(
    [
        ("kind", pa.uint8()),
        ("stream_id", pa.uint64()),
        ("message_id", pa.uint64()),
        ("event_time", pa.int64()),
        ("key", pa.binary()),
        ("payload", pa.binary()),
    ]
)
KIND_RECORD = 0
KIND_EOS = 1
KIND_UNSTABLE = 2
"""A record whose message id is no point of reference: the one that closes its group stands behind it."""
KIND_BOUNDARY = 3
"""A point of reference without a record."""
KIND_EPHEMERAL = 4
"""A record that its source cannot send again; its message id counts what came before it in the session."""

KIND_LATE = 5
"""A record that came behind the watermark of its own stream; only in the ordered log."""
KIND_TICK = 6
"""The watermark of a stream for which nobody waits any longer."""
KIND_GIVEN = 7
"""The stream is given up: what waits of it will be sent to another gateway. Only in the log of arrivals."""
KIND_MOVED = 8
"""The stream was elsewhere before: its watermark, and the last id that came there. Only in the log of arrivals."""

RECORD_KINDS = (KIND_RECORD, KIND_UNSTABLE, KIND_EPHEMERAL)
REFERENCE_KINDS = (KIND_RECORD, KIND_BOUNDARY)
"""The rows whose message id may be told to a source as committed."""

ENTRY_BYTES_MAX = 1024 * 1024 * 1024
FILE_MAGIC = b"PRSG"
ENTRY_MAGIC = b"PREN"
VERSION = 2
SUFFIX = ".segment"

_FILE_1 = struct.Struct("<4sIQ")
_FILE = struct.Struct("<4sIQQQ")
_CRC = struct.Struct("<II")
_ENTRY = struct.Struct("<4sIQQII")
_LINK = struct.Struct("<QQ")
_CHECKED_FROM = 8  # the entry's checksum covers what follows it
HEADER_BYTES = _FILE.size + _CRC.size
VERSION_MAX = 99
"""A higher number is damage, and none of a later version."""


ORDERED_SCHEMA = INGRESS_SCHEMA.append(pa.field("order_time", pa.int64())).append(pa.field("reference", pa.uint64()))
"""Rows that were put in the order of event time: by what, and what may be acknowledged when they are committed."""


class Use(NamedTuple):
    """What a log is there for: its errors say it."""

    name: str
    last_resort: str
    """What is left to do if a file is damaged and there is no copy."""
    schema: pa.Schema = INGRESS_SCHEMA


INGRESS = Use("ingress log", "reset the pipeline and let its sources send again")
ORDERED = Use("ordered log", INGRESS.last_resort, ORDERED_SCHEMA)


class Entry(NamedTuple):
    """One entry's place: rows [first, end) in bytes [position, position_end) of the file."""

    first: int
    end: int
    position: int
    position_end: int
    durable_end: int
    crc: int


class Header(NamedTuple):
    """What a segment's file says of itself."""

    base: int
    incarnation: int = 0
    checksum: int = 0
    """Of all entries before the file."""
    size_bytes: int = HEADER_BYTES


class SegmentIndex:
    """Where each sequence of one segment is. Grows at its end only."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.base = header.base
        self.end = header.base
        self.position_end = header.size_bytes
        self.durable_end = header.base
        """How far the log was on disk when the last entry was written, at least."""
        self._firsts: list[int] = []
        self._positions: list[int] = []
        self._checksums: list[int] = []

    def add(self, entry: Entry) -> None:
        self._firsts.append(entry.first)
        self._positions.append(entry.position)
        self._checksums.append(linked(self.checksum, entry.crc))
        self.end = entry.end
        self.position_end = entry.position_end
        self.durable_end = max(self.durable_end, entry.durable_end)

    @property
    def checksum(self) -> int:
        """Of all entries up to the end of the segment."""
        return self._checksums[-1] if self._checksums else self.header.checksum

    def checksum_at(self, sequence: int) -> int:
        """Of all entries up to the one that holds the row before `sequence`, that one included."""
        number = bisect_right(self._firsts, sequence - 1) - 1
        return self._checksums[number] if number >= 0 else self.header.checksum

    def first_from(self, sequence: int) -> Header:
        """The header of a file that begins with the entry which holds `sequence`."""
        first, _ = self.at(sequence)
        return Header(first, self.header.incarnation, self.checksum_at(first))

    def at(self, sequence: int) -> tuple[int, int]:
        """The first sequence and the position of the entry that holds `sequence`."""
        number = bisect_right(self._firsts, sequence) - 1
        return self._firsts[number], self._positions[number]

    def whole_within(self, sequence: int, bytes_max: int) -> tuple[int, int]:
        """How far the whole entries from `sequence` on reach within `bytes_max`, and their bytes."""
        first, position = self.at(sequence)
        if first != sequence:
            return sequence, 0
        if position + bytes_max >= self.position_end:
            return self.end, self.position_end - position
        number = bisect_right(self._positions, position + bytes_max) - 1
        return self._firsts[number], self._positions[number] - position


class SegmentReader:
    """A mapped segment that may still grow: looks at no byte beyond what it is asked for."""

    def __init__(self, path: Path, base: int, use: Use = INGRESS) -> None:
        self.path = path
        self._use = use
        self._data = map_file(path)
        self.index = SegmentIndex(read_header(self._data, base, path, use))

    def extend(self, end: int) -> None:
        """Index the entries up to sequence `end`, as far as they are there."""
        if self.index.end >= end:
            return
        self._data = map_file(self.path)
        header = read_header(self._data, self.index.base, self.path, self._use)
        if header != self.index.header:  # a restarted writer has written the file anew, in another version
            self.index = SegmentIndex(header)
        while self.index.end < end:
            entry = entry_at(self._data, self.index.position_end, self.index.end)
            if entry is None:
                return
            self.index.add(entry)

    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The rows [start, end), which must be indexed, as slices of the mapped file."""
        while start < end:
            first, position = self.index.at(start)
            entry = entry_at(self._data, position, first)
            if entry is None or not is_intact(self._data, entry):
                raise damaged(self.path, position, self._use)
            batch = batch_at(self._data, entry, self._use.schema)
            yield batch.slice(start - first, min(end, entry.end) - start)
            start = entry.end


def segment_name(base: int) -> str:
    """Zero-padded, so that names sort as numbers do."""
    return f"{base:020d}{SUFFIX}"


def encode_header(header: Header) -> bytes:
    checked = _FILE.pack(FILE_MAGIC, VERSION, header.base, header.incarnation, header.checksum)
    return checked + _CRC.pack(crc32(checked), 0)


def read_header(data: pa.Buffer, base: int, path: Path, use: Use) -> Header:
    """A StorageError unless the file begins as the segment of `base` does."""
    try:
        magic, version, found = _FILE_1.unpack_from(data)
    except struct.error:
        raise damaged(path, 0, use) from None
    if magic == FILE_MAGIC and VERSION < version <= VERSION_MAX:
        raise StorageError(
            f"The {use.name} was written by a later version: {path.name} has format {version}, and this version reads"
            f" formats 1 to {VERSION}.",
            next_step="Start the version that wrote it, or a later one.",
            path=str(path),
        )
    if (magic, found) != (FILE_MAGIC, base) or version not in (1, VERSION):
        raise damaged(path, 0, use)
    layout = _FILE_1 if version == 1 else _FILE
    size_bytes = layout.size + _CRC.size
    if data.size < size_bytes or bytes(data[layout.size : size_bytes]) != _CRC.pack(crc32(data[: layout.size]), 0):
        raise damaged(path, 0, use)
    if version == 1:
        return Header(base, 0, linked(0, base), size_bytes)
    *_, incarnation, checksum = _FILE.unpack_from(data)
    return Header(base, incarnation, checksum, size_bytes)


def is_begun(path: Path) -> bool:
    """Whether the file of a segment has its header: whoever made it may have died before."""
    data = map_file(path)
    return data.size >= HEADER_BYTES or bytes(data[: _FILE_1.size])[4:8] == struct.pack("<I", 1)


def linked(checksum: int, following: int) -> int:
    """A running checksum, with one number more."""
    return int.from_bytes(hashlib.blake2b(_LINK.pack(checksum, following), digest_size=8).digest(), "little")


def encode_entry(batch: pa.RecordBatch, first: int, durable_end: int) -> tuple[bytes, memoryview]:
    """The entry's own header, and its batch: to be written one after the other."""
    body = batch.serialize()
    if body.size > ENTRY_BYTES_MAX:
        raise ValueError(f"A batch of {body.size} bytes is over the limit of {ENTRY_BYTES_MAX} for one entry.")
    header = _ENTRY.pack(ENTRY_MAGIC, 0, first, durable_end, batch.num_rows, body.size)
    crc = crc32(body, crc32(header[_CHECKED_FROM:]))
    return _ENTRY.pack(ENTRY_MAGIC, crc, first, durable_end, batch.num_rows, body.size), memoryview(body)


def entry_at(data: pa.Buffer, position: int, first: int | None = None) -> Entry | None:
    """The entry that begins at `position` with sequence `first` (any, if None), or None where no whole one does."""
    if position + _ENTRY.size > data.size:
        return None
    magic, crc, found, durable_end, count, length = _ENTRY.unpack_from(data, position)
    position_end = position + _ENTRY.size + length
    if magic != ENTRY_MAGIC or first not in (None, found) or not count or position_end > data.size:
        return None
    return Entry(found, found + count, position, position_end, durable_end, crc)


def is_intact(data: pa.Buffer, entry: Entry) -> bool:
    begin = entry.position + _CHECKED_FROM
    return bool(crc32(data[begin : entry.position_end]) == entry.crc)


def batch_at(data: pa.Buffer, entry: Entry, schema: pa.Schema = INGRESS_SCHEMA) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(data[entry.position + _ENTRY.size : entry.position_end], schema)


def recover(path: Path, base: int, use: Use = INGRESS, upper: int | None = None) -> SegmentIndex:
    """Verify every entry; the index ends where the good ones do, or at `upper`, where the next segment begins. Damage
    below what was durable is a StorageError."""
    data = map_file(path)
    index = SegmentIndex(read_header(data, base, path, use))
    while index.end != upper and (entry := entry_at(data, index.position_end, index.end)) and is_intact(data, entry):
        index.add(entry)
    if index.end == upper:
        return index
    if any(later.durable_end > index.end for later in _intact_after(data, index.position_end)):
        raise damaged(path, index.position_end, use)
    if upper is not None and (index.end > upper or index.position_end < data.size):
        raise damaged(path, index.position_end, use)
    return index


def _intact_after(data: pa.Buffer, position: int) -> Iterator[Entry]:
    """The intact entries beyond a bad one, found by their magic: the bad one's length cannot be trusted."""
    rest = memoryview(data).tobytes() if position < data.size else b""
    while (position := rest.find(ENTRY_MAGIC, position)) >= 0:
        entry = entry_at(data, position)
        if entry and is_intact(data, entry):
            yield entry
        position += 1


def damaged(path: Path, position: int, use: Use) -> StorageError:
    return StorageError(
        f"The {use.name} is damaged: {path.name} at byte {position} does not match its checksum.",
        next_step=f"Restore {path} from a copy, or {use.last_resort}.",
        path=str(path),
        position=position,
    )


def map_file(path: Path) -> pa.Buffer:
    try:
        if path.stat().st_size == 0:
            return pa.py_buffer(b"")
        with pa.memory_map(str(path)) as file:
            return file.read_buffer()
    except OSError as error:
        raise storage_error(path, "read", error) from error
