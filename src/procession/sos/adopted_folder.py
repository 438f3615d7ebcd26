"""Changes below a replicated directory by other processes of the pipeline: tasks write states, Spark removes old files.

Invariant: after `adopt` of an `AdoptedFolder`, the journal has every file of the folder as it is on disk, if the
process that writes the file has ended. A file that was adopted while it was being written is read again the next time.
`sos/replicated_files` adopts files before it syncs a file that names them.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from procession.sos.file_operations import MakeDirectory, RemoveEntry, RenameEntry

if TYPE_CHECKING:
    from procession.sos.replicated_files import ReplicatedFiles

LEFTOVERS_MAX = 256
"""Maximum number of names in the journal whose files a `PrunedFolder` no longer has on disk."""


class ForeignChanges(Protocol):
    """Changes by other processes that `sos/replicated_files` journals when it syncs a directory."""

    def adopt(self, files: ReplicatedFiles, synced: Path) -> None:
        """Journal the changes of other processes since the last call. `synced` is the directory that is being
        synced."""


class AdoptedFolder:
    """A folder whose files other processes write. `path` is below the replicated directory. `is_rewritten`: its files
    are small, and may be replaced by others with the same names. Otherwise a file only grows, until its writer ends."""

    def __init__(self, path: str, *, is_rewritten: bool = False) -> None:
        self.path = path
        self._is_rewritten = is_rewritten
        self._growing: set[str] = set()
        """Files that are new or have grown since the last call."""
        self._checksums: dict[str, int] = {}
        self._known: set[str] | None = None
        """Names below the folder that are in the journal. None: before the first call."""

    def adopt(self, files: ReplicatedFiles, synced: Path) -> None:
        name = files.below(self.path)
        if self._known is None:
            tree = files.tree
            self._known = {each for each in (*tree.files, *tree.directories) if each.startswith(f"{name}/")}
        found: set[str] = set()
        if files.inner.exists(files.root / self.path):
            self._walk(files, files.root / self.path, name, found)
        for gone in sorted(self._known - found):
            files.record(RemoveEntry(gone))
            self._growing.discard(gone)
            self._checksums.pop(gone, None)
        self._known = found

    def _walk(self, files: ReplicatedFiles, path: Path, name: str, found: set[str]) -> None:
        for entry in sorted(files.inner.names(path)):
            child, place = f"{name}/{entry}", path / entry
            found.add(child)
            if files.inner.is_directory(place):
                if child not in files.tree.directories:
                    files.record(MakeDirectory(child))
                self._walk(files, place, child, found)
            else:
                self._adopt_file(files, place, child)

    def _adopt_file(self, files: ReplicatedFiles, path: Path, name: str) -> None:
        number = files.tree.files.get(name)
        if number is not None and not self._is_rewritten and name not in self._growing:
            return
        try:
            opened = files.inner.open(path)
        except FileNotFoundError:
            return  # another process has removed it meanwhile
        with opened as file:
            checksum = zlib.crc32(file.read(file.size, 0)) if self._is_rewritten else 0
            is_same = number is not None and files.tree.sizes[number] == file.size
            if is_same and (not self._is_rewritten or self._checksums.get(name) == checksum):
                self._growing.discard(name)
            else:
                draft = f"{name}.adopted"
                files.adopt(draft, file)
                files.record(RenameEntry(draft, name))  # the rename ensures that the journal never has a part of a file
                self._growing.add(name)
            if self._is_rewritten:
                self._checksums[name] = checksum


class PrunedFolder:
    """The synced directory itself, whose old files other processes delete. From time to time the journal drops the
    names of deleted files, so their number is bounded."""

    def __init__(self) -> None:
        self._syncs = 0

    def adopt(self, files: ReplicatedFiles, synced: Path) -> None:
        self._syncs += 1
        name = files.journalled(synced)
        if self._syncs % LEFTOVERS_MAX or name is None:
            return
        there = {f"{name}/{entry}" for entry in files.inner.names(synced)}
        for known in [each for each in list(files.tree.files) if each.rpartition("/")[0] == name]:
            if known not in there:
                files.record(RemoveEntry(known))
