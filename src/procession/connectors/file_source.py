"""The file source: each file is a stream, each line (or frame) a record.

Invariant: a record's message id is the position of its first byte. So the source stores no read position, and a file
may only grow.
"""

from __future__ import annotations

import asyncio
import glob
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import numpy as np
import structlog

from procession.connectors.framing import RECORD_BYTES_MAX, LineFraming, RecordFraming
from procession.errors import ConfigError, StorageError, UsageError
from procession.planner.connector_url import ConnectorUrl
from procession.record import stream_id
from procession.sdk.source_records import Batch, Stream, Streams
from procession.storage.durable import storage_error

CHUNK_BYTES = 1024 * 1024
FOLLOWED_CHUNK_BYTES = 64 * 1024
FOLLOWED_MAX = 1024
"""Maximum number of followed files. They are all open at the same time, and read in chunks of
FOLLOWED_CHUNK_BYTES."""
POLL_S = 0.1

log = structlog.get_logger()


class FileSource:
    """Reads files. A name may be a pattern, such as `logs/**/*.log`. Followed files do not end, and more may appear."""

    def __init__(
        self,
        names: Sequence[str | Path],
        *,
        framing: RecordFraming | None = None,
        is_following: bool = False,
        poll_s: float = POLL_S,
        chunk_bytes: int | None = None,
    ) -> None:
        self._names = [str(name) for name in names]
        self._framing = framing or LineFraming()
        self._is_following = is_following
        self._poll_s = poll_s
        self._chunk_bytes = chunk_bytes or (FOLLOWED_CHUNK_BYTES if is_following else CHUNK_BYTES)
        self._paths: dict[int, Path] = {}
        for name in self._names:
            found = self._find(name)
            if not found and not is_following:
                raise ConfigError(f"No file matches {name}.", next_step="Check the pattern, or add --follow.")
            for path in found:
                if self._paths.setdefault(stream_id_of(path), path) is not path:
                    raise UsageError(f"The file {path} is named twice.", next_step="Name each file once.")

    @property
    def stream_ids(self) -> frozenset[int]:
        """The ids of the streams found so far."""
        return frozenset(self._paths)

    @property
    def paths(self) -> dict[int, str]:
        """The files found so far, by the ids of their streams."""
        return {number: str(path) for number, path in self._paths.items()}

    def streams(self) -> Streams:
        found = [Stream(number, str(path)) for number, path in self._paths.items()]
        return self._appearing(found) if self._is_following and any(map(_is_pattern, self._names)) else found

    def read(self, stream: Stream, after: int | None) -> Iterator[Batch] | AsyncIterator[Batch]:
        path = self._paths[stream.id]
        return self._follow(path, after) if self._is_following else self._read(path, after)

    def _find(self, name: str) -> list[Path]:
        path = Path(name)
        if _is_pattern(name):
            found = [Path(match) for match in sorted(glob.glob(name, recursive=True)) if os.path.isfile(match)]
        else:
            found = [path]
        for path in found:
            if not path.is_file() or not os.access(path, os.R_OK):
                why = "there is no such file" if not path.exists() else "it is not a file that this user may read"
                raise ConfigError(f"Cannot read {path}: {why}.", next_step="Name files that this user can read.")
        return found

    async def _appearing(self, found: list[Stream]) -> AsyncIterator[Stream]:
        for stream in found:
            yield stream
        while True:
            await asyncio.sleep(self._poll_s)
            for path in (path for name in self._names for path in self._find(name)):
                number = stream_id_of(path)
                if number not in self._paths:
                    if len(self._paths) == FOLLOWED_MAX:
                        raise ConfigError(
                            f"There are more than {FOLLOWED_MAX} files to follow.",
                            next_step="Follow them with several sources, each with a part of the files.",
                        )
                    self._paths[number] = path
                    log.info("source.file_found", path=str(path))
                    yield Stream(number, str(path))

    def _read(self, path: Path, after: int | None) -> Iterator[Batch]:
        with Cursor(path, self._framing, self._chunk_bytes) as cursor:
            cursor.go_after(after)
            while batch := cursor.read(is_growing=False):
                yield batch

    async def _follow(self, path: Path, after: int | None) -> AsyncIterator[Batch]:
        with Cursor(path, self._framing, self._chunk_bytes) as cursor:
            cursor.go_after(after)
            while True:
                if batch := cursor.read(is_growing=True):
                    yield batch
                else:
                    cursor.check_same()
                    await asyncio.sleep(self._poll_s)


class Cursor:
    """A read position in an open file, at the beginning of a record."""

    def __init__(self, path: Path, framing: RecordFraming, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._path = path
        self._framing = framing
        self._chunk_bytes = chunk_bytes
        self._position = 0
        self._skip = 0
        """Number of records to skip. After `go_after`, the record at the given position is read again to find its
        end."""
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise storage_error(path, "read", error) from error

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    @property
    def position(self) -> int:
        """The end of the last record that was read."""
        return self._position

    def go_after(self, after: int | None) -> None:
        """Move to the end of the record that begins at `after`; to the beginning of the file if None."""
        if after is None:
            return
        if not self._framing.begins_at(after, self._peek):
            raise StorageError(
                f"{self._path} is not the file that was read before: no record begins at byte {after}.",
                next_step="Restore the file, or give the new one another name.",
                path=str(self._path),
            )
        self._position, self._skip = after, 1

    def read(self, *, is_growing: bool) -> Batch | None:
        """Return the next records; None at the end, or, in a growing file, if no further record is complete yet."""
        limit = RECORD_BYTES_MAX + self._framing.overhead_bytes
        wanted = min(self._chunk_bytes, limit)
        while True:
            data = self._peek(self._position, wanted)
            is_end = len(data) < wanted
            cut = self._framing.cut(data, is_end=is_end and not is_growing)
            if len(cut):
                skip, self._skip = self._skip, 0
                starts = (cut.starts[skip:] + self._position).astype(np.uint64)
                self._position += cut.end
                if len(starts):
                    return Batch(starts, np.zeros(len(starts), np.int64), cut.payloads[skip:])
            elif wanted == limit and not is_end:
                raise ConfigError(
                    f"The record at byte {self._position} of {self._path} is longer than {RECORD_BYTES_MAX} bytes.",
                    next_step="Use a file with shorter records, or correct --framing.",
                )
            elif not is_end:
                wanted = min(wanted * 2, limit)
            elif data and not is_growing:
                raise StorageError(
                    f"{self._path} ends in the middle of the record at byte {self._position}.",
                    next_step="Use the complete file and the right --framing; or --follow it, if it still grows.",
                    path=str(self._path),
                )
            else:
                return None

    def check_same(self) -> None:
        """Raise StorageError if the file was truncated or replaced by another file."""
        ours = os.fstat(self._descriptor)
        try:
            named = os.stat(self._path)
            is_same = (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)
        except OSError:
            is_same = False
        if is_same and ours.st_size >= self._position:
            return
        happened = "was truncated" if is_same else "was replaced or removed"
        raise StorageError(
            f"{self._path} {happened} while it was followed, after byte {self._position}.",
            next_step="Follow files that only grow; a new file needs a new name.",
            path=str(self._path),
        )

    def _peek(self, position: int, count: int) -> bytes:
        try:
            return os.pread(self._descriptor, count, position)
        except OSError as error:
            raise storage_error(self._path, "read", error) from error


def url_streams(url: ConnectorUrl) -> frozenset[int]:
    """Return the streams of `file:PATTERN`. Raises ConfigError if there is no such file."""
    if _is_pattern(url.place) and not any(map(os.path.isfile, glob.glob(url.place, recursive=True))):
        raise ConfigError(
            f"No file matches {url.place}.",
            next_step="Check the pattern, or write source(…, ends=False) to wait for files.",
        )
    return FileSource([url.place]).stream_ids


def stream_id_of(path: Path) -> int:
    """Return 64 bits of a hash of the absolute path, so that a file is the same stream in every run."""
    return stream_id(os.fsencode(os.path.abspath(path)))


def _is_pattern(name: str) -> bool:
    return glob.has_magic(name) and not os.path.exists(name)
