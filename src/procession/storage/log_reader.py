"""Reads the segments of a log that another process may be writing.

Invariant: a reader reads no byte beyond the offered end, because `storage/log` may be writing there. A caller that
passes the offered end gets exactly those rows: a directory that was replaced since then has another running checksum,
and is refused. `spark/log_source` slices the mapped files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from procession.errors import StorageError
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.storage.durable import storage_error
from procession.storage.log_ranges import NOTHING, LogOffset
from procession.storage.segment import (
    INGRESS,
    SUFFIX,
    LogUse,
    SegmentIndex,
    batch_at,
    damaged,
    entry_at,
    is_intact,
    read_header,
    segment_name,
)


class SegmentReader:
    """A mapped segment that may still grow. It reads no byte beyond the requested range."""

    def __init__(self, path: Path, base: int, use: LogUse = INGRESS, files: FileSystem = HOST_FILES) -> None:
        self.path = path
        self._use = use
        self._files = files
        self._data = map_file(path, files)
        self.index = SegmentIndex(read_header(self._data, base, path, use))

    def extend(self, end: int) -> None:
        """Index the entries up to sequence `end`, as far as they exist."""
        if self.index.end >= end:
            return
        self._data = map_file(self.path, self._files)
        header = read_header(self._data, self.index.base, self.path, self._use)
        if header != self.index.header:  # a restarted writer has rewritten the file in another version
            self.index = SegmentIndex(header)
        while self.index.end < end:
            entry = entry_at(self._data, self.index.position_end, self.index.end)
            if entry is None:
                return
            self.index.add(entry)

    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows [start, end), which must be indexed, as slices of the mapped file."""
        while start < end:
            first, position = self.index.at(start)
            entry = entry_at(self._data, position, first)
            if entry is None or not is_intact(self._data, entry) or not self.index.is_indexed(entry):
                raise damaged(self.path, position, self._use)
            batch = batch_at(self._data, entry, self._use.schema)
            yield batch.slice(start - first, min(end, entry.end) - start)
            start = entry.end


class LogReader:
    """Reads a log that another process writes. Keep the reader, because it keeps its index."""

    def __init__(self, directory: Path, use: LogUse = INGRESS, files: FileSystem = HOST_FILES) -> None:
        self.directory = directory
        self._use = use
        self._files = files
        self._readers: dict[int, SegmentReader] = {}

    def read(self, start: int, end: int, offered: LogOffset = NOTHING) -> Iterator[pa.RecordBatch]:
        """Yield exactly the rows [start, end), as batches in the mapped files. Raises StorageError if the log is not
        the one that was `offered`; the offered end is at least `end`."""
        bases = self.refresh()
        if offered.checksum and start < end:
            self._check(bases, start, offered)
        for number, base in enumerate(bases):
            if start >= end:
                return
            upper = bases[number + 1] if number + 1 < len(bases) else end
            if base <= start < upper:
                upper = min(upper, end)
                yield from self._segment(base, upper).read(start, upper)
                start = upper
        if start < end:
            raise missing(self.directory, start, end, self._use)

    def _check(self, bases: list[int], start: int, offered: LogOffset) -> None:
        """Check the running checksum from the segment of row `start` to the offered end."""
        expected, upper = offered.checksum, offered.sequence
        for base in reversed([base for base in bases if base < offered.sequence]):
            index = self._segment(base, upper).index
            if (f"{index.header.incarnation:016x}", f"{index.checksum_at(upper):016x}") != (
                offered.incarnation,
                expected,
            ):
                raise replaced(self.directory, offered.sequence, self._use)
            if base <= start:
                return
            expected, upper = f"{index.header.checksum:016x}", base

    def refresh(self) -> list[int]:
        """Return the existing segments. Unmaps deleted segments, because a mapping keeps their disk space in use."""
        bases = segment_bases(self.directory, self._files)
        self._readers = {base: reader for base, reader in self._readers.items() if base in bases}
        return bases

    def close(self) -> None:
        """Close the mappings. Batches that were read keep their memory."""
        self._readers.clear()

    def _segment(self, base: int, end: int) -> SegmentReader:
        if base not in self._readers:
            path = self.directory / segment_name(base)
            self._readers[base] = SegmentReader(path, base, self._use, self._files)
        reader = self._readers[base]
        reader.extend(end)
        if reader.index.end < end:
            raise missing(self.directory, reader.index.end, end, self._use)
        return reader


def segment_bases(directory: Path, files: FileSystem = HOST_FILES) -> list[int]:
    """Return the base sequences of the segments in a directory, in ascending order."""
    try:
        return sorted(int(name.removesuffix(SUFFIX)) for name in files.names(directory) if name.endswith(SUFFIX))
    except OSError as error:
        raise storage_error(directory, "read", error) from error


def missing(directory: Path, start: int, end: int, use: LogUse) -> StorageError:
    return StorageError(
        f"The {use.name} in {directory} has no records {start} to {end}.",
        next_step=f"Check that this is the right {use.name}, and that no file of it was removed by hand.",
        path=str(directory),
        start=start,
        end=end,
    )


def replaced(directory: Path, end: int, use: LogUse) -> StorageError:
    return StorageError(
        f"The {use.name} in {directory} is not the one that records were offered from: the records before {end} are"
        " different.",
        next_step="Put back the directory that this gateway had last, not an older copy, and start again.",
        path=str(directory),
        end=end,
    )


def map_file(path: Path, files: FileSystem = HOST_FILES) -> pa.Buffer:
    try:
        return files.map(path)
    except OSError as error:
        raise storage_error(path, "read", error) from error
