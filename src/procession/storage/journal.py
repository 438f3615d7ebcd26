"""The journal: an append-only text file of small entries, one per line, each with its own checksum.

A line is the crc32 of its JSON as eight hex digits, a space, compact JSON, a newline.

Invariant: an entry is completely on disk when `append` has returned. A crash can damage only the last line: the line is
cut short, or has zeros in place of sectors that were not written. `open` removes such a line. It recognizes the line by
two zero bytes, which no entry has and no single flipped bit produces. `open` also copies the entries into a new file,
because a readable file need not be on disk. Any other damage is a StorageError, because a lost vote is lost data. A
writer may replace the file by a shorter one with the same meaning; a `JournalTail` notices the replacement.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from procession.errors import StorageError
from procession.runtime.files import FileSystem, OpenFile, OpenMode
from procession.runtime.host_files import HOST_FILES
from procession.storage.durable import renew_durably, storage_error, write_durably

ENTRY_BYTES_MAX = 16 * 1024 * 1024
READ_BYTES = 256 * 1024
HEAD_BYTES = 8 * 1024
"""More bytes than most first lines have."""

_ENCODER = json.JSONEncoder(separators=(",", ":"))

Entry = dict[str, Any]


def _forget(_entry: Entry) -> None:
    """Ignore an entry, for callers that only write."""


class Journal:
    """Writes a journal. After a failed append, it accepts no entries until it is opened again."""

    def __init__(self, path: Path, files: FileSystem = HOST_FILES) -> None:
        self.path = path
        self._files = files
        self._file: OpenFile | None = None
        self._end = 0

    def open(self, take: Callable[[Entry], object] = _forget) -> None:
        """Pass every complete entry to `take`, oldest first. Afterwards the entries are on disk, without an incomplete
        last line."""
        self._end = 0
        for entry, end in _scan(self.path, self._files):
            take(entry)
            self._end = end
        if self._end:
            renew_durably(self.path, self._end, self._files)
        else:
            write_durably(self.path, b"", self._files)
        self._file = self._opened()

    @property
    def is_empty(self) -> bool:
        return not self._end

    def append(self, entry: Entry, *, is_synced: bool = True) -> None:
        """Append an entry. With `is_synced`, this entry and all earlier entries are on disk when this returns."""
        line = encode(entry)
        if self._file is None:
            raise StorageError(
                f"The journal {self.path} is closed, or an earlier write to it failed.",
                next_step="Start the program again, so that it recovers the journal.",
                path=str(self.path),
            )
        try:
            self._file.write(self._end, line)
            if is_synced:
                self._file.sync(is_data_only=True)
        except OSError as error:
            # It is unknown which bytes are on disk now, and a second fsync would not tell.
            self.close()
            raise storage_error(self.path, "write", error) from error
        self._end += len(line)

    def replace(self, entries: Iterable[Entry]) -> None:
        """Replace all entries by these. The first entry must differ from the first entry of every earlier file. After a
        crash, the file has either the old or the new entries."""
        data = b"".join(map(encode, entries))
        self.close()
        write_durably(self.path, data, self._files)
        self._file = self._opened()
        self._end = len(data)

    def _opened(self) -> OpenFile:
        try:
            return self._files.open(self.path, OpenMode.WRITE)
        except OSError as error:
            raise storage_error(self.path, "open", error) from error

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class JournalTail:
    """Reads a journal that another process writes. Each call returns the new entries. If the journal was replaced
    since the last call, it is read from its beginning and `generation` increases by one."""

    def __init__(self, path: Path, files: FileSystem = HOST_FILES) -> None:
        self.path = path
        self._files = files
        self.generation = 0
        self._position = 0
        self._head = b""

    def poll(self) -> Iterator[Entry]:
        try:
            with self._files.open(self.path) as file:
                # The first entry is never written again, and no replacement begins with the same entry.
                head = next(_lines(file, 0, HEAD_BYTES), b"")
                if self._position and head != self._head:
                    self.generation += 1
                    self._position = 0
                self._head = head
                for entry, end in _scan_file(file, self.path, self._position):
                    self._position = end
                    yield entry
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(self.path, "read", error) from error


def read_journal(path: Path, files: FileSystem = HOST_FILES) -> Iterator[Entry]:
    """Yield all complete entries of a journal that another process may be writing. Changes nothing."""
    return (entry for entry, _ in _scan(path, files))


def read_journal_from(path: Path, position: int) -> Iterator[tuple[Entry, int]]:
    """Yield the entries from `position`, which is the end of an entry. Each comes with the position of its own end."""
    return _scan(path, HOST_FILES, position)


def encode(entry: Entry) -> bytes:
    """Return the line of an entry."""
    text = _ENCODER.encode(entry).encode()
    if len(text) + 10 > ENTRY_BYTES_MAX:
        raise ValueError(f"A journal entry of {len(text)} bytes is over the limit of {ENTRY_BYTES_MAX}.")
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _scan(path: Path, files: FileSystem, position: int = 0) -> Iterator[tuple[Entry, int]]:
    """Yield each complete entry and the position of its end, up to an incomplete last line."""
    try:
        with files.open(path) as file:
            yield from _scan_file(file, path, position)
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage_error(path, "read", error) from error


def _scan_file(file: OpenFile, path: Path, position: int) -> Iterator[tuple[Entry, int]]:
    lines = _lines(file, position)
    for line in lines:
        if not _is_whole(line):
            if _is_torn(line) or (b"\0\0" in line and next(lines, None) is None):
                return
            raise StorageError(
                f"The journal {path} is damaged at byte {position}: the entry there does not match its checksum.",
                next_step="Restore the file from a copy; it holds decisions that cannot be guessed.",
                path=str(path),
                position=position,
            )
        position += len(line)
        yield json.loads(line[9:]), position


def _lines(file: OpenFile, position: int, read_bytes: int = READ_BYTES) -> Iterator[bytes]:
    """Yield the lines from `position` on, each with its newline. The last line may have none."""
    rest = b""
    while len(rest) < ENTRY_BYTES_MAX and (piece := file.read(read_bytes, position)):
        position += len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


def _is_whole(line: bytes) -> bool:
    return line[-1:] == b"\n" and line[:9] == b"%08x " % zlib.crc32(line[9:-1])


def _is_torn(line: bytes) -> bool:
    # A line is written in one piece with the newline last, so a crash leaves a line without a newline. If only the
    # newline of a full line is wrong, the line was complete once, and may have been promised.
    return line[-1:] != b"\n" and not _is_whole(line[:-1] + b"\n")
