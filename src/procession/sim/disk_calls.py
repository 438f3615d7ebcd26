"""A process's calls to its machine's disk: those of `os` and `storage/durable`, each a step at which it can die.

Invariant: the order of writes, syncs and renames and the errors are those of `storage/durable`. Used by the models of
the log, the snapshot, the checkpoint and the sink's files; operates on `disk`.
"""

from __future__ import annotations

from procession.errors import StorageError
from procession.sim.disk import Directory, Disk, File
from procession.sim.simulated_process import SimulatedProcess

DROPPED = 0.2
"""Probability that a failed sync drops the written data at once. Otherwise reads return it, but it is not durable."""


class Files:
    def __init__(self, process: SimulatedProcess, disk: Disk) -> None:
        self._step = process.step
        self._edge = process.edge
        self._chance = process.site.chance
        self.disk = disk

    def names(self, path: str) -> list[str]:
        directory = self.disk.directory(path)
        return [] if directory is None else list(directory.names)

    def exists(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        directory = self.disk.directory(folder)
        return directory is not None and name in directory.names

    def read(self, path: str) -> bytes | None:
        file = self.disk.file(path)
        return None if file is None else file.data

    def make_directory(self, path: str) -> None:
        """With its parents; what is there already stays."""
        self._step()
        node = self.disk.root
        for name in path.split("/"):
            following = node.names.get(name)
            if type(following) is not Directory:
                following = Directory()
                node.change({name: following})
            node = following

    def write(self, path: str, data: bytes) -> None:
        """Replace the bytes of a file, creating it if necessary. Not durable."""
        self._step()
        if self.disk.is_full and data:
            raise disk_error(path, "write", "No space left on device")
        self._file(path).write(data, 0, len(data))

    def append(self, path: str, data: bytes) -> None:
        self._step()
        file = self._file(path)
        if self.disk.is_full:
            # A part of it may have been written.
            data = data[: self._chance.randrange(0, len(data) + 1)]
        start = len(file.data)
        file.write(file.data + data, start, start + len(data))
        if self.disk.is_full:
            raise disk_error(path, "write", "No space left on device")

    def write_at(self, path: str, position: int, data: bytes) -> None:
        """Overwrite from `position` on. Not durable."""
        self._step()
        if self.disk.is_full and data:
            raise disk_error(path, "write", "No space left on device")
        file = self._file(path)
        end = position + len(data)
        file.write(file.data[:position] + data + file.data[end:], position, end)

    def truncate(self, path: str, length: int) -> None:
        """Truncate a file, creating it if necessary. Works on a full disk. Not durable."""
        self._step()
        file = self._file(path)
        file.write(file.data[:length], length, length)

    def sync(self, path: str) -> None:
        self._edge()
        file = self.disk.file(path)
        if file is None:
            raise gone(path)
        if self.disk.fsync_failures:
            self.disk.fsync_failures -= 1
            file.fail_to_sync(is_dropped=self._chance.random() < DROPPED)
            raise disk_error(path, "sync", "Input/output error")
        file.sync()
        self.disk.syncs += 1

    def sync_directory(self, path: str) -> None:
        self._edge()
        directory = self.disk.directory(path)
        if directory is None:
            raise gone(path)
        if self.disk.fsync_failures:
            self.disk.fsync_failures -= 1
            directory.fail_to_sync(is_lost=self._chance.random() < 0.5)
            raise disk_error(path, "sync", "Input/output error")
        directory.sync()
        self.disk.syncs += 1

    def rename(self, folder: str, old: str, new: str) -> None:
        self._edge()
        directory = self.disk.directory(folder)
        if directory is None or old not in directory.names:
            raise gone(f"{folder}/{old}")
        node = directory.names[old]
        directory.change({old: None, new: node})
        self.disk.moved(node)

    def remove(self, folder: str, name: str) -> None:
        self._step()
        directory = self.disk.directory(folder)
        if directory is not None and name in directory.names:
            node = directory.names[name]
            directory.change({name: None})
            self.disk.moved(node)

    def write_durably(self, folder: str, name: str, data: bytes) -> None:
        """As `storage.durable.write_durably`: draft, sync, rename, sync of the directory."""
        draft = f"{name}.draft"
        self.write(f"{folder}/{draft}", data)
        self.sync(f"{folder}/{draft}")
        self.rename(folder, draft, name)
        self.sync_directory(folder)

    def _file(self, path: str) -> File:
        folder, _, name = path.rpartition("/")
        directory = self.disk.directory(folder)
        if directory is None:
            raise gone(path)
        node = directory.names.get(name)
        if type(node) is not File:
            node = File()
            directory.change({name: node})
        return node


def gone(path: str) -> StorageError:
    """The error for a file that another of our processes removed: not an injected fault."""
    return StorageError(f"Cannot use {path}: No such file or directory.", next_step="Restore the file.", path=path)


def disk_error(path: str, action: str, why: str) -> StorageError:
    """The real error; `is_done_to_us` marks an injected fault, which an operator would repair."""
    return StorageError(f"Cannot {action} {path}: {why}.", next_step="Repair the disk.", path=path, is_done_to_us=True)
