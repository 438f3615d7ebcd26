"""The ingress log: every received record, in the order of sequence numbers, in segment files.

Invariant: only records that `sync` has put on disk are offered (`durable_end`), and an offered sequence number means
the same record forever. The index and both ends of the log are derived from its files when it opens. A failed sync is
final, because the kernel may report the next sync as done without writing. So a log that opens trusts an entry only if
a later entry states that it was synced. It writes the other entries into a new file before it offers them.
`gateway/state` decides what is appended; `spark/log_source` reads contiguous ranges through a LogReader; a commit trims
whole segments.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from procession.errors import StorageError
from procession.runtime.files import FileSystem, HeldLock, OpenFile, OpenMode
from procession.runtime.host_files import HOST_FILES
from procession.storage.durable import fsync_dir, lock_directory, storage_error, write_durably
from procession.storage.log_ranges import LogOffset
from procession.storage.log_reader import LogReader, map_file, missing
from procession.storage.recovery import RecoveredLog, recover_log, recover_segment, unsynced_from
from procession.storage.segment import (
    INGRESS,
    LogUse,
    SegmentEntry,
    SegmentHeader,
    SegmentIndex,
    encode_entry,
    encode_header,
    entry_at,
    segment_name,
)

SEGMENT_BYTES_MAX = 64 * 1024 * 1024
# Bytes of a row in addition to its key and payload: kind, three numbers, two Arrow offsets.
ROW_BYTES = 33


def random_incarnation() -> int:
    return secrets.randbits(64) or 1


class IngressLog:
    """The only writer of a log. `sync` may run in a thread concurrently with the other methods. Call all other methods
    in one thread."""

    def __init__(
        self,
        directory: Path,
        *,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        committed_end: int = 0,
        use: LogUse = INGRESS,
        lock: HeldLock | None = None,
        files: FileSystem = HOST_FILES,
        new_incarnation: Callable[[], int] = random_incarnation,
    ) -> None:
        """Recover the log, or start a log. A log that ends below `committed_end` is not used: a new log starts there.
        `lock` is the lock of its directory, if the caller has taken it already; the log closes it."""
        self.directory = directory
        self._files = files
        self._new_incarnation = new_incarnation
        self.segment_bytes_max = segment_bytes_max
        self._use = use
        self._lock = lock_directory(directory, files) if lock is None else lock
        self._sync_lock = files.mutex()
        self._failure: StorageError | None = None
        self._reader = LogReader(directory, use, files)
        try:
            self._segments = self._recovered(recover_log(directory, use, files), committed_end)
            self._rewrite_tail()
            fsync_dir(directory, files)  # an earlier process may have been killed before it synced the segment's name
            self._file = self._open_last()
        except BaseException:
            self._lock.close()
            raise
        self.durable_end = self.next_sequence

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def start_sequence(self) -> int:
        return self._segments[0].base

    @property
    def next_sequence(self) -> int:
        return self._segments[-1].end

    @property
    def size_bytes(self) -> int:
        """The size of all files of the log."""
        return sum(segment.position_end for segment in self._segments)

    def offset(self, sequence: int) -> LogOffset:
        """Return the identity of the log at a sequence that it reaches and has not trimmed."""
        segment = self._segment_of(sequence)
        return LogOffset(sequence, f"{segment.header.incarnation:016x}", f"{segment.checksum_at(sequence):016x}")

    def append(self, batch: pa.RecordBatch) -> int:
        """Append a batch with the log's schema. Returns the sequence of its first row. The batch is durable after
        `sync`."""
        self._check_usable()
        first = self.next_sequence
        if not batch.num_rows:
            return first
        header, body = encode_entry(batch, first, self.durable_end)
        size_bytes = len(header) + len(body)
        last = self._segments[-1]
        if last.end > last.base and last.position_end + size_bytes > self.segment_bytes_max:
            self._roll()
            last = self._segments[-1]
        path = self._path(last)
        try:
            self._file.write(last.position_end, header, body)
        except OSError as error:
            # A part may be written. It is cut off now or at recovery, and the next append overwrites it.
            with suppress(OSError):
                self._file.truncate(last.position_end)
            raise storage_error(path, "write", error) from error
        position_end = last.position_end + size_bytes
        crc = int.from_bytes(header[4:8], "little")
        last.add(SegmentEntry(first, first + batch.num_rows, last.position_end, position_end, self.durable_end, crc))
        return first

    def sync(self) -> int:
        """Put all appended rows on disk. Returns the durable end."""
        with self._sync_lock:
            self._check_usable()
            end, path = self.next_sequence, self._path(self._segments[-1])
            if end > self.durable_end:
                try:
                    self._file.sync(is_data_only=True)
                except OSError as error:
                    # After a failed fsync, the kernel may have dropped the pages. Only recovery can read what is on
                    # disk.
                    self._failure = storage_error(path, "sync", error)
                    raise self._failure from error
                self.durable_end = end
            return self.durable_end

    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield exactly the rows [start, end)."""
        return self._reader.read(start, end)

    def end_for(self, start: int, records_max: int, bytes_max: int) -> int:
        """Return the end of the largest durable range from `start` within both limits, with at least one record if
        there is one.

        Whole entries count with their bytes in the file, rows of a divided entry with their own bytes.
        """
        end = min(self.durable_end, start + max(1, records_max))
        if start >= end:
            return start
        reach, bytes_left = start, bytes_max
        while reach < end:
            following, cost = self._segment_of(reach).whole_within(reach, bytes_left)
            if following == reach:
                following, cost = self._rows_within(reach, bytes_left)
            if following == reach:
                break
            reach, bytes_left = following, bytes_left - cost
        return min(end, max(reach, start + 1))

    def lag_bytes(self, start: int) -> int:
        """Return the bytes in the files from the entry of row `start` to the end."""
        if start >= self.next_sequence:
            return 0
        start = max(start, self.start_sequence)
        lag = 0
        for segment in self._segments:
            if segment.base > start:
                lag += segment.position_end - segment.header.size_bytes
            elif segment.end > start:
                lag += segment.position_end - segment.at(start)[1]
        return lag

    def is_trimmed_by(self, before_sequence: int) -> bool:
        """Whether `trim` would delete anything."""
        return len(self._segments) > 1 and self._segments[0].end <= before_sequence

    def trim(self, before_sequence: int) -> None:
        """Delete the segments whose sequences are all below `before_sequence`, except the last segment."""
        gone = [segment for segment in self._segments[:-1] if segment.end <= before_sequence]
        self._remove(gone)
        self._segments = self._segments[len(gone) :]
        self._reader.refresh()

    def close(self) -> None:
        """Close the files. Unsynced rows are in the same state as after a crash of this process."""
        self._reader.close()
        self._file.close()
        self._lock.close()

    def _segment_of(self, sequence: int) -> SegmentIndex:
        number = bisect_right(self._segments, sequence, key=lambda segment: segment.base) - 1
        if number < 0:
            raise missing(self.directory, sequence, self.start_sequence, self._use)
        return self._segments[number]

    def _rows_within(self, sequence: int, bytes_max: int) -> tuple[int, int]:
        """Return the end of the rows of one entry, from `sequence` on, that fit into `bytes_max`, and their bytes."""
        rows = next(self.read(sequence, self._segment_of(sequence).end))
        lengths = [pc.binary_length(rows.column(name)).to_numpy() for name in ("key", "payload")]
        bytes_to = np.cumsum(sum(lengths, np.full(rows.num_rows, ROW_BYTES, np.int64)))
        count = int(np.searchsorted(bytes_to, bytes_max, side="right"))
        return sequence + count, int(bytes_to[count - 1]) if count else 0

    def _recovered(self, found: RecoveredLog, committed_end: int) -> list[SegmentIndex]:
        segments = list(found.segments)
        if found.unbegun is not None:
            segments.append(self._following(segments[-1]) if segments else self._begun(found.unbegun))
        if found.is_of_use(committed_end):
            return segments
        self._remove(segments)
        return [self._begun(committed_end)]

    def _begun(self, base: int) -> SegmentIndex:
        """Create the first segment of a new log."""
        incarnation = self._new_incarnation()
        return self._create(SegmentHeader(base, incarnation, incarnation))

    def _following(self, last: SegmentIndex) -> SegmentIndex:
        return self._create(SegmentHeader(last.end, last.header.incarnation, last.checksum))

    def _create(self, header: SegmentHeader) -> SegmentIndex:
        write_durably(self.directory / segment_name(header.base), encode_header(header), self._files)
        return SegmentIndex(header)

    def _rewrite_tail(self) -> None:
        """Write entries that may not be synced to a new file. The old file keeps them, for processes that have mapped
        it; a segment ends where the next one starts."""
        last = self._segments[-1]
        header = unsynced_from(last)
        if header is None:
            return
        if last.end == last.base:
            self._segments[-1] = self._create(header)
            return
        _, position = last.at(header.base)
        data = map_file(self._path(last), self._files)
        path = self.directory / segment_name(header.base)
        write_durably(path, encode_header(header) + bytes(data[position : last.position_end]), self._files)
        if header.base > last.base:
            self._segments[-1] = recover_segment(self._path(last), last.base, self._use, header.base, self._files)
            self._segments.append(SegmentIndex(header))
        else:
            self._segments[-1] = SegmentIndex(header)
        rewritten, index = map_file(path, self._files), self._segments[-1]
        while entry := entry_at(rewritten, index.position_end, index.end):
            index.add(entry)

    def _open_last(self) -> OpenFile:
        """Open the last segment for writing, without its incomplete end, and with all its other bytes on disk."""
        path = self._path(self._segments[-1])
        try:
            file = self._files.open(path, OpenMode.WRITE)
            file.truncate(self._segments[-1].position_end)
            file.sync()
        except OSError as error:
            raise storage_error(path, "open", error) from error
        return file

    def _roll(self) -> None:
        self.sync()
        following = self._following(self._segments[-1])
        with self._sync_lock:
            self._file.close()
            self._segments.append(following)
            self._file = self._open_last()

    def _remove(self, segments: list[SegmentIndex]) -> None:
        for segment in segments:
            try:
                self._files.remove(self._path(segment))
            except OSError as error:
                raise storage_error(self._path(segment), "delete", error) from error
        if segments:
            fsync_dir(self.directory, self._files)

    def _path(self, segment: SegmentIndex) -> Path:
        return self.directory / segment_name(segment.base)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
