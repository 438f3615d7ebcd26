"""The state store: the states of the keys of one task, as a dictionary over files.

Invariant: a version is a list of files and never changes. The changes of an epoch are in memory until `finish` writes
them as one more file, which holds only the changed keys. Files that are small compared with the newer files are merged,
so a version has few files, and the cost of an epoch depends on the keys that it changes. A caller names the version to
open; no file is read because it is the newest. `operators/keyed` works on the dictionary; the round record names the
version that the epoch commits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import filterfalse
from pathlib import Path
from typing import Any

import pyarrow as pa

from procession.runtime.files import FileSystem, OpenFile, OpenMode
from procession.runtime.host_files import HOST_FILES
from procession.storage.durable import fsync_dir, make_directory, storage_error
from procession.storage.state_file import (
    SortedStates,
    StateFile,
    UnwrittenStates,
    hashes_of,
    merged_pieces,
    write_pieces,
)
from procession.storage.state_version import Files, StateCodec, StateVersion

KEYS_MAX = 1_000_000
"""Maximum number of keys whose states a task holds in memory. Other states are read from files when needed."""

MERGE_RATIO = 2
"""A file is merged with the newer files if it holds at most this many times their keys."""

SUFFIX = ".state"
WRITE_BYTES = 64 * 1024
"""Minimum size of data that is written to a file at once. Smaller pieces are gathered."""


class TaskStates:
    """The states of one task's keys, from one version to the next."""

    def __init__(
        self,
        directory: Path,
        files: Files,
        codec: StateCodec,
        *,
        keys_max: int = KEYS_MAX,
        file_system: FileSystem = HOST_FILES,
    ) -> None:
        self.directory = directory
        self._file_system = file_system
        self._codec = codec
        self.keys_max = keys_max
        self._opened = [self._open(name) for name, _ in files]
        self.files = files
        self.known: dict[bytes, Any] = {}
        self._touched: set[bytes] = set()
        self._prefix = ""
        self.serial = 0
        self.counts: Counter[str] = Counter()
        self._written = 0

    def begin(self, prefix: str, serial: int = 0) -> None:
        """Use this prefix for files from now on. No other task uses it: see `file_prefix`."""
        self._prefix = prefix
        self._written = 0
        self.serial = serial
        self.counts = Counter()

    def take(self, keys: Sequence[bytes]) -> dict[bytes, Any]:
        """Return a dictionary with the states of these keys, and possibly of others, to be modified. Keys without a
        state are not in it. Report changed keys with `touch` before the next call."""
        if len(self.known) > self.keys_max:
            self._write()
            self.known.clear()
        if self._opened:
            # Nearly always there are none, so this is a loop in C.
            unknown = set(filterfalse(self.known.__contains__, keys))
            if missing := [key for key in unknown if key not in self._touched]:
                self._fetch(missing)
        return self.known

    def touch(self, keys: Iterable[bytes]) -> None:
        """Mark the states of these keys as changed or deleted."""
        self._touched.update(keys)

    def spill(self) -> None:
        """Write the changes, and keep no states in memory."""
        self._write()
        self.known.clear()

    def all_keys(self) -> Iterator[list[bytes]]:
        """Yield the keys that have a state, in chunks and in no particular order. Change no state before the last
        chunk."""
        self._write()
        if self._opened:
            for piece in merged_pieces(list(reversed(self._opened)), is_oldest=True):
                yield piece.column("key").to_pylist()

    def finish(self) -> Files:
        """Write the touched states. Returns the new version, which is durable when this returns."""
        self._write()
        if self._written:
            fsync_dir(self.directory, self._file_system)
        if len(self.known) > self.keys_max:
            self.known.clear()
        return self.files

    @property
    def new_files(self) -> list[str]:
        """The files of the current version that were written since `begin`."""
        return [name for name, _ in self.files if name.startswith(f"{self._prefix}-")]

    def adopt(self, layers: Iterable[Files], share: tuple[int, int, int]) -> None:
        """Begin with the states that other tasks have left for this task's keys, after a change of the number of
        tasks."""
        for files in layers:
            found: list[SortedStates] = [self._open(name) for name, _ in reversed(files)]
            # Tasks share no key, so the order of their layers does not matter.
            if found:
                self._lay(found, is_oldest=True, share=share)

    def _fetch(self, missing: list[bytes]) -> None:
        hashes = hashes_of(missing)
        for file in reversed(self._opened):
            found = file.find(missing, hashes)
            if not found:
                continue
            decode = self._codec.decode
            self.known.update((key, decode(state)) for key, state in found.items() if state is not None)
            rest = [row for row, key in enumerate(missing) if key not in found]
            if not rest:
                return
            missing = [missing[row] for row in rest]
            hashes = hashes[rest]

    def _write(self) -> None:
        if not self._touched:
            return
        # In a fixed order, not in that of a set: the same work makes the same file.
        keys = sorted(self._touched)
        known, encode = self.known, self._codec.encode
        states = [encode(known[key]) if key in known else None for key in keys]
        layers: list[SortedStates] = [UnwrittenStates(keys, states)]
        total = len(keys)
        while self.files and self.files[-1][1] <= MERGE_RATIO * total:
            total += self.files[-1][1]
            layers.append(self._opened.pop())
            self.files = self.files[:-1]
        self._lay(layers, is_oldest=not self.files)
        self._touched.clear()

    def _lay(
        self, layers: Sequence[SortedStates], *, is_oldest: bool, share: tuple[int, int, int] | None = None
    ) -> None:
        name = f"{self._prefix}-{self._written}{SUFFIX}"
        pieces = merged_pieces(layers, is_oldest=is_oldest, share=share)
        count = write_file(self.directory / name, pieces, self._file_system)
        self._written += 1
        if count:
            self.files = (*self.files, (name, count))
            self._opened.append(self._open(name))
        else:
            self._file_system.remove(self.directory / name)

    def _open(self, name: str) -> StateFile:
        return StateFile(self.directory / name, self._file_system)


class StateStore:
    """The directory of a pipeline's state files, as the driver uses it."""

    def __init__(self, directory: Path, file_system: FileSystem = HOST_FILES) -> None:
        self.directory = directory
        self._file_system = file_system

    def make(self) -> None:
        make_directory(self.directory, self._file_system)

    def drop(self, names: Iterable[str]) -> None:
        """Remove files that no future version will name."""
        for name in names:
            with suppress(OSError):  # the next driver removes files that are left
                self._file_system.remove(self.directory / name)

    def sweep(self, kept: Iterable[StateVersion], fence: int) -> None:
        """Remove the files that the last committed epoch does not name: they belong to epochs that were never
        committed. The driver of this fence calls this before its first step. Removes only files of earlier drivers."""
        names = {name for version in kept for name in version.names}
        try:
            found = self._file_system.names(self.directory)
        except OSError as error:
            raise storage_error(self.directory, "read", error) from error
        numbered = ((name, name.partition("-")[0]) for name in found if name.endswith(SUFFIX) and name not in names)
        self.drop(name for name, number in numbered if number.isdigit() and int(number) < fence)


class _Appender:
    """Writes one piece after the other, and combines small pieces."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self._position = 0
        self._waiting: list[memoryview] = []
        self._waiting_bytes = 0

    def write(self, data: Any) -> None:
        piece = memoryview(data)
        if not piece:
            return
        self._waiting.append(piece)
        self._waiting_bytes += len(piece)
        if self._waiting_bytes >= WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._file.write(self._position, *self._waiting)
            self._position += self._waiting_bytes
            self._waiting, self._waiting_bytes = [], 0


def write_file(path: Path, pieces: Iterable[pa.RecordBatch], file_system: FileSystem = HOST_FILES) -> int:
    """Write and sync a new file, but not its directory entry. Returns the number of keys in it."""
    try:
        with file_system.open(path, OpenMode.NEW) as file:
            appender = _Appender(file)
            count = write_pieces(appender, pieces)
            appender.flush()
            file.sync()
    except OSError as error:
        raise storage_error(path, "write", error) from error
    return count
