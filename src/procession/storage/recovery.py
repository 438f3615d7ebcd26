"""Recovery of a log: reads its segments and says which entries are kept.

Invariant: an entry that was offered is never dropped. A segment is kept up to its last good entry. Damage below the
durable end is a StorageError, and so is a gap between two segments. Damage above it is left by a power cut and is cut
off, because nothing relies on those entries. Not used in the steady state: `storage/log` performs what is decided here
when it opens.
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
    """What the files of a log say."""

    segments: tuple[SegmentIndex, ...] = ()
    """Without gaps. The last one may have a torn tail in its file, behind `position_end`."""
    unbegun: int | None = None
    """Base of the last file, if its writer died before it had a header: nothing was ever in it."""

    def is_of_use(self, committed_end: int) -> bool:
        """Whether the log is continued. One that is empty, or ends below what is committed, starts over."""
        if self.unbegun is not None:
            return self.unbegun >= committed_end
        return bool(self.segments) and self.segments[-1].end >= committed_end


def recover_log(directory: Path, use: LogUse = INGRESS, files: FileSystem = HOST_FILES) -> RecoveredLog:
    """Reads all segments. Raises StorageError if one that was promised is damaged or missing."""
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
    """The header of the file into which the end of the last segment is rewritten. It begins with the first entry that
    no later entry marks as synced. None if there is no such entry. A segment without entries is rewritten as a whole:
    its name may not be on disk, and a second sync of the directory would not show that."""
    if last.end == last.base:
        return SegmentHeader(*last.header[:3])
    return last.first_from(last.durable_end) if last.durable_end < last.end else None


def recover_segment(
    path: Path, base: int, use: LogUse = INGRESS, upper: int | None = None, files: FileSystem = HOST_FILES
) -> SegmentIndex:
    """Verify every entry; the index ends where the good ones do, or at `upper`, where the next segment begins. Damage
    below what was durable is a StorageError."""
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
    """The intact entries beyond a bad one, found by their magic: the bad one's length cannot be trusted."""
    rest = memoryview(data).tobytes() if position < data.size else b""
    while (position := rest.find(ENTRY_MAGIC, position)) >= 0:
        entry = entry_at(data, position)
        if entry and is_intact(data, entry):
            yield entry
        position += 1
