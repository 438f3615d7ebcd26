"""Recovery of a log: reads its segments and decides which entries are kept.

Invariant: an entry that was offered is never dropped. A segment is kept up to its last good entry. Damage below the
durable end is a StorageError, and so is a gap between two segments. Damage above the durable end is left by a power
failure. It is cut off, because no step relies on those entries. Used only when `storage/log` opens, which performs the
decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.storage.log_reader import map_file, missing, segment_bases
from procession.storage.segment import (
    ENTRY_MAGIC,
    INGRESS,
    LogUse,
    SegmentEntry,
    SegmentHeader,
    SegmentIndex,
    damaged,
    entry_at,
    is_begun,
    is_intact,
    read_header,
    segment_name,
)


@dataclass(frozen=True)
class RecoveredLog:
    """The state of a log, as read from its files."""

    segments: tuple[SegmentIndex, ...] = ()
    """The segments, without gaps. The file of the last one may have an incomplete end after `position_end`."""
    unbegun: int | None = None
    """Base of the last file, if its writer died before it wrote a header: the file never had an entry."""

    def is_of_use(self, committed_end: int) -> bool:
        """Whether the log is continued. A log that is empty, or ends below the committed end, starts over."""
        if self.unbegun is not None:
            return self.unbegun >= committed_end
        return bool(self.segments) and self.segments[-1].end >= committed_end


def recover_log(directory: Path, use: LogUse = INGRESS, files: FileSystem = HOST_FILES) -> RecoveredLog:
    """Read all segments. Raises StorageError if a promised segment is damaged or missing."""
    bases = segment_bases(directory, files)
    segments: list[SegmentIndex] = []
    for base, upper in zip(bases, [*bases[1:], None], strict=False):
        path = directory / segment_name(base)
        if upper is None and not is_begun(map_file(path, files)):
            return RecoveredLog(tuple(segments), base)
        segments.append(recover_segment(path, base, use, upper, files))
        if upper is not None and segments[-1].end != upper:
            raise missing(directory, segments[-1].end, upper, use)
    return RecoveredLog(tuple(segments))


def unsynced_from(last: SegmentIndex) -> SegmentHeader | None:
    """Return the header of the file into which the end of the last segment is rewritten. The file begins with the first
    entry that no later entry marks as synced. None: there is no such entry. A segment without entries is rewritten as a
    whole, because its name may not be on disk, and a second sync of the directory would not show that."""
    if last.end == last.base:
        return SegmentHeader(*last.header[:3])
    return last.first_from(last.durable_end) if last.durable_end < last.end else None


def recover_segment(
    path: Path, base: int, use: LogUse = INGRESS, upper: int | None = None, files: FileSystem = HOST_FILES
) -> SegmentIndex:
    """Verify every entry. The index ends after the last good entry, or at `upper`, where the next segment begins.
    Damage below the durable end is a StorageError."""
    data = map_file(path, files)
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


def _intact_after(data: pa.Buffer, position: int) -> Iterator[SegmentEntry]:
    """Yield the intact entries after a damaged one. They are found by their magic, because the damaged entry's length
    is not reliable."""
    rest = memoryview(data).tobytes() if position < data.size else b""
    while (position := rest.find(ENTRY_MAGIC, position)) >= 0:
        entry = entry_at(data, position)
        if entry and is_intact(data, entry):
            yield entry
        position += 1
