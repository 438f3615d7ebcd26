"""Implements the files port on a simulated disk, as `runtime/host_files` does on the operating system.

Invariant: each call that changes a file is a step at which the process can die, and a sync or a rename is an edge. A
call of a dead process raises `ProcessKilled` and has no effect, also in `finally` blocks. A fault of the schedule
raises the same OSError as Linux; `is_injected` recognizes these errors. The shipped file code runs unchanged on this
port, which uses `disk`.
"""

from __future__ import annotations

import errno
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from procession.errors import ProcessionError
from procession.runtime.files import OpenMode, Part
from procession.sim.blocking_calls import ProcessKilled
from procession.sim.disk import Directory, Disk, File
from procession.sim.simulated_process import SimulatedProcess

DROPPED = 0.2
"""Probability that a failed sync drops the written data at once. Otherwise reads return the data, but it is not
durable."""
FREE_BYTES = 1 << 40
LOCK_WAIT_S = 0.02
MUTEX_WAIT_S = 0.001

READ, WRITE, REPLACE, NEW = OpenMode.READ, OpenMode.WRITE, OpenMode.REPLACE, OpenMode.NEW


class InjectedDiskError(OSError):
    """A fault of the schedule, which an operator would repair."""


def is_injected(error: BaseException | None) -> bool:
    """Return whether a fault of the schedule is the cause of this error."""
    while error is not None:
        if isinstance(error, InjectedDiskError):
            return True
        error = error.__cause__
    return False


def is_injected_damage(error: ProcessionError) -> bool:
    """Return whether a fault of the schedule or a set-back directory is the cause of this error."""
    return bool(error.fields.get("is_injected_damage")) or is_injected(error)


class SimulatedFileSystem:
    """The disk of a machine, as one process sees it. Paths are relative to the root of the disk."""

    def __init__(self, process: SimulatedProcess, disk: Disk) -> None:
        self.process = process
        self.disk = disk
        self.step = process.step
        self.edge = process.edge
        self.chance = process.site.chance
        self.owner = str(process.number)

    def open(self, path: Path, mode: OpenMode = READ) -> SimulatedFile:
        return SimulatedFile(self, self.opened(path, mode))

    def opened(self, path: Path, mode: OpenMode) -> File:
        directory, name = self._parent(path)
        node = directory.names.get(name)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
        if mode is not READ:
            self.check_writable()
        if mode is READ or mode is WRITE:
            if node is None:
                raise _missing(path)
            return node
        if node is None:
            self.step()
            node = File()
            directory.change({name: node})
        elif mode is NEW:
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        elif mode is REPLACE:
            self.step()
            node.write(b"", 0, 0)
        return node

    def read(self, path: Path) -> bytes:
        return self._file(path).data

    def map(self, path: Path) -> pa.Buffer:
        return pa.py_buffer(self._file(path).data)

    def names(self, directory: Path) -> list[str]:
        return list(self._directory(directory).names)

    def exists(self, path: Path) -> bool:
        return self._node(path) is not None

    def is_directory(self, path: Path) -> bool:
        return type(self._node(path)) is Directory

    def make_directory(self, path: Path) -> None:
        directory, name = self._parent(path)
        if name in directory.names or not name:
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        self.step()
        self.check_writable()
        directory.change({name: Directory()})

    def rename(self, old: Path, new: Path) -> None:
        directory, name = self._parent(old)
        other, new_name = self._parent(new)
        self.edge()
        self.check_writable()
        node, replaced = directory.names.get(name), other.names.get(new_name)
        if node is None:
            raise _missing(old)
        if type(replaced) is Directory and (replaced.names or type(node) is File):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(new))
        if directory is other:
            directory.change({name: None, new_name: node})
        else:
            other.change({new_name: node})
            directory.change({name: None})
        self.disk.moved(node)

    def link(self, old: Path, new: Path) -> None:
        node = self._file(old)
        directory, name = self._parent(new)
        if name in directory.names:
            raise FileExistsError(errno.EEXIST, "File exists", str(new))
        self.edge()
        self.check_writable()
        directory.change({name: node})

    def remove(self, path: Path) -> None:
        directory, name = self._parent(path)
        node = directory.names.get(name)
        if node is None:
            raise _missing(path)
        if type(node) is Directory:
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
        self.step()
        self.check_writable()
        directory.change({name: None})

    def remove_tree(self, path: Path) -> None:
        """Remove a tree in one step, because no code relies on a partly removed tree."""
        directory, name = self._parent(path)
        self.step()
        node = directory.names.get(name)
        if type(node) is Directory and not self.disk.is_read_only:
            directory.change({name: None})
            self.disk.moved(node)

    def sync_directory(self, path: Path) -> None:
        directory = self._directory(path)
        self.edge()
        self.check_writable()
        if self.disk.fails_to_sync():
            directory.fail_to_sync(is_lost=self.chance.random() < 0.5)
            raise _failed_sync()
        if not self.disk.is_lying:
            directory.sync()
        self.disk.syncs += 1

    def free_bytes(self, path: Path) -> int:
        self._directory(path)
        return 0 if self.disk.is_full else FREE_BYTES

    def mutex(self) -> SimulatedMutex:
        return SimulatedMutex(self.process)

    def check_owner(self, *, asks: bool = False) -> None:
        pass

    def lock(self, path: Path, *, waits: bool = False) -> SimulatedLock:
        while True:
            node = self._node(path)
            if node is None:
                raise _missing(path)
            holder = self.disk.locks.get(node)
            if holder is None or holder is self.process or not holder.is_alive:
                break
            if not waits or not self.process.wait(LOCK_WAIT_S):
                raise BlockingIOError(errno.EWOULDBLOCK, "Resource temporarily unavailable", str(path))
        self.disk.locks[node] = self.process
        return SimulatedLock(self, node)

    def check_writable(self) -> None:
        if self.disk.is_read_only:
            raise InjectedDiskError(errno.EROFS, "Read-only file system")

    def _turn(self) -> None:
        """Begin a call: other processes may run first, and this process may be dead."""
        self.process.give_way()
        if not self.process.is_alive:
            raise ProcessKilled

    # Names

    def _parent(self, path: Path) -> tuple[Directory, str]:
        self._turn()
        folder, _, name = str(path).rpartition("/")
        directory = self.disk.directory(folder)
        if directory is None:
            raise _missing(path)
        return directory, name if name != "." else ""

    def _node(self, path: Path) -> File | Directory | None:
        self._turn()
        folder, _, name = str(path).rpartition("/")
        if name == ".":
            return self.disk.root
        directory = self.disk.directory(folder)
        return None if directory is None else directory.names.get(name)

    def _file(self, path: Path) -> File:
        node = self._node(path)
        if type(node) is File:
            return node
        if node is None:
            raise _missing(path)
        raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))

    def _directory(self, path: Path) -> Directory:
        node = self._node(path)
        if type(node) is Directory:
            return node
        if node is None:
            raise _missing(path)
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(path))


class SimulatedFile:
    """An open file. It stays the same file when its name is changed or removed."""

    __slots__ = ("_files", "_node")

    def __init__(self, files: SimulatedFileSystem, node: File) -> None:
        self._files = files
        self._node = node

    @property
    def size(self) -> int:
        return len(self._node.data)

    def read(self, length: int, position: int) -> bytes:
        return self._node.data[position : position + length]

    def write(self, position: int, *parts: Part) -> None:
        files, node = self._files, self._node
        files.process.give_way()
        files.step()
        files.check_writable()
        data = b"".join(parts)
        if files.disk.is_full and position + len(data) > len(node.data):
            # Existing bytes can be overwritten; a part of the new ones may still fit.
            fits = files.chance.randrange(max(0, len(node.data) - position), len(data) + 1)
            node.write_at(position, data[:fits])
            raise InjectedDiskError(errno.ENOSPC, "No space left on device")
        node.write_at(position, data)

    def truncate(self, length: int) -> None:
        self._files.step()
        self._files.check_writable()
        self._node.truncate(length)

    def sync(self, *, is_data_only: bool = False) -> None:
        files = self._files
        files.process.give_way()
        files.edge()
        files.check_writable()
        if files.disk.fails_to_sync():
            self._node.fail_to_sync(is_dropped=files.chance.random() < DROPPED)
            raise _failed_sync()
        if not files.disk.is_lying:
            self._node.sync()
        files.disk.syncs += 1

    def close(self) -> None:
        """Do nothing: an open file holds no resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SimulatedMutex:
    """A mutex between the threads of one process. While a thread waits, the others continue."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process
        self._is_held = False

    def __enter__(self) -> None:
        while self._is_held:
            if not self._process.wait(MUTEX_WAIT_S):
                raise AssertionError("a call that cannot be suspended waits for one that is")
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False


class SimulatedLock:
    """A lock that is held until it is closed or its process dies."""

    def __init__(self, files: SimulatedFileSystem, node: File | Directory) -> None:
        self._files = files
        self._node = node

    def close(self) -> None:
        locks = self._files.disk.locks
        if locks.get(self._node) is self._files.process:
            del locks[self._node]


def _missing(path: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))


def _failed_sync() -> InjectedDiskError:
    return InjectedDiskError(errno.EIO, "Input/output error")
