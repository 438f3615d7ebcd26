"""A disk that fails to sync as on Linux, under the real code: the data can still be read, and is lost in a power cut.

Invariant: after a failed sync of a file its pages count as clean, so a later sync succeeds and writes nothing. The same
applies to the names in a directory, but not to directories, which are created once. `crash` returns what a machine
would find after a power cut.
"""

from __future__ import annotations

import errno
import os
import weakref
from pathlib import Path

import pytest


class LinuxDisk:
    """The files below `root`. Only the `fails_at`-th sync from now on fails."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, fails_at: int = 0) -> None:
        self.root = root
        self.syncs = 0
        self.fails_at = fails_at
        self._real = os.fsync
        self._files: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._lost_bytes: dict[int, tuple[int, int]] = {}
        """For each file, the range whose write was lost. A truncation removes its part of the range."""
        self._lost_names: dict[int, dict[str, int]] = {}
        self._held: dict[int, int] = {}
        """A descriptor for each stored inode number, so that no other file gets the number of a removed one."""
        weakref.finalize(self, _close, self._held)
        patch.setattr(os, "fsync", self._sync)
        patch.setattr(os, "fdatasync", self._sync)
        self._real_cut = os.ftruncate
        patch.setattr(os, "ftruncate", self._cut)

    def _sync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path != self.root and self.root not in path.parents:
            self._real(descriptor)
            return
        self.syncs += 1
        is_failing = self.syncs == self.fails_at
        if path.is_dir():
            self._sync_names(path, is_failing)
        else:
            self._sync_file(descriptor, is_failing)
        if is_failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _sync_file(self, descriptor: int, is_failing: bool) -> None:
        number = os.fstat(descriptor).st_ino
        with open(f"/proc/self/fd/{descriptor}", "rb") as file:
            data = file.read()
        old = self._files.get(number, b"")
        start, end = self._lost_bytes.get(number, (len(data), len(data)))
        self._hold(f"/proc/self/fd/{descriptor}", number)
        if is_failing:
            self._lost_bytes[number] = min(start, len(old)), len(data)
        else:
            self._files[number] = data[:start] + bytes(end - start) + data[end:]

    def _hold(self, path: Path | str, number: int) -> None:
        if number not in self._held:
            self._held[number] = os.open(path, os.O_RDONLY)

    def _cut(self, descriptor: int, length: int) -> None:
        number = os.fstat(descriptor).st_ino
        if number in self._lost_bytes:
            start, end = self._lost_bytes[number]
            self._lost_bytes[number] = min(start, length), min(end, length)
        self._real_cut(descriptor, length)

    def _sync_names(self, path: Path, is_failing: bool) -> None:
        number = path.stat().st_ino
        found = {one.name: one.stat().st_ino for one in path.iterdir()}
        for name, file in found.items():
            self._hold(path / name, file)
        durable, lost = self._names.setdefault(number, {}), self._lost_names.setdefault(number, {})
        if is_failing:
            files = {name: file for name, file in found.items() if not (path / name).is_dir()}
            lost.update({name: file for name, file in files.items() if durable.get(name) != file})
            return
        kept = {name: durable.get(name) for name, file in found.items() if lost.get(name) == file}
        self._names[number] = {name: file for name, file in (found | kept).items() if file is not None}

    def crash(self, to: Path) -> Path:
        """Write what is on disk now to another directory."""
        self._build(self.root, to)
        return to

    def _build(self, directory: Path, to: Path) -> None:
        to.mkdir()
        by_number = {path.stat().st_ino: path for path in directory.iterdir()}
        for name, number in self._names.get(directory.stat().st_ino, {}).items():
            if number in by_number and by_number[number].is_dir():
                self._build(by_number[number], to / name)
            else:
                (to / name).write_bytes(self._files.get(number, b""))


def _close(held: dict[int, int]) -> None:
    for descriptor in held.values():
        os.close(descriptor)
