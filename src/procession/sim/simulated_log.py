"""The ingress log on a virtual disk: the real entries in files of the same shape, opened, synced and trimmed alike.

Invariant, as in `storage/log`: only synced rows are offered, a torn tail is cut off at open, and entries that no later
entry marks as synced are written to a new file before anything relies on them. The bytes of the entries are the real
ones (`storage/segment`), so a torn write is found by its checksum. Upstream: `simulated_gateway`. Downstream:
`disk_calls`; Spark's tasks read through `read_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from procession.errors import StorageError
from procession.sim.disk import Directory, File
from procession.sim.disk_calls import Files
from procession.storage.log_ranges import LogOffset
from procession.storage.segment import (
    FILE_MAGIC,
    INGRESS,
    SegmentHeader,
    SegmentIndex,
    batch_at,
    encode_entry,
    encode_header,
    entry_at,
    is_intact,
    read_header,
)

MEMORY = 8_192
"""So many entries are remembered, over all runs: runs are small, and much alike."""

Row = tuple[int, int, int, bytes]
"""Kind, stream id, message id, payload."""


def log_folder(part: str) -> str:
    return f"{part}/log"


class SimulatedLog:
    def __init__(
        self, files: Files, folder: str, committed_end: int, segment_rows_max: int, incarnation: int = 0
    ) -> None:
        """`incarnation` is that of a log which is begun now; 0: it has none, and its files have no headers."""
        self._files = files
        self._folder = folder
        self._rows_max = segment_rows_max
        files.make_directory(folder)
        self._ends = self._recover()
        self._base = max(self._ends, default=0)
        if not self._ends or self.next_sequence < committed_end:
            for base in self._ends:
                files.remove(folder, str(base))
            files.sync_directory(folder)
            self._ends = {committed_end: committed_end}
            self._base = committed_end
            self._create(SegmentHeader(committed_end, incarnation, incarnation))
        self._rewrite_tail()
        files.sync_directory(folder)
        files.sync(self._path)
        self.durable_end = self.next_sequence

    @property
    def next_sequence(self) -> int:
        return self._ends[self._base]

    @property
    def start_sequence(self) -> int:
        return min(self._ends)

    @property
    def _path(self) -> str:
        return f"{self._folder}/{self._base}"

    def append(self, batch: pa.RecordBatch) -> None:
        first = self.next_sequence
        if first - self._base >= self._rows_max:
            self.sync()
            self._create(self._following(first))
            self._ends[first] = self._base = first
        length = len(self._files.read(self._path) or b"")
        try:
            self._files.append(self._path, b"".join(encode_entry(batch, first, self.durable_end)))
        except StorageError:
            self._files.truncate(self._path, length)
            raise
        self._ends[self._base] = first + batch.num_rows

    def sync(self) -> None:
        self._files.sync(self._path)
        self.durable_end = self.next_sequence

    def end_for(self, start: int, records_max: int) -> int:
        return max(start, min(self.durable_end, start + records_max))

    def offset(self, sequence: int) -> LogOffset:
        """As `IngressLog.offset`; only the sequence if the log has no incarnation. A late request may refer to trimmed
        rows; nothing waits for its reply."""
        base = max((base for base in self._ends if base <= sequence), default=-1)
        if base < 0 or not _header(self._files.read(f"{self._folder}/{base}") or b"", base).incarnation:
            return LogOffset(sequence)
        index = self._index(base)
        return LogOffset(sequence, f"{index.header.incarnation:016x}", f"{index.checksum_at(sequence):016x}")

    def _index(self, base: int) -> SegmentIndex:
        data = self._files.read(f"{self._folder}/{base}") or b""
        index = SegmentIndex(_header(data, base))
        buffer = pa.py_buffer(data)
        while index.end < self._ends[base] and (entry := entry_at(buffer, index.position_end, index.end)):
            index.add(entry)
        return index

    def _following(self, first: int) -> SegmentHeader:
        last = self._index(self._base)
        return SegmentHeader(first, last.header.incarnation, last.checksum)

    def _create(self, header: SegmentHeader, entries: bytes = b"") -> None:
        head = encode_header(header) if header.incarnation else b""
        self._files.write_durably(self._folder, str(header.base), head + entries)

    def trim(self, before_sequence: int) -> None:
        gone = [base for base, end in self._ends.items() if base != self._base and end <= before_sequence]
        for base in gone:
            self._files.remove(self._folder, str(base))
            del self._ends[base]
        if gone:
            self._files.sync_directory(self._folder)

    def _recover(self) -> dict[int, int]:
        """Base to end of each segment; a hole between two is damage."""
        ends: dict[int, int] = {}
        bases = sorted(int(name) for name in self._files.names(self._folder) if name.isdigit())
        for base, upper in zip(bases, [*bases[1:], None], strict=False):
            data = self._files.read(f"{self._folder}/{base}") or b""
            end, position_end = base, _header(data, base).size_bytes
            for _, entry_end, entry in _entries(data, base):
                if end == upper or _batch(entry) is None:
                    break
                end, position_end = entry_end, position_end + len(entry)
            if upper is not None and end != upper:
                raise StorageError(f"The ingress log has no records {end} to {upper}.")
            if upper is None and position_end < len(data):
                self._files.truncate(f"{self._folder}/{base}", position_end)
            ends[base] = end
        return ends

    def _rewrite_tail(self) -> None:
        """A segment ends where the next one begins, whatever else its file has."""
        data = self._files.read(self._path) or b""
        entries = list(_entries(data, self._base))
        if not entries:
            self._create(_header(data, self._base))
            return
        durable_end = max([self._base, *(_durable_end(entry) for _, _, entry in entries)])
        tail = [(first, entry) for first, end, entry in entries if end > durable_end]
        if tail:
            first, end = tail[0][0], self.next_sequence
            self._create(self._index(self._base).first_from(first), b"".join(entry for _, entry in tail))
            self._ends[self._base] = first
            self._ends[first] = end
            self._base = first


def log_end(directory: Directory) -> int:
    """Where the log in a gateway's directory ends."""
    folder, end = directory.names.get("log"), 0
    for name, node in folder.names.items() if isinstance(folder, Directory) else ():
        if name.isdigit() and isinstance(node, File):
            end = max([end, int(name), *(entry_end for _, entry_end, _ in _entries(node.data, int(name)))])
    return end


def _header(data: bytes, base: int) -> SegmentHeader:
    """What a file says of itself; one without a header says nothing."""
    if not data.startswith(FILE_MAGIC):
        return SegmentHeader(base, size_bytes=0)
    return read_header(pa.py_buffer(data), base, Path(str(base)), INGRESS)


def _durable_end(data: bytes) -> int:
    entry = entry_at(pa.py_buffer(data), 0)
    return 0 if entry is None else entry.durable_end


def _entries(data: bytes, base: int) -> Iterator[tuple[int, int, bytes]]:
    """The whole entries of a segment, checked or not: the first sequence of each, its end, and its bytes."""
    buffer, position, sequence = pa.py_buffer(data), _header(data, base).size_bytes, base
    while (entry := entry_at(buffer, position, sequence)) is not None:
        yield entry.first, entry.end, data[position : entry.position_end]
        position, sequence = entry.position_end, entry.end


@lru_cache(MEMORY)
def _batch(data: bytes) -> pa.RecordBatch | None:
    """The rows of one entry; None if it does not match its checksum. The same bytes are met again and again."""
    buffer = pa.py_buffer(data)
    entry = entry_at(buffer, 0)
    return batch_at(buffer, entry) if entry is not None and is_intact(buffer, entry) else None


@lru_cache(MEMORY)
def _rows(data: bytes) -> tuple[Row, ...]:
    batch = _batch(data)
    if batch is None:
        raise StorageError("The ingress log is damaged.", next_step="Restore it.")
    columns = (batch.column(name).to_pylist() for name in ("kind", "stream_id", "message_id", "payload"))
    return tuple(zip(*columns, strict=True))


def _parts(files: Files, folder: str, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """The entries that hold the rows [start, end): the bytes of each, and which of its rows."""
    reached = start
    bases = sorted(map(int, filter(str.isdigit, files.names(folder)))) if start < end else []
    for base, upper in zip(bases, [*bases[1:], end], strict=False):
        for first, entry_end, entry in _entries(files.read(f"{folder}/{base}") or b"", base):
            if first >= upper:
                break
            if entry_end > reached >= first and reached < end:
                upto = min(end, entry_end)
                yield entry, reached - first, upto - first
                reached = upto
    if reached < end:
        raise StorageError(f"The ingress log has no records {reached} to {end}.", next_step="Check the log.")


def _check_rows(files: Files, folder: str, offered: LogOffset) -> None:
    """As `LogReader`: the running checksum at the offered end is the one that was offered."""
    bases = [base for base in map(int, filter(str.isdigit, files.names(folder))) if base < offered.sequence]
    if not bases:
        return
    data = files.read(f"{folder}/{max(bases)}") or b""
    buffer, index = pa.py_buffer(data), SegmentIndex(_header(data, max(bases)))
    while index.end < offered.sequence and (entry := entry_at(buffer, index.position_end, index.end)):
        index.add(entry)
    if f"{index.checksum_at(offered.sequence):016x}" != offered.checksum:
        raise StorageError(f"The ingress log is not the offered one: the records before {offered.sequence} are others.")


def read_tail(files: Files, folder: str, start: int, end: int) -> list[pa.RecordBatch]:
    """The rows [start, end), as a gateway that recovers reads them: its log is checked already."""
    return [
        batch.slice(first, upto - first)
        for data, first, upto in _parts(files, folder, start, end)
        if (batch := _batch(data))
    ]


def read_rows(files: Files, folder: str, start: int, offered: LogOffset) -> list[Row]:
    """The rows from `start` to the offered end. As `storage.log_reader.LogReader`."""
    end = offered.sequence
    if offered.checksum and start < end:
        _check_rows(files, folder, offered)
    return [row for data, first, upto in _parts(files, folder, start, end) for row in _rows(data)[first:upto]]
