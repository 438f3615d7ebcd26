"""The files port with a journal: every change below a directory is also a record on the replicas.

Invariant: a sync of a file or directory returns only when this machine's disk and the write quorum both have all
earlier changes. The journal has the changes in their order, so every prefix of the journal is an earlier state of the
directory. No other program may change files below the directory, except those in `SKIPPED`, which belong to the
machine. Files elsewhere are not replicated. `runtime/files` is the port, `sos/file_journal` sends the records,
`sos/directory_restore` restores the directory.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from procession.runtime.files import FileSystem, HeldLock, OpenFile, OpenMode, Part
from procession.sos.adopted_folder import ForeignChanges
from procession.sos.file_operations import (
    NOTHING,
    WRITE_BYTES_MAX,
    BeginSnapshot,
    EndSnapshot,
    FileOperation,
    FileTree,
    GiveName,
    MakeDirectory,
    RemoveEntry,
    RenameEntry,
    TruncateFile,
    WriteBytes,
    encode_operation,
)
from procession.sos.journalled_file import JournalledFile

if TYPE_CHECKING:
    import pyarrow as pa

MARKER = "replica.json"
SECRETS = "secrets"
SKIPPED = frozenset({SECRETS, MARKER})
"""Names in the directory that are not replicated: the secrets, and the marker of the replicas."""
SNAPSHOT_BYTES_MIN = 64 * 1024 * 1024
"""Minimum bytes of the journal after which a snapshot replaces it. It must also have twice the size of all files."""


class ReplicationJournal(Protocol):
    """The methods of `sos/file_journal` that the files call."""

    @property
    def bytes_added(self) -> int: ...

    def add(self, parts: tuple[bytes, ...]) -> None: ...

    def room(self) -> None: ...

    def check(self) -> None: ...

    def barrier(self) -> int: ...

    def wait(self, barrier: int) -> None: ...


@dataclass
class _Copying:
    """A part of a file that a snapshot is copying."""

    file: int
    start: int
    end: int
    is_changed: bool = False


class ReplicatedFiles:
    """A file system whose changes below `root` are journalled."""

    def __init__(
        self,
        inner: FileSystem,
        root: Path,
        journal: ReplicationJournal,
        *,
        name: str = "",
        only: Collection[str] = (),
        adopted: Mapping[str, tuple[ForeignChanges, ...]] | None = None,
        on_snapshot_due: Callable[[], None] = lambda: None,
        snapshot_bytes_min: int = SNAPSHOT_BYTES_MIN,
    ) -> None:
        """`name` is the directory's name when it is restored together with others. `only`: the replicated names in it;
        empty: all. `adopted`: changes of other processes of the pipeline. They are journalled when a directory of the
        given name is synced."""
        self.inner = inner
        self.journal = journal
        self.root, self._root = root, str(root)
        self._prefix = "" if self._root == "." else f"{self._root}/"
        self._name = name
        self._only = frozenset(only)
        self._adopted = adopted or {}
        self.tree = FileTree()
        self.directory_syncs = 0
        """Number of syncs of directories that were begun."""
        self._next_file = 1
        self._mutex = inner.mutex()
        self._copying: _Copying | None = None
        self._moves = self._moving = 0
        """Number of changes of names so far, and number of changes in progress, which are on disk before they are in
        the journal."""
        self._on_snapshot_due = on_snapshot_due
        self._snapshot_bytes_min = snapshot_bytes_min
        self._snapshot_at = 0
        self._is_snapshot_due = False

    # Snapshots

    def begin(self) -> None:
        """Write all existing files as the beginning of a new journal. Returns when the quorum has them. The files must
        not change meanwhile."""
        self.record(BeginSnapshot(self._name, is_reset=True))
        self._adopt_directory(Path(self._root), self._name)
        self._finish_snapshot()

    def snapshot(self) -> None:
        """Write all files again, while other threads may change them. When it returns, the earlier journal is no longer
        needed."""
        with self._mutex:
            self._add(BeginSnapshot(self._name, is_reset=False))
            for directory in self.tree.directories:
                self._add(MakeDirectory(directory))
            for name, file in self.tree.files.items():
                self._add(GiveName(name, file))
            names = {file: name for name, file in self.tree.files.items()}
        for file, name in names.items():
            self._copy(file, name)
        self._finish_snapshot()

    def _finish_snapshot(self) -> None:
        self.record(EndSnapshot())
        self.journal.wait(self.journal.barrier())
        self._snapshot_at, self._is_snapshot_due = self.journal.bytes_added, False

    def _copy(self, file: int, name: str) -> None:
        """Journal the bytes of a file that other threads may write to, rename or remove."""
        position = 0
        while True:
            with self._mutex:
                size = self.tree.sizes.get(file, 0)
                if position >= size:
                    return
                if self.tree.files.get(name) != file:
                    name = next(name for name, other in self.tree.files.items() if other == file)
                end = min(position + WRITE_BYTES_MAX, size)
                copying, moves = _Copying(file, position, end), self._moves
                self._copying = copying
            self.journal.room()
            try:
                with self.inner.open(self._path(name)) as opened:
                    data = opened.read(end - position, position)
            except FileNotFoundError:
                # The file has another name by now, or no name; or another process has removed it.
                with self._mutex:
                    if not self._moving and self._moves == moves and self.tree.files.get(name) == file:
                        self._add(RemoveEntry(name))
                continue
            with self._mutex:
                self._copying = None
                if copying.is_changed or self.tree.files.get(name) != file:
                    continue
                if data:
                    self._add(WriteBytes(file, position, data))
                position = end

    def _is_due(self) -> bool:
        added = self.journal.bytes_added - self._snapshot_at
        return added > self._snapshot_bytes_min and added > 2 * sum(self.tree.sizes.values())

    # Records

    def record(self, operation: FileOperation) -> None:
        self.journal.room()
        with self._mutex:
            self._add(operation)
            is_due = not self._is_snapshot_due and self._is_due()
            self._is_snapshot_due = self._is_snapshot_due or is_due
        if is_due:
            self._on_snapshot_due()

    def _add(self, operation: FileOperation) -> None:
        """Add a record. The caller holds the mutex."""
        self.tree.apply(operation)
        self.journal.add(encode_operation(operation))

    def touch(self, file: int, start: int, end: int) -> None:
        """Note that these bytes of a file change. A snapshot that is copying them starts the copy again."""
        copying = self._copying
        if copying is not None and copying.file == file and start < copying.end and copying.start < end:
            copying.is_changed = True

    def written(self, file: int, position: int, parts: tuple[Part, ...]) -> None:
        end = position + sum(map(len, parts))
        self.touch(file, position, end)
        for part in parts:
            for start in range(0, len(part), WRITE_BYTES_MAX):
                piece = part if len(part) <= WRITE_BYTES_MAX else part[start : start + WRITE_BYTES_MAX]
                self.record(WriteBytes(file, position, piece if isinstance(piece, bytes) else bytes(piece)))
                position += len(piece)

    def truncated(self, file: int, length: int) -> None:
        self.touch(file, length, 1 << 63)
        self.record(TruncateFile(file, length))

    def _adopt_directory(self, path: Path, name: str) -> None:
        """Journal a directory that another process has made, with its content."""
        for entry in sorted(self.inner.names(path)):
            child = f"{name}/{entry}" if name else entry
            if self.journalled(path / entry) is None:
                continue
            if self.inner.is_directory(path / entry):
                self.record(MakeDirectory(child))
                self._adopt_directory(path / entry, child)
            else:
                self._adopt_file(path / entry, child)

    def _adopt_file(self, path: Path, name: str) -> None:
        try:
            opened = self.inner.open(path)
        except FileNotFoundError:
            return  # a file of an earlier process that is about to end
        except OSError as error:
            if error.errno == errno.ENXIO:  # a socket
                return
            raise
        with opened as file:
            self.adopt(name, file)

    def adopt(self, name: str, opened: OpenFile) -> int:
        """Journal an existing file, with its bytes, as a new file. Returns its number."""
        with self._mutex:
            number, self._next_file = self._next_file, self._next_file + 1
        self.record(GiveName(name, number))
        position = 0
        while data := opened.read(WRITE_BYTES_MAX, position):
            self.record(WriteBytes(number, position, data))
            position += len(data)
        return number

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the port without the journal. A child process only reads the files."""
        return _itself, (self.inner,)

    # Names

    def journalled(self, path: Path) -> str | None:
        """Return the name of a path in the journal, or None if it is not replicated. The directory itself has the name
        of the journal's root."""
        text = str(path)
        if self._root.startswith("/") and (not text.startswith("/") or ".." in text):
            text = os.path.abspath(text)
        if text == self._root:
            return self._name
        if not text.startswith(self._prefix):
            return None
        below = text[len(self._prefix) :]
        top = below.partition("/")[0]
        if top in SKIPPED or top.startswith(f"{MARKER}.") or (self._only and top not in self._only):
            return None
        return self.below(below)

    def below(self, path: str) -> str:
        """Return the name in the journal of a path below the directory."""
        return f"{self._name}/{path}" if self._name else path

    def _path(self, name: str) -> Path:
        below = name[len(self._name) + 1 :] if self._name else name
        return Path(self._root) / below

    # The port

    @property
    def owner(self) -> str:
        return self.inner.owner

    def open(self, path: Path, mode: OpenMode = OpenMode.READ) -> OpenFile:
        name = self.journalled(path)
        opened = self.inner.open(path, mode)
        if name is None:
            return opened
        is_new = name not in self.tree.files
        try:
            number = self._opened(name, opened, mode)
        except BaseException:
            opened.close()
            raise
        return JournalledFile(self, opened, number, is_new=is_new)

    def _opened(self, name: str, opened: OpenFile, mode: OpenMode) -> int:
        number = self.tree.files.get(name)
        if mode is OpenMode.READ:
            return number or 0
        if number is None:
            return self.adopt(name, opened)
        if mode is OpenMode.REPLACE:
            self.truncated(number, 0)
        return number

    def read(self, path: Path) -> bytes:
        return self.inner.read(path)

    def map(self, path: Path) -> pa.Buffer:
        return self.inner.map(path)

    def names(self, directory: Path) -> list[str]:
        return self.inner.names(directory)

    def exists(self, path: Path) -> bool:
        return self.inner.exists(path)

    def is_directory(self, path: Path) -> bool:
        return self.inner.is_directory(path)

    def make_directory(self, path: Path) -> None:
        self.inner.make_directory(path)
        if name := self.journalled(path):
            self.record(MakeDirectory(name))

    def rename(self, old: Path, new: Path) -> None:
        names = self._both(old, new)
        with self._move():
            self.inner.rename(old, new)
            if names is not None:
                self.record(RenameEntry(*names))

    def link(self, old: Path, new: Path) -> None:
        names = self._both(old, new)
        self.inner.link(old, new)
        if names is not None:
            self.record(GiveName(names[1], self.tree.files[names[0]]))

    def _both(self, old: Path, new: Path) -> tuple[str, str] | None:
        """Return the names of both paths in the journal, or None if they are not replicated."""
        names = self.journalled(old), self.journalled(new)
        if (names[0] is None) is not (names[1] is None):
            raise OSError(errno.EXDEV, "Only one of the two names is replicated", str(new))
        return (names[0], names[1]) if names[0] and names[1] else None

    def remove(self, path: Path) -> None:
        with self._move():
            self.inner.remove(path)
            if name := self.journalled(path):
                self.record(RemoveEntry(name))

    def remove_tree(self, path: Path) -> None:
        with self._move():
            self.inner.remove_tree(path)
            if name := self.journalled(path):
                self.record(RemoveEntry(name))

    @contextmanager
    def _move(self) -> Iterator[None]:
        """Run a block in which names change."""
        with self._mutex:
            self._moves += 1
            self._moving += 1
        try:
            yield
        finally:
            with self._mutex:
                self._moving -= 1

    def sync_directory(self, path: Path) -> None:
        if self.journalled(path) is None:
            self.inner.sync_directory(path)
            return
        self.directory_syncs += 1
        for changes in self._adopted.get(path.name, ()):
            changes.adopt(self, path)
        barrier = self.journal.barrier()
        self.inner.sync_directory(path)
        self.journal.wait(barrier)

    def free_bytes(self, path: Path) -> int:
        return self.inner.free_bytes(path)

    def mutex(self) -> AbstractContextManager[Any]:
        return self.inner.mutex()

    def check_owner(self, *, asks: bool = False) -> None:
        if asks:
            self.journal.add((NOTHING,))
            self.journal.wait(self.journal.barrier())
        self.journal.check()

    def lock(self, path: Path, *, waits: bool = False) -> HeldLock:
        return self.inner.lock(path, waits=waits)


def _itself(files: FileSystem) -> FileSystem:
    return files
