"""A segment: one file of the ingress log, with a header and then entries. An entry is an Arrow record batch with a
checksum.

    file   magic "PRSG", u32 version, u64 base sequence, u64 incarnation, u64 checksum, u32 crc32 of these, u32 zero
    entry  magic "PREN", u32 crc32 of what follows, u64 first sequence, u64 durable end, u32 count, u32 length, batch

Numbers are little-endian. Each part starts at a multiple of eight, so a mapped batch is used without a copy. A row's
sequence is its entry's first sequence plus the row's number. `durable end` is the end of the log on disk when the entry
was written. With it, recovery distinguishes the effect of a power failure (never acknowledged, so it is cut off) from
damage to acknowledged data (an error).

`incarnation` is a random number that a log gets when it is created. `checksum` is the running checksum of all entries
before the file, made from the crc32 of each entry. Two logs that reach the same sequence are the same log only if both
values are equal. A file of version 1 has neither: its incarnation is 0, and its checksum starts again with its base, so
that it does not depend on files that are already deleted.

Invariant: nothing read from disk is trusted before its checksum is verified, and the index is always derived. Pure:
converts bytes. `storage/log` writes segments, `storage/recovery` checks them, `storage/log_reader` maps them.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from isal.isal_zlib import crc32  # zlib's, in the same values and a tenth of the time

from procession.errors import StorageError

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
"""A record whose message id is not a point of reference. The message that closes its group follows."""
KIND_BOUNDARY = 3
"""A point of reference without a record."""
KIND_EPHEMERAL = 4
"""A record that its source cannot resend. Its message id is its number in the session."""

KIND_LATE = 5
"""A record that arrived below the watermark of its own stream; only in the ordered log."""
KIND_TICK = 6
"""The watermark of a stream that the merge no longer waits for."""
KIND_GIVEN = 7
"""The stream is released: its waiting records will be sent to another gateway. Only in the log of arrivals."""
KIND_MOVED = 8
"""The stream was at another gateway before: its watermark and last message id there. Only in the log of arrivals."""

RECORD_KINDS = (KIND_RECORD, KIND_UNSTABLE, KIND_EPHEMERAL)
REFERENCE_KINDS = (KIND_RECORD, KIND_BOUNDARY)
"""The kinds of rows whose message id may be acknowledged to a source."""

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
"""Maximum version number. A higher number is damage, not a later version."""


ORDERED_SCHEMA = INGRESS_SCHEMA.append(pa.field("order_time", pa.int64())).append(pa.field("reference", pa.uint64()))
"""Rows in event-time order: also with their order time, and with the id that may be acknowledged when they are
committed."""


class LogUse(NamedTuple):
    """The purpose of a log, for its error messages."""

    name: str
    last_resort: str
    """The advice if a file is damaged and there is no copy."""
    schema: pa.Schema = INGRESS_SCHEMA


INGRESS = LogUse("ingress log", "reset the pipeline and let its sources send again")
ORDERED = LogUse("ordered log", INGRESS.last_resort, ORDERED_SCHEMA)


class SegmentEntry(NamedTuple):
    """The place of one entry: rows [first, end) in bytes [position, position_end) of the file."""

    first: int
    end: int
    position: int
    position_end: int
    durable_end: int
    crc: int


class SegmentHeader(NamedTuple):
    """The header of a segment's file."""

    base: int
    incarnation: int = 0
    checksum: int = 0
    """Checksum of all entries before the file."""
    size_bytes: int = HEADER_BYTES


class SegmentIndex:
    """The position of each sequence of one segment. Grows only at its end."""

    def __init__(self, header: SegmentHeader) -> None:
        self.header = header
        self.base = header.base
        self.end = header.base
        self.position_end = header.size_bytes
        self.durable_end = header.base
        """Lower bound of the synced length of the log when the last entry was written."""
        self._firsts: list[int] = []
        self._positions: list[int] = []
        self._checksums: list[int] = []

    def add(self, entry: SegmentEntry) -> None:
        self._firsts.append(entry.first)
        self._positions.append(entry.position)
        self._checksums.append(linked(self.checksum, entry.crc))
        self.end = entry.end
        self.position_end = entry.position_end
        self.durable_end = max(self.durable_end, entry.durable_end)

    @property
    def checksum(self) -> int:
        """Checksum of all entries up to the end of the segment."""
        return self._checksums[-1] if self._checksums else self.header.checksum

    def checksum_at(self, sequence: int) -> int:
        """Return the checksum of all entries up to and including the entry of the row before `sequence`."""
        number = bisect_right(self._firsts, sequence - 1) - 1
        return self._checksums[number] if number >= 0 else self.header.checksum

    def is_indexed(self, entry: SegmentEntry) -> bool:
        """Whether the index has this entry: an entry with the same checksum at the same place."""
        number = bisect_right(self._firsts, entry.first) - 1
        before = self._checksums[number - 1] if number else self.header.checksum
        return self._firsts[number] == entry.first and self._checksums[number] == linked(before, entry.crc)

    def first_from(self, sequence: int) -> SegmentHeader:
        """Return the header of a file that begins with the entry of row `sequence`."""
        first, _ = self.at(sequence)
        return SegmentHeader(first, self.header.incarnation, self.checksum_at(first))

    def at(self, sequence: int) -> tuple[int, int]:
        """Return the first sequence and the position of the entry of row `sequence`."""
        number = bisect_right(self._firsts, sequence) - 1
        return self._firsts[number], self._positions[number]

    def whole_within(self, sequence: int, bytes_max: int) -> tuple[int, int]:
        """Return the end of the whole entries from `sequence` on that fit into `bytes_max`, and their bytes."""
        first, position = self.at(sequence)
        if first != sequence:
            return sequence, 0
        if position + bytes_max >= self.position_end:
            return self.end, self.position_end - position
        number = bisect_right(self._positions, position + bytes_max) - 1
        return self._firsts[number], self._positions[number] - position


def segment_name(base: int) -> str:
    """Return a zero-padded name, so that names sort like numbers."""
    return f"{base:020d}{SUFFIX}"


def encode_header(header: SegmentHeader) -> bytes:
    checked = _FILE.pack(FILE_MAGIC, VERSION, header.base, header.incarnation, header.checksum)
    return checked + _CRC.pack(crc32(checked), 0)


def read_header(data: pa.Buffer, base: int, path: Path, use: LogUse) -> SegmentHeader:
    """Read the header. Raises StorageError unless the file begins like the segment of `base`."""
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
        return SegmentHeader(base, 0, linked(0, base), size_bytes)
    *_, incarnation, checksum = _FILE.unpack_from(data)
    return SegmentHeader(base, incarnation, checksum, size_bytes)


def is_begun(data: pa.Buffer) -> bool:
    """Whether these bytes of a segment's file include its header. A crash may have come before it was written."""
    return data.size >= HEADER_BYTES or bytes(data[: _FILE_1.size])[4:8] == struct.pack("<I", 1)


def linked(checksum: int, following: int) -> int:
    """Extend a running checksum by one number."""
    return int.from_bytes(hashlib.blake2b(_LINK.pack(checksum, following), digest_size=8).digest(), "little")


def encode_entry(batch: pa.RecordBatch, first: int, durable_end: int) -> tuple[bytes, memoryview]:
    """Return the entry's own header and its batch, to be written one after the other."""
    body = batch.serialize()
    if body.size > ENTRY_BYTES_MAX:
        raise ValueError(f"A batch of {body.size} bytes is over the limit of {ENTRY_BYTES_MAX} for one entry.")
    header = _ENTRY.pack(ENTRY_MAGIC, 0, first, durable_end, batch.num_rows, body.size)
    crc = crc32(body, crc32(header[_CHECKED_FROM:]))
    return _ENTRY.pack(ENTRY_MAGIC, crc, first, durable_end, batch.num_rows, body.size), memoryview(body)


def entry_at(data: pa.Buffer, position: int, first: int | None = None) -> SegmentEntry | None:
    """Return the entry that begins at `position` with sequence `first` (any, if None). None: there is no complete
    entry."""
    if position + _ENTRY.size > data.size:
        return None
    magic, crc, found, durable_end, count, length = _ENTRY.unpack_from(data, position)
    position_end = position + _ENTRY.size + length
    if magic != ENTRY_MAGIC or first not in (None, found) or not count or position_end > data.size:
        return None
    return SegmentEntry(found, found + count, position, position_end, durable_end, crc)


def is_intact(data: pa.Buffer, entry: SegmentEntry) -> bool:
    begin = entry.position + _CHECKED_FROM
    return bool(crc32(data[begin : entry.position_end]) == entry.crc)


def batch_at(data: pa.Buffer, entry: SegmentEntry, schema: pa.Schema = INGRESS_SCHEMA) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(data[entry.position + _ENTRY.size : entry.position_end], schema)


def damaged(path: Path, position: int, use: LogUse) -> StorageError:
    return StorageError(
        f"The {use.name} is damaged: {path.name} at byte {position} does not match its checksum.",
        next_step=f"Restore {path} from a copy, or {use.last_resort}.",
        path=str(path),
        position=position,
    )
