"""Durable files: writes that survive a crash of the machine.

Invariant: when a function here returns, its bytes are on disk. Otherwise it raises a StorageError that names the file
and what the operator can do. All durable files are written through this module, on the file system that the caller
passes.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from procession.errors import DiskError, StorageError
from procession.runtime.files import FileSystem, HeldLock, OpenFile, OpenMode
from procession.runtime.host_files import HOST_FILES

PIECE_BYTES = 1024 * 1024

AGAIN = "Start it again: it continues with the data on disk. If it keeps failing, check the disk that holds the file."

_NEXT_STEPS = {
    errno.ENOSPC: "Free space on the disk that holds it, then start again; nothing acknowledged is lost.",
    errno.EDQUOT: "Raise the quota or free space, then start again; nothing acknowledged is lost.",
    errno.EFBIG: "Raise the file-size limit (ulimit -f), then start again; nothing acknowledged is lost.",
    errno.EACCES: "Let this user read and write it, then start again.",
    errno.EPERM: "Let this user read and write it, then start again.",
    errno.EROFS: "Mount its file system writable, then start again.",
}


def storage_error(path: Path, action: str, error: OSError) -> StorageError:
    """Return the StorageError for an OSError of an action (a verb) on `path`. It is a DiskError if a restart may
    help."""
    kind = StorageError if error.errno in _NEXT_STEPS else DiskError
    return kind(
        f"Cannot {action} {path}: {error.strerror or error}.",
        next_step=_NEXT_STEPS.get(error.errno or 0, AGAIN),
        path=str(path),
        errno=error.errno,
    )


def fsync_dir(path: Path, files: FileSystem = HOST_FILES) -> None:
    """Make the entries of a directory durable. Only then does a new or renamed file surely exist after a crash."""
    try:
        files.sync_directory(path)
    except OSError as error:
        raise storage_error(path, "sync the directory", error) from error


def make_directory(path: Path, files: FileSystem = HOST_FILES) -> None:
    """Create a directory and its parents. The name of each is synced before anything is created in it. So among
    existing directories, only the last may come from a process that was killed before its sync."""
    missing = [path]
    while not files.exists(missing[-1].parent):
        missing.append(missing[-1].parent)
    try:
        with suppress(PermissionError):  # without read permission, no process created anything in it
            files.sync_directory(missing[-1].parent.parent)
        for directory in reversed(missing):
            make_if_missing(directory, files)
            files.sync_directory(directory.parent)
    except OSError as error:
        raise storage_error(path, "make the directory", error) from error


def make_if_missing(path: Path, files: FileSystem = HOST_FILES) -> None:
    """Create a directory, unless it exists. Its name is not durable. Raises the plain OSError."""
    try:
        files.make_directory(path)
    except FileExistsError:
        if not files.is_directory(path):
            raise


def write_durably(path: Path, data: bytes, files: FileSystem = HOST_FILES) -> None:
    """Replace the file at `path` by `data`. After a crash, the file has either its old or its new content."""
    replace_durably(path, (data,), files)


def renew_durably(path: Path, length: int, files: FileSystem = HOST_FILES, draft: Path | None = None) -> None:
    """Replace a file by a new file with its first `length` bytes. Bytes that can be read may be only in the page cache,
    even if a sync of the old file succeeds, because an earlier sync may have failed. `draft` is the path of the new
    file meanwhile."""
    try:
        with files.open(path) as file:
            replace_durably(path, _pieces(file, length), files, draft)
    except OSError as error:
        raise storage_error(path, "read", error) from error


def replace_durably(
    path: Path, pieces: Iterable[bytes], files: FileSystem = HOST_FILES, draft: Path | None = None
) -> None:
    """Replace a file by these pieces, as `write_durably` does."""
    draft = draft or path.with_name(f"{path.name}.{files.owner}.draft")
    try:
        with files.open(draft, OpenMode.REPLACE) as file:
            position = 0
            for piece in pieces:
                file.write(position, piece)
                position += len(piece)
            file.sync()
        files.rename(draft, path)
    except OSError as error:
        with suppress(OSError):  # on a failing disk, this fails, too; the first error is reported
            remove(draft, files)
        raise storage_error(path, "write", error) from error
    fsync_dir(path.parent, files)


def create_durably(path: Path, data: bytes, files: FileSystem = HOST_FILES) -> bytes:
    """Create the file at `path`, unless it exists. Returns its content: `data`, or the existing content. Concurrent
    callers in several processes all get the same content."""
    draft = path.with_name(f"{path.name}.{files.owner}.draft")
    try:
        with files.open(draft, OpenMode.REPLACE) as file:
            file.write(0, data)
            file.sync()
        with suppress(FileExistsError):
            files.link(draft, path)
        remove(draft, files)
        found = files.read(path)
    except OSError as error:
        with suppress(OSError):
            remove(draft, files)
        raise storage_error(path, "create", error) from error
    fsync_dir(path.parent, files)
    return found


def remove(path: Path, files: FileSystem = HOST_FILES) -> None:
    """Remove a file, if it exists. Raises the plain OSError."""
    with suppress(FileNotFoundError):
        files.remove(path)


def read_if_there(path: Path, files: FileSystem = HOST_FILES) -> bytes | None:
    """Return all bytes of a file, or None if it does not exist."""
    try:
        return files.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(path, "read", error) from error


def _pieces(file: OpenFile, length: int) -> Iterator[bytes]:
    position = 0
    while position < length and (piece := file.read(min(length - position, PIECE_BYTES), position)):
        position += len(piece)
        yield piece


def disk_free_bytes(path: Path, files: FileSystem = HOST_FILES) -> int:
    """Return the free bytes on the disk of this directory."""
    try:
        return files.free_bytes(path)
    except OSError as error:
        raise storage_error(path, "look at the disk of", error) from error


def lock_directory(path: Path, files: FileSystem = HOST_FILES) -> HeldLock:
    """Create `path` if needed, and lock it for this process. Closing the lock unlocks it."""
    make_directory(path, files)
    try:
        return files.lock(path)
    except BlockingIOError as error:
        raise StorageError(
            f"Another process holds {path}.",
            next_step="Stop that process, or give this process another directory.",
            path=str(path),
            errno=error.errno,
        ) from error
    except OSError as error:
        raise storage_error(path, "open the directory", error) from error
