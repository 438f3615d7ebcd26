"""Reads a sequence of files as one stream: all files that match a pattern, in the order of their names.

Invariant: a record's message id is its position in all files together, and never changes. A list in the state
directory has the position at which each file begins. The entry of a file is durable before a record of the file is
sent. A file is complete when the next one exists. So a pipeline in event-time order can read new daily files: the
stream is declared once, and whether a record is late depends only on its own stream.
"""

from __future__ import annotations

import asyncio
import glob
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import structlog

from procession.connectors.file_source import FOLLOWED_CHUNK_BYTES, POLL_S, Cursor
from procession.connectors.framing import LineFraming, RecordFraming
from procession.errors import ConfigError, StorageError
from procession.format_number import check_format
from procession.sdk.source_records import Batch, Stream
from procession.storage.durable import make_directory, write_durably

LIST_FILE = "files.json"
FORMAT = 1

log = structlog.get_logger()


@dataclass(frozen=True)
class BegunFile:
    """A file whose first record may have been read."""

    name: str
    """Path below the directory of the pattern."""
    start: int
    """Position of its first byte in the stream."""
    after: int | None
    """The last message id of the earlier files. None if they have no records."""


class FileSequence:
    """Reads the files that match a pattern one after the other. With `--follow` it waits for new files."""

    def __init__(
        self,
        pattern: str | Path,
        stream: str,
        state: Path,
        *,
        framing: RecordFraming | None = None,
        is_following: bool = False,
        poll_s: float = POLL_S,
        chunk_bytes: int = FOLLOWED_CHUNK_BYTES,
    ) -> None:
        self._pattern = os.path.abspath(pattern)
        self._root = _root_of(self._pattern)
        self._stream = Stream.named(stream)
        self._state = state
        self._framing = framing or LineFraming()
        self._is_following = is_following
        self._poll_s = poll_s
        self._chunk_bytes = chunk_bytes
        make_directory(state)
        self._begun = self._load()
        if not is_following and not self._begun and not self._names():
            raise ConfigError(f"No file matches {pattern}.", next_step="Check the pattern, or add --follow.")

    def streams(self) -> list[Stream]:
        return [self._stream]

    def read(self, _: Stream, after: int | None) -> Iterator[Batch] | AsyncIterator[Batch]:
        return (
            self._follow(after) if self._is_following else (batch for batch in self._read(after) if batch is not None)
        )

    async def _follow(self, after: int | None) -> AsyncIterator[Batch]:
        for batch in self._read(after):
            if batch is None:
                await asyncio.sleep(self._poll_s)
            else:
                yield batch

    def _read(self, after: int | None) -> Iterator[Batch | None]:
        """Yield the records after this message id; None while there are no further records."""
        place, end = self._place(after), 0
        while True:
            while place == len(self._begun) and not self._begin_next(after, end):
                if not self._is_following:
                    return
                yield None
            file = self._begun[place]
            with Cursor(self._path(file), self._framing, self._chunk_bytes) as cursor:
                cursor.go_after(None if after is None or after < file.start else after - file.start)
                is_complete = place + 1 < len(self._begun) or not self._is_following
                while (batch := cursor.read(is_growing=not is_complete)) is not None or not is_complete:
                    if batch is not None:
                        ids = batch.message_ids + np.uint64(file.start)
                        after = int(ids[-1])
                        yield Batch(ids, batch.event_times, batch.payloads)
                    elif self._new_names():
                        is_complete = True  # the file is complete, because the next one exists
                    else:
                        cursor.check_same()
                        self._check_complete(place - 1)
                        yield None
            place, end = place + 1, file.start + cursor.position

    def _place(self, after: int | None) -> int:
        """Return the index of the file to continue with."""
        if after is not None and not self._begun:
            raise StorageError(
                f"{self._state / LIST_FILE} is missing, but records of stream {self._stream.name!r} are committed.",
                next_step="Restore the directory: without it, the positions of the files are not known.",
                path=str(self._state),
            )
        is_reached = [file.after is None or (after is not None and file.after <= after) for file in self._begun]
        place = max(0, sum(is_reached) - 1)
        while place and not self._path(self._begun[0]).exists():
            del self._begun[0]
            place -= 1
        for number in range(len(self._begun) - 1):
            self._check_complete(number)
        if place < len(self._begun) and not self._path(self._begun[place]).is_file():
            raise StorageError(
                f"{self._path(self._begun[place])} was removed before all of it was committed and the next file begun.",
                next_step="Restore it. Remove a file only when a later one is being read.",
                path=str(self._path(self._begun[place])),
            )
        return place

    def _begin_next(self, after: int | None, start: int) -> bool:
        """Add the next file to the list, if there is one."""
        names = self._new_names()
        if not names:
            return False
        self._begun.append(BegunFile(names[0], start, after))
        write_durably(
            self._state / LIST_FILE, json.dumps({"format": FORMAT, "files": list(map(asdict, self._begun))}).encode()
        )
        log.info("source.file_begun", path=str(self._root / names[0]), position=start)
        return True

    def _new_names(self) -> list[str]:
        """Return the files that are not in the list yet. Raises ConfigError if one sorts before a file that was
        begun."""
        begun = {file.name for file in self._begun}
        names = [name for name in self._names() if name not in begun]
        if names and self._begun and names[0] < self._begun[-1].name:
            raise ConfigError(
                f"The file {self._root / names[0]} sorts before {self._begun[-1].name}, which was begun already.",
                next_step="Give it a name that sorts after all others, or move it away.",
            )
        return names

    def _names(self) -> list[str]:
        found = glob.glob(self._pattern, recursive=True) if glob.has_magic(self._pattern) else [self._pattern]
        return sorted(os.path.relpath(path, self._root) for path in found if os.path.isfile(path))

    def _check_complete(self, number: int) -> None:
        """Raise StorageError if a file has changed after the next one was begun."""
        if number < 0 or not (path := self._path(self._begun[number])).exists():
            return
        length = self._begun[number + 1].start - self._begun[number].start
        if path.stat().st_size != length:
            raise StorageError(
                f"{path} had {length} bytes when {self._begun[number + 1].name} was begun, and has"
                f" {path.stat().st_size} now.",
                next_step="A file must be complete before the next one exists. Cut it to that length, and write what"
                " was added to a new file.",
                path=str(path),
            )

    def _path(self, file: BegunFile) -> Path:
        return self._root / file.name

    def _load(self) -> list[BegunFile]:
        path = self._state / LIST_FILE
        try:
            document = json.loads(path.read_bytes())
            check_format(path, document.get("format"), FORMAT)
            return [BegunFile(**file) for file in document["files"]]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StorageError(
                f"{path} cannot be read: {error}.", next_step="Restore it from a copy.", path=str(path)
            ) from error


def _root_of(pattern: str) -> Path:
    """Return the directory above the first path component that is a pattern."""
    root = Path(pattern)
    while glob.has_magic(str(root)) or root == Path(pattern):
        root = root.parent
    return root
