"""The ingress log on a virtual disk: the real entries in files of the same shape, opened, synced and trimmed alike.

The one rule, as in `storage/log`: only what is synced is offered, and a torn tail is cut off at open. The bytes of the
entries are the real ones (`storage/segment`), so a torn write is found by its checksum. Before it: `gateway`. After it:
`files`; Spark's tasks read through `read_log`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from procession.chaos.sim.files import Files
from procession.errors import StorageError
from procession.storage.segment import batch_at, encode_entry, entry_at, is_intact

FOLDER = "gateway/log"


class InLog:
    def __init__(self, files: Files, committed_end: int, segment_rows_max: int) -> None:
        self._files = files
        self._rows_max = segment_rows_max
        files.make_directory(FOLDER)
        self._ends = self._recover()
        if not self._ends or self.next_sequence < committed_end:
            for base in self._ends:
                files.remove(FOLDER, str(base))
            files.sync_directory(FOLDER)
            self._ends = {committed_end: committed_end}
            files.write_durably(FOLDER, str(committed_end), b"")
        files.sync_directory(FOLDER)
        files.sync(self._path)
        self.durable_end = self.next_sequence

    @property
    def next_sequence(self) -> int:
        return self._ends[self._base]

    @property
    def start_sequence(self) -> int:
        return min(self._ends)

    @property
    def _base(self) -> int:
        return max(self._ends)

    @property
    def _path(self) -> str:
        return f"{FOLDER}/{self._base}"

    def append(self, batch: pa.RecordBatch) -> None:
        first = self.next_sequence
        if first - self._base >= self._rows_max:
            self.sync()
            self._files.write_durably(FOLDER, str(first), b"")
            self._ends[first] = first
        length = len(self._files.read(self._path) or b"")
        try:
            self._files.append(self._path, encode_entry(batch, first, self.durable_end))
        except StorageError:
            self._files.truncate(self._path, length)
            raise
        self._ends[self._base] = first + batch.num_rows

    def sync(self) -> None:
        self._files.sync(self._path)
        self.durable_end = self.next_sequence

    def end_for(self, start: int, records_max: int) -> int:
        return max(start, min(self.durable_end, start + records_max))

    def trim(self, before_sequence: int) -> None:
        gone = [base for base, end in self._ends.items() if base != self._base and end <= before_sequence]
        for base in gone:
            self._files.remove(FOLDER, str(base))
            del self._ends[base]
        if gone:
            self._files.sync_directory(FOLDER)

    def _recover(self) -> dict[int, int]:
        """Base to end of each segment; a hole between two is damage."""
        ends: dict[int, int] = {}
        bases = sorted(int(name) for name in self._files.names(FOLDER) if name.isdigit())
        for base in bases:
            if ends and ends[max(ends)] != base:
                raise StorageError(f"The ingress log has no records {ends[max(ends)]} to {base}.")
            data = self._files.read(f"{FOLDER}/{base}") or b""
            end, position_end = base, 0
            for end, position_end in _scan(data, base):  # noqa: B007  (the last ones count)
                pass
            if position_end < len(data) and base != bases[-1]:
                raise StorageError(f"The ingress log is damaged in segment {base} at byte {position_end}.")
            if position_end < len(data):
                self._files.truncate(f"{FOLDER}/{base}", position_end)
            ends[base] = end
        return ends


def _scan(data: bytes, base: int) -> Iterator[tuple[int, int]]:
    buffer, position, sequence = pa.py_buffer(data), 0, base
    while (entry := entry_at(buffer, position, sequence)) is not None and is_intact(buffer, entry):
        position, sequence = entry.position_end, entry.end
        yield sequence, position


def read_log(files: Files, start: int, end: int) -> pa.RecordBatch | None:
    """The rows [start, end), in one piece; None if there are none. As `storage.log.LogReader`."""
    found = []
    reached = start
    for base in sorted(int(name) for name in files.names(FOLDER) if name.isdigit()):
        buffer, position, sequence = pa.py_buffer(files.read(f"{FOLDER}/{base}") or b""), 0, base
        while reached < end and (entry := entry_at(buffer, position, sequence)) is not None:
            if entry.end > reached >= entry.first:
                upto = min(end, entry.end)
                found.append(batch_at(buffer, entry).slice(reached - entry.first, upto - reached))
                reached = upto
            position, sequence = entry.position_end, entry.end
    if reached < end:
        raise StorageError(f"The ingress log has no records {reached} to {end}.", next_step="Check the log.")
    return pa.concat_batches(found) if found else None
