"""Restores a directory from its journal on the replicas.

Invariant: the directory has the state of the journal's end on the quorum, or it does not exist. Until all files are on
disk, they are in a subdirectory, `restoring`, and the marker of the replicas is written last. An interrupted restore
starts again from the beginning. The volume is claimed before its journal is read, so the process that wrote the journal
can add no records. `sos/replicated_files` writes the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from procession.errors import ConfigError, StorageError
from procession.runtime.files import FileSystem, OpenFile, OpenMode
from procession.runtime.host import HOST, Host
from procession.sos.file_operations import (
    BeginSnapshot,
    EndSnapshot,
    FileOperation,
    FileTree,
    TruncateFile,
    WriteBytes,
    decode_operations,
)
from procession.sos.replica_marker import ReplicaMarker
from procession.sos.replicated_files import MARKER, SECRETS
from procession.sos.replicated_volume import NoVolume, ReplicaOptions, ReplicatedVolume
from procession.storage.durable import fsync_dir, lock_directory, make_directory, make_if_missing, storage_error

STAGING = "restoring"
OPEN_FILES_MAX = 64


@dataclass(frozen=True)
class RestoredDirectory:
    path: Path
    files: int
    size_bytes: int


async def restore_directory(
    volume_name: str,
    options: ReplicaOptions,
    directory: Path,
    *,
    say: Callable[[str], None] | None = None,
    host: Host = HOST,
) -> RestoredDirectory:
    """Claim a volume and write its files into `directory`, which must be empty except for secrets. Raises ConfigError
    if it is not empty or there is no such volume, and StorageError if the disk fails."""
    with closing(lock_directory(directory, host.files)):
        _clear(directory, host.files)
        return await _restore_locked(volume_name, options, directory, say, host)


async def restore_missing(
    volume_name: str,
    options: ReplicaOptions,
    directory: Path,
    *,
    say: Callable[[str], None] | None = None,
    host: Host = HOST,
) -> RestoredDirectory | None:
    """Restore a directory, unless it already exists on this machine or was never on these replicas."""
    if host.files.exists(directory / MARKER):
        return None
    try:
        return await restore_directory(volume_name, options, directory, say=say, host=host)
    except NoVolume:
        return None


async def _restore_locked(
    volume_name: str, options: ReplicaOptions, directory: Path, say: Callable[[str], None] | None, host: Host
) -> RestoredDirectory:
    files, fences = host.files, list[int]()
    volume = ReplicatedVolume(volume_name, options, may_begin=False, on_create=fences.append, host=host)
    try:
        await volume.open(say)
        replay = JournalReplay(directory / STAGING, files)
        async for _, data in volume.history():
            for operation in decode_operations(data):
                replay.apply(operation)
        restored = replay.finish(directory)
        marker = ReplicaMarker(restored.path, volume_name, files)
        for fence in fences:
            marker.add(fence)
        marker.begun()
        files.remove_tree(directory / STAGING)
        fsync_dir(directory, files)
    finally:
        await volume.close()
    return restored


def _clear(directory: Path, files: FileSystem) -> None:
    """Remove the files of an interrupted restore. Raises ConfigError if the directory holds other files, except for
    secrets: these are not on the replicas, so an operator may copy them there first."""
    names = [name for name in files.names(directory) if name != SECRETS]
    if names and STAGING not in names:
        raise ConfigError(
            f"The directory {directory} is not empty.",
            next_step="Restore into an empty directory. If this directory is older, move it away.",
        )
    for name in sorted(names, key=lambda name: name == STAGING):  # last, because it marks an interrupted restore
        path = directory / name
        if files.is_directory(path):
            files.remove_tree(path)
        else:
            files.remove(path)


@dataclass
class JournalBase:
    """A state of the directory: its names, and its files in `place`, named by their numbers."""

    place: Path
    root: str
    tree: FileTree = field(default_factory=FileTree)
    is_complete: bool = False


class JournalReplay:
    """Applies the operations of a journal, oldest first."""

    def __init__(self, staging: Path, files: FileSystem) -> None:
        self._staging = staging
        self._files = files
        self._bases: list[JournalBase] = []
        """The last complete snapshot, and perhaps a later snapshot that has begun. The complete one is used if the
        later one has no end."""
        self._open: dict[tuple[Path, int], OpenFile] = {}
        self._made = 0
        make_directory(staging, files)

    def apply(self, operation: FileOperation) -> None:
        if isinstance(operation, BeginSnapshot):
            self._begin(operation)
        elif isinstance(operation, EndSnapshot):
            self._end()
        else:
            # A process that starts with the files on its disk writes only the snapshot before the snapshot ends.
            for base in self._bases[-1:]:
                self._change(base, operation)

    def _begin(self, operation: BeginSnapshot) -> None:
        if self._bases and not operation.is_reset:
            return  # the earlier base already has its content
        for unfinished in [base for base in self._bases if not base.is_complete]:
            self._close(unfinished.place)
            self._bases.remove(unfinished)
        self._made += 1
        base = JournalBase(self._staging / str(self._made), operation.root)
        make_if_missing(base.place, self._files)
        self._bases.append(base)

    def _end(self) -> None:
        if not self._bases:
            return
        self._bases[-1].is_complete = True
        for old in self._bases[:-1]:
            self._close(old.place)
            self._files.remove_tree(old.place)
        del self._bases[:-1]

    def _change(self, base: JournalBase, operation: FileOperation) -> None:
        for file in base.tree.apply(operation):
            if (opened := self._open.pop((base.place, file), None)) is not None:
                opened.close()
            self._remove(base.place / str(file))
        match operation:
            case WriteBytes(file, position, data) if file in base.tree.sizes:
                self._file(base.place, file).write(position, data)
            case TruncateFile(file, length) if file in base.tree.sizes:
                self._file(base.place, file).truncate(length)

    def _remove(self, path: Path) -> None:
        if self._files.exists(path):  # an empty file was never written
            self._files.remove(path)

    def _file(self, place: Path, file: int) -> OpenFile:
        key = place, file
        if key not in self._open:
            if len(self._open) >= OPEN_FILES_MAX:
                self._open.pop(next(iter(self._open))).close()
            self._open[key] = self._files.open(place / str(file), OpenMode.CREATE)
        return self._open[key]

    def _close(self, place: Path) -> None:
        for key in [key for key in self._open if key[0] == place]:
            self._open.pop(key).close()

    def finish(self, directory: Path) -> RestoredDirectory:
        """Move the files to their places, and sync them."""
        for known in self._bases:
            self._close(known.place)
        base = next((base for base in self._bases if base.is_complete), None)
        if base is None:
            # The process that began the journal was lost before its first snapshot ended, so no sync had returned.
            base = JournalBase(self._staging, self._bases[-1].root if self._bases else "")
        files, tree = self._files, base.tree
        try:
            folders = {base.root} if base.root else set[str]()
            folders |= {*tree.directories, *(name.rpartition("/")[0] for name in tree.files)} - {""}
            for folder in sorted(_with_parents(folders)):
                make_if_missing(directory / folder, files)
            self._place(base, directory)
            for folder in sorted(_with_parents(folders), reverse=True):
                fsync_dir(directory / folder, files)
            fsync_dir(directory, files)
        except OSError as error:
            raise storage_error(directory, "restore", error) from error
        root = directory / base.root if base.root else directory
        return RestoredDirectory(root, len(tree.files), sum(tree.sizes.values()))

    def _place(self, base: JournalBase, directory: Path) -> None:
        placed: dict[int, Path] = {}
        for name, file in base.tree.files.items():
            path = directory / name
            if file in placed:
                self._files.link(placed[file], path)
                continue
            with self._file(base.place, file) as opened:
                if opened.size != base.tree.sizes[file]:
                    raise StorageError(f"The journal of {path} is incomplete.", path=str(path))
                opened.sync()
            del self._open[base.place, file]
            self._files.rename(base.place / str(file), path)
            placed[file] = path


def _with_parents(folders: set[str]) -> set[str]:
    return {"/".join(folder.split("/")[:depth]) for folder in folders for depth in range(1, folder.count("/") + 2)}
