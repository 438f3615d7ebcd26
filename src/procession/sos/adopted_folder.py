"""A folder to which other processes of ours write, such as the tasks that write states.

Invariant: after `adopt` the journal has every file of the folder as it is on the disk, if whoever writes it has ended.
A file that was adopted while it was being written is looked at again the next time. `sos/replicated_files` adopts
before it syncs what names these files.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from procession.sos.file_operations import MakeDirectory, RemoveEntry, RenameEntry

if TYPE_CHECKING:
    from procession.sos.replicated_files import ReplicatedFiles


class AdoptedFolder:
    """`path` is below the replicated directory. `is_rewritten`: its files are small, and may be replaced by others with
    the same names. Otherwise a file only grows, until its writer ends."""

    def __init__(self, path: str, *, is_rewritten: bool = False) -> None:
        self.path = path
        self._is_rewritten = is_rewritten
        self._growing: set[str] = set()
        """Files that are new since the last time."""
        self._checksums: dict[str, int] = {}

    def adopt(self, files: ReplicatedFiles, path: Path, name: str) -> None:
        """Journal what was written and removed since the last time."""
        if files.inner.exists(path):
            self._walk(files, path, name)

    def _walk(self, files: ReplicatedFiles, path: Path, name: str) -> None:
        found = {f"{name}/{entry}": path / entry for entry in files.inner.names(path)}
        for child, place in sorted(found.items()):
            if files.inner.is_directory(place):
                if child not in files.tree.directories:
                    files.record(MakeDirectory(child))
                self._walk(files, place, child)
            else:
                self._look(files, place, child)
        known = [*files.tree.files, *files.tree.directories]
        for child in [child for child in known if child.rpartition("/")[0] == name and child not in found]:
            files.record(RemoveEntry(child))
            self._growing.discard(child)

    def _look(self, files: ReplicatedFiles, path: Path, name: str) -> None:
        number = files.tree.files.get(name)
        if number is not None and not self._is_rewritten and name not in self._growing:
            return
        try:
            opened = files.inner.open(path)
        except FileNotFoundError:
            return  # removed meanwhile
        with opened as file:
            checksum = zlib.crc32(file.read(file.size, 0)) if self._is_rewritten else 0
            is_same = number is not None and files.tree.sizes[number] == file.size
            if is_same and (not self._is_rewritten or self._checksums.get(name) == checksum):
                self._growing.discard(name)
            else:
                draft = f"{name}.adopted"
                files.adopt(draft, file)
                files.record(RenameEntry(draft, name))  # at no place in the journal it is there in part
                self._growing.add(name)
            if self._is_rewritten:
                self._checksums[name] = checksum
