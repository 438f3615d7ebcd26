"""Reads the files of a pipeline for the oracle, as `docs/reference/formats.md` describes them.

Invariant: this module uses no reader, constant or type of the code that the oracle checks. So a mistake in a shipped
reader is not repeated here. A reader takes bytes, stops where a file ends or is torn, and checks nothing. Used by
`oracle`, `observed_sink`, `durable_gateway` and `set_back`.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

# The round record: one JSON object.


class SinkRange(NamedTuple):
    """A transaction of one sink: the bytes [start, end) of its output."""

    txn: str
    start: int
    end: int


class DecidedRound(NamedTuple):
    """The parts of a round record that the oracle needs."""

    parts: Mapping[str, SinkRange]
    """The transaction of each sink."""
    positions: Mapping[int, int]
    """The last committed message of streams."""
    offsets: Mapping[str, int]
    """Where the epoch ends in the log of each gateway."""
    states: frozenset[str]
    """The names of the state files that the epoch commits."""


def read_round(data: bytes) -> DecidedRound:
    document = json.loads(data)
    return DecidedRound(
        {sink: SinkRange(part["txn"], part["start"], part["end"]) for sink, part in document["parts"].items()},
        {int(stream): message_id for stream, message_id in document["positions"].items()},
        document["ends"],
        frozenset(name for version in document["states"].values() for files in version["tasks"] for name, *_ in files),
    )


TRANSACTION = re.compile(r".+-w-.+-id-[0-9a-f]+\.e(\d+)\.f\d+:c_id=(\d+)")


def epoch_and_attempt(txn: str) -> tuple[int, int] | None:
    """Return the epoch and the attempt in the id of a transaction; None if it has another form."""
    found = TRANSACTION.fullmatch(txn)
    return None if found is None else (int(found[1]), int(found[2]))


# The transaction log: a checksum in hexadecimal digits, a space and a JSON object in each line.


class Transactions(NamedTuple):
    """The transactions in a transaction log."""

    committed: tuple[SinkRange, ...]
    """Committed transactions in order. Earlier ones may be combined into one range from the first byte, with the id
    of the last of them."""
    prepared: Mapping[str, SinkRange]
    """Transactions with a vote and without a decision."""
    accepted: frozenset[str]
    """The ids of all transactions with a vote to commit."""

    @property
    def committed_end(self) -> int:
        return self.committed[-1].end if self.committed else 0


def read_transactions(data: bytes) -> Transactions:
    """Read the complete lines. A power cut may have torn the last line, or have left zeros in it."""
    committed: list[SinkRange] = []
    prepared: dict[str, SinkRange] = {}
    accepted: set[str] = set()
    for entry in _entries(data):
        txn = entry["txn"]
        if entry["op"] == "base":
            committed = [SinkRange(txn, 0, entry["end"])] if entry["count"] else []
            accepted.add(txn)
        elif entry["op"] == "phase1" and entry["vote"]:
            prepared[txn] = SinkRange(txn, entry["start"], entry["end"])
            accepted.add(txn)
        elif entry["op"] == "phase2":
            decided = prepared.pop(txn, None)
            if decided is not None and entry["commit"]:
                committed.append(decided)
    return Transactions(tuple(committed), prepared, frozenset(accepted))


def _entries(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.splitlines(keepends=True):
        checksum, _, text = line.partition(b" ")
        if not text.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text[:-1]):
            return
        yield json.loads(text)


# A gateway's directory: the snapshot, the retired streams and the log.


class Positions(NamedTuple):
    """The parts of a gateway's `positions.json` that the oracle needs."""

    epoch: int = -1
    end: int = 0
    """The committed end of the log."""
    committed: Mapping[int, int] = {}
    """The last committed message of each stream."""
    retired: tuple[int, int] | None = None
    """The number of the file with retired streams, and the number of its valid bytes."""


def read_positions(data: bytes) -> Positions:
    document = json.loads(data)
    retired = document.get("retired")
    return Positions(
        document["epoch"],
        document["end_sequence"],
        {int(stream): position["committed"] for stream, position in document["streams"].items()},
        None if retired is None else (retired["number"], retired["length"]),
    )


RETIRED_LINE = b"procession retired streams 1\n"
RETIRED_STREAM = struct.Struct(">QQQ")
"""Stream, last committed message, time."""


def retired_name(number: int) -> str:
    return f"retired-{number:010d}.streams"


def read_retired(data: bytes) -> dict[int, int]:
    """Return the last committed message of each stream. A later entry of a stream replaces an earlier one."""
    body = data.removeprefix(RETIRED_LINE)
    whole = len(body) - len(body) % RETIRED_STREAM.size
    return {stream: message_id for stream, message_id, _ in RETIRED_STREAM.iter_unpack(body[:whole])}


SEGMENT_HEADER_BYTES = 40
ENTRY = struct.Struct("<4sIQQII")
"""Magic bytes, checksum, first sequence, durable end, number of rows, length of the batch."""
ENTRY_MAGIC = b"PREN"
CHECKED_FROM = 8
"""The checksum of an entry covers everything after itself."""
COLUMNS = pa.schema(
    [
        ("kind", pa.uint8()),
        ("stream_id", pa.uint64()),
        ("message_id", pa.uint64()),
        ("event_time", pa.int64()),
        ("key", pa.binary()),
        ("payload", pa.binary()),
    ]
)


class SegmentRow(NamedTuple):
    kind: int
    stream: int
    message_id: int
    payload: bytes


def segment_base(name: str) -> int | None:
    """Return the first sequence of a segment, by the name of its file; None for another file."""
    stem, _, suffix = name.partition(".")
    return int(stem) if suffix == "segment" and stem.isdigit() else None


def segment_end(data: bytes, base: int) -> int:
    """Return the sequence after the last whole entry."""
    return max((first + count for first, count, _ in _batches(data, base)), default=base)


def read_rows(segments: Mapping[int, bytes], start: int, end: int) -> list[SegmentRow]:
    """The rows [start, end) of a log. `segments` are its files, by the first sequence of each. A file counts up to
    where the next one begins: a gateway that starts again rewrites the end of its log into a new file."""
    rows: list[SegmentRow] = []
    bases = sorted(segments)
    for base, upper in zip(bases, [*bases[1:], end], strict=True):
        for first, count, body in _batches(segments[base], base):
            last = min(first + count, upper, end)
            if first < last and last > start:
                batch = pa.ipc.read_record_batch(pa.py_buffer(body), COLUMNS)
                named = (batch.column(name).to_pylist() for name in ("kind", "stream_id", "message_id", "payload"))
                found = [SegmentRow(*row) for row in zip(*named, strict=True)]
                rows += found[max(0, start - first) : last - first]
    return rows


def _batches(data: bytes, base: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield the first sequence, the number of rows and the batch of each whole entry that continues the one before
    it."""
    position, sequence = SEGMENT_HEADER_BYTES, base
    while position + ENTRY.size <= len(data):
        magic, checksum, first, _, count, length = ENTRY.unpack_from(data, position)
        end = position + ENTRY.size + length
        if magic != ENTRY_MAGIC or first != sequence or not count or end > len(data):
            return
        if zlib.crc32(data[position + CHECKED_FROM : end]) != checksum:
            return
        yield first, count, data[position + ENTRY.size : end]
        position, sequence = end, first + count
