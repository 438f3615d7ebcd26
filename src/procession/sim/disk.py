"""Simulates a disk: the page cache, the durable content, and the effect of a power cut on their difference.

Invariant: after a kill all written data is still there. A power cut loses, keeps or tears data that was not synced; a
scattered power cut keeps any sectors of it. A file's bytes are durable after `fsync` of the file, its name after
`fsync` of the directory; a power cut keeps the first few name changes of a directory, in order, as a journaling file
system does. A failed sync behaves as on Linux: its data counts as clean and is read back until the power is cut, and
a later sync succeeds without writing it. Processes use the disk through `simulated_files`; `oracle` reads what is
durable.
"""

from __future__ import annotations

from functools import lru_cache
from operator import ne
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING

from procession.sim.randomness import Randomness

if TYPE_CHECKING:
    from procession.sim.simulated_process import SimulatedProcess

PATHS_MAX = 16_384
SECTOR_BYTES = 64
"""Size of the unit that a disk writes as a whole; small, because the files of a simulation are small."""


class SimulatedPath(PosixPath):
    """A path on a simulated disk. Joined paths are cached, because runs use the same few paths repeatedly, and
    joining is slow."""

    def __truediv__(self, key: str) -> Path:  # type: ignore[override]
        return _joined(self, key)

    def resolve(self, strict: bool = False) -> SimulatedPath:
        """Return the path itself: paths are relative to the root of the disk, and there are no links."""
        return self


@lru_cache(PATHS_MAX)
def _joined(path: SimulatedPath, key: str) -> Path:
    return PosixPath.__truediv__(path, key)


class File:
    __slots__ = ("data", "durable", "lost")

    def __init__(self, data: bytes = b"") -> None:
        self.data = data
        self.durable = b""
        self.lost: set[int] | None = None
        """Bytes that a failed sync marked clean: reads return them, they are not durable, and no later sync writes them
        unless they are written again."""

    def write(self, data: bytes, start: int, end: int) -> None:
        """Set the content. The bytes [start, end) were written, and everything after `data` was truncated."""
        self.data = data
        if self.lost is not None:
            self.lost = {at for at in self.lost if at < len(data) and not start <= at < end}

    def write_at(self, position: int, data: bytes) -> None:
        """Overwrite from `position` on. Zeros fill a gap before it."""
        old, end = self.data, position + len(data)
        if position > len(old):
            position, data = len(old), bytes(position - len(old)) + data
        self.write(old[:position] + data + old[end:], position, end)

    def truncate(self, length: int) -> None:
        if length > len(self.data):
            self.write_at(length, b"")
        else:
            self.write(self.data[:length], length, length)

    def sync(self) -> None:
        self.durable = self._written() if self.lost else self.data

    def fail_to_sync(self, *, is_dropped: bool) -> None:
        """Model a failed sync: the kernel marks the pages clean, or drops them at once."""
        if is_dropped:
            self.data, self.lost = self.durable, None
            return
        old = self.durable
        fresh = {at for at, byte in enumerate(self.data) if at >= len(old) or byte != old[at]}
        self.lost = fresh | (self.lost or set())

    def _written(self) -> bytes:
        """Return the durable content after a successful sync."""
        assert self.lost is not None
        old = self.durable.ljust(len(self.data), b"\0")
        return bytes(old[at] if at in self.lost else byte for at, byte in enumerate(self.data))

    def cut_power(self, chance: Randomness, *, is_scattered: bool = False) -> None:
        if self.data is self.durable:
            return
        old, new = self.durable, self._written() if self.lost else self.data
        self.lost = None
        if is_scattered:
            self.data = _scattered(old, new, chance)
        elif new.startswith(old):
            # Appended data: any prefix since the last sync may survive, often none or all of it.
            kept = chance.choice((len(old), len(new), chance.randrange(len(old), len(new) + 1)))
            self.data = new[:kept]
        else:
            self.data = chance.choice((old, new))
        self.durable = self.data


class Directory:
    __slots__ = ("durable", "lost", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[str, File | Directory] = {}
        self.durable: dict[str, File | Directory] = {}
        self.pending: list[dict[str, File | Directory | None]] = []
        """Name changes since the last sync. Each change is atomic."""
        self.lost: set[str] = set()
        """Names whose last change a failed sync marked clean: it is visible, and no later sync makes it durable."""

    def change(self, changes: dict[str, File | Directory | None]) -> None:
        _apply(self.names, changes)
        self.pending.append(changes)
        if self.lost:
            self.lost.difference_update(changes)

    def sync(self) -> None:
        if self.pending:
            self.durable, old = dict(self.names), self.durable
            _apply(self.durable, {name: old.get(name) for name in self.lost})
            self.pending = []

    def fail_to_sync(self, *, is_lost: bool) -> None:
        """Model a failed sync: renames are visible to all processes but not durable. Unless `is_lost`, a later sync
        may make them durable. Directories are not lost: they are created once, and a file system with a failed
        journal does not sync again."""
        if is_lost:
            kept = [changes for changes in self.pending if any(type(node) is Directory for node in changes.values())]
            self.lost.update(name for changes in self.pending if changes not in kept for name in changes)
            self.pending = kept

    def cut_power(self, chance: Randomness, *, is_scattered: bool = False) -> None:
        if self.pending or self.lost:
            for changes in self.pending[: chance.randrange(0, len(self.pending) + 1)]:
                _apply(self.durable, changes)
            self.names = dict(self.durable)
            self.pending = []
            self.lost.clear()
        for node in self.names.values():
            node.cut_power(chance, is_scattered=is_scattered)


def _scattered(old: bytes, new: bytes, chance: Randomness) -> bytes:
    """Return the content after a power cut that keeps a random selection of the unsynced sectors. In the new part of
    a file, the other sectors are zeros. A sector with one changed byte is always kept, because its loss would look
    like a flipped bit."""
    shorter, longer = sorted((len(old), len(new)))
    length = chance.choice((len(old), len(new), chance.randrange(shorter, longer + 1)))
    before, after = old[:length].ljust(length, b"\0"), new[:length].ljust(length, b"\0")
    sectors = []
    for start in range(0, length, SECTOR_BYTES):
        is_lone = sum(map(ne, before[start : start + SECTOR_BYTES], after[start : start + SECTOR_BYTES])) == 1
        kept = after if is_lone or chance.random() < 0.5 else before
        sectors.append(kept[start : start + SECTOR_BYTES])
    return b"".join(sectors)


def _apply(names: dict[str, File | Directory], changes: dict[str, File | Directory | None]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Disk:
    """A simulated disk. Paths are relative, with `/` between names."""

    def __init__(self) -> None:
        self.root = Directory()
        self.is_full = False
        self.is_read_only = False
        """Whether the kernel has mounted the disk read-only after an error. Unsynced data can no longer be synced."""
        self.fsync_failures = 0
        """Number of the next syncs that fail."""
        self.is_lying = False
        """Whether syncs report success and write nothing."""
        self.locks: dict[File | Directory, SimulatedProcess] = {}
        """The process that holds the lock of a file or directory. Locks of dead processes are free."""
        self.syncs = 0
        """Counts changes of durable content, so that readers can skip unchanged disks."""
        self._found: dict[str, Directory] = {}
        """Cache of directories by path, until one is moved."""

    def fails_to_sync(self) -> bool:
        """Return whether the current sync fails."""
        is_failing = self.fsync_failures > 0
        self.fsync_failures -= is_failing
        return is_failing

    def directory(self, path: str) -> Directory | None:
        return self._found.get(path) or self._find(path)

    def _find(self, path: str) -> Directory | None:
        node: File | Directory | None = self.root
        if path:
            for name in path.split("/"):
                if type(node) is not Directory:
                    return None
                node = node.names.get(name)
        if type(node) is not Directory:
            return None
        self._found[path] = node
        return node

    def moved(self, node: File | Directory) -> None:
        """Handle a file or directory that was renamed or removed."""
        if type(node) is Directory:
            self._found.clear()

    def renamed(self) -> None:
        """Handle renamed directories below the root. The new names are durable."""
        self._found.clear()
        self.syncs += 1

    def file(self, path: str) -> File | None:
        folder, _, name = path.rpartition("/")
        directory = self._found.get(folder) or self._find(folder)
        node = directory.names.get(name) if directory is not None else None
        return node if type(node) is File else None

    def durable_directory(self, path: str) -> Directory | None:
        """Return the directory at `path` after a power cut that loses everything that is not synced."""
        node: File | Directory | None = self.root
        for name in path.split("/"):
            if type(node) is not Directory:
                return None
            node = node.durable.get(name)
        return node if type(node) is Directory else None

    def durable_file(self, path: str) -> bytes | None:
        folder, _, name = path.rpartition("/")
        directory = self.durable_directory(folder) if folder else self.root
        node = directory.durable.get(name) if directory is not None else None
        return node.durable if type(node) is File else None

    def cut_power(self, chance: Randomness, *, is_scattered: bool = False) -> None:
        """Lose unsynced data. With `is_scattered`, any sectors may have been written; otherwise appended data is kept
        up to some byte."""
        self.root.cut_power(chance, is_scattered=is_scattered)
        self.syncs += 1
        self._found.clear()
        self.is_full = self.is_read_only = False
        self.fsync_failures = 0
