"""The files port on the operating system.

Invariant: every sync and every durable write of this package goes through `sync` and `write_all`, so tests can make
each of them fail (`faults`). `HOST_FILES` has no state and serves all threads.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from procession import faults
from procession.runtime.files import OpenMode, Part

if TYPE_CHECKING:
    import pyarrow as pa

_FLAGS = {
    OpenMode.READ: os.O_RDONLY,
    OpenMode.WRITE: os.O_RDWR,
    OpenMode.CREATE: os.O_RDWR | os.O_CREAT,
    OpenMode.REPLACE: os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    OpenMode.NEW: os.O_RDWR | os.O_CREAT | os.O_EXCL,
}
PARTS_MAX = 1024
"""Maximum number of buffers that Linux writes in one call."""
READ_BYTES_MAX = 1 << 30
"""Maximum bytes of one read. Linux reads at most about 2 GiB at a time."""


def write_all(descriptor: int, data: Part, position: int, *more: Part) -> None:
    """Write every byte of `data` and `more` at `position`, without joining them first. Raises the plain OSError,
    possibly after a part was written."""
    faults.disk("full")
    if faults.is_torn():
        whole = b"".join((data, *more))
        os.pwrite(descriptor, whole[: len(whole) // 2], position)
        faults.die()
    rest = [memoryview(part) for part in (data, *more)]
    while rest:
        written = os.pwritev(descriptor, rest[:PARTS_MAX], position)
        position += written
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if rest:
            rest[0] = rest[0][written:]


def sync(descriptor: int, *, is_data_only: bool = False) -> None:
    """Put the written bytes of a file on disk. With `is_data_only`, its size and times are written only as far as
    reading needs them. Raises the plain OSError."""
    faults.disk("sync")
    if is_data_only:
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


class HostFile:
    """An open file of the operating system."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, length: int, position: int) -> bytes:
        found = os.pread(self._descriptor, min(length, READ_BYTES_MAX), position)
        if not found or len(found) == length:
            return found
        pieces = [found]
        while found and (length := length - len(found)):
            position += len(found)
            found = os.pread(self._descriptor, min(length, READ_BYTES_MAX), position)
            pieces.append(found)
        return b"".join(pieces)

    def write(self, position: int, *parts: Part) -> None:
        write_all(self._descriptor, parts[0], position, *parts[1:])

    def truncate(self, length: int) -> None:
        os.ftruncate(self._descriptor, length)

    def sync(self, *, is_data_only: bool = False) -> None:
        sync(self._descriptor, is_data_only=is_data_only)

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class HostFileSystem:
    """The files of this machine."""

    @property
    def owner(self) -> str:
        return str(os.getpid())

    def open(self, path: Path, mode: OpenMode = OpenMode.READ) -> HostFile:
        return HostFile(os.open(path, _FLAGS[mode], 0o644))

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def map(self, path: Path) -> pa.Buffer:
        import pyarrow as pa  # imported here, because commands that map no file start faster without it

        if path.stat().st_size == 0:
            return pa.py_buffer(b"")
        with pa.memory_map(str(path)) as file:
            return file.read_buffer()

    def names(self, directory: Path) -> list[str]:
        return os.listdir(directory)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def make_directory(self, path: Path) -> None:
        path.mkdir()

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def link(self, old: Path, new: Path) -> None:
        os.link(old, new)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            sync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: Path) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def mutex(self) -> threading.Lock:
        return threading.Lock()

    def check_owner(self, *, asks: bool = False) -> None:
        pass

    def lock(self, path: Path, *, waits: bool = False) -> HostFile:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        return HostFile(descriptor)


HOST_FILES = HostFileSystem()
"""The file system of code that gets no other file system."""
