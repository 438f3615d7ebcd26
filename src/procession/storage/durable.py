"""Durable files: writes that survive a crash of the machine.

Invariant: when a function here returns, its bytes are on disk. Otherwise it raises a StorageError that names the file
and what the operator can do. All durable files are written through this module.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from procession import faults
from procession.errors import DiskError, StorageError

PIECE_BYTES = 1024 * 1024

AGAIN = "Start it again: it goes on from what is on disk. If it keeps failing, check the disk that holds the file."

_NEXT_STEPS = {
    errno.ENOSPC: "Free space on the disk that holds it, then start again; nothing acknowledged is lost.",
    errno.EDQUOT: "Raise the quota or free space, then start again; nothing acknowledged is lost.",
    errno.EFBIG: "Raise the file-size limit (ulimit -f), then start again; nothing acknowledged is lost.",
    errno.EACCES: "Let this user read and write it, then start again.",
    errno.EPERM: "Let this user read and write it, then start again.",
    errno.EROFS: "Mount its file system writable, then start again.",
}


def storage_error(path: Path, action: str, error: OSError) -> StorageError:
    """The StorageError for an OSError that met us while `doing` (a verb) something to `path`: a DiskError if a new
    start may be all that is needed."""
    kind = StorageError if error.errno in _NEXT_STEPS else DiskError
    return kind(
        f"Cannot {action} {path}: {error.strerror or error}.",
        next_step=_NEXT_STEPS.get(error.errno or 0, AGAIN),
        path=str(path),
        errno=error.errno,
    )


def write_all(descriptor: int, data: bytes | memoryview, position: int, *more: bytes | memoryview) -> None:
    """Write every byte of `data`, and of what follows it, at `position`, without putting them together first; raises
    the plain OSError, possibly after a part was written."""
    faults.disk("full")
    if faults.is_torn():
        whole = b"".join((data, *more))
        os.pwrite(descriptor, whole[: len(whole) // 2], position)
        faults.die()
    rest = [memoryview(part) for part in (data, *more)]
    while rest:
        written = os.pwritev(descriptor, rest, position)
        position += written
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if rest:
            rest[0] = rest[0][written:]


def sync(descriptor: int, *, is_data_only: bool = False) -> None:
    """Put what was written to a file on disk; with `is_data_only`, of its size and times only what reading needs.
    Raises the plain OSError. Every sync goes through this function, so that tests can make it fail."""
    faults.disk("sync")
    if is_data_only:
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def fsync_dir(path: Path) -> None:
    """Makes the entries of a directory durable: a new or renamed file exists for sure only after this."""
    try:
        _sync_names(path)
    except OSError as error:
        raise storage_error(path, "sync the directory", error) from error


def _sync_names(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Creates a directory and its parents. The name of each is synced before anything is created in it. So, of the
    existing ones, only the last may come from a process that was killed before its sync."""
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    try:
        with suppress(PermissionError):  # without read permission, nothing was created in it
            _sync_names(missing[-1].parent.parent)
        for directory in reversed(missing):
            directory.mkdir(exist_ok=True)
            _sync_names(directory.parent)
    except OSError as error:
        raise storage_error(path, "make the directory", error) from error


def write_durably(path: Path, data: bytes) -> None:
    """Replaces the file at `path` by `data`. A crash leaves the old content or the new, complete."""
    replace_durably(path, (data,))


def renew_durably(path: Path, length: int, draft: Path | None = None) -> None:
    """Replace a file by a new one with its first `length` bytes. What is read back may be in the page cache only,
    whatever a sync of the old file says: an earlier one may have failed. `draft` is where the new one is written."""
    try:
        with open(path, "rb") as file:
            replace_durably(path, _pieces(file, length), draft)
    except OSError as error:
        raise storage_error(path, "read", error) from error


def replace_durably(path: Path, pieces: Iterable[bytes], draft: Path | None = None) -> None:
    """The same, piece by piece."""
    draft = draft or path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            position = 0
            for piece in pieces:
                write_all(descriptor, piece, position)
                position += len(piece)
            sync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise storage_error(path, "write", error) from error
    fsync_dir(path.parent)


def _pieces(file: BinaryIO, length: int) -> Iterator[bytes]:
    while length and (piece := file.read(min(length, PIECE_BYTES))):
        length -= len(piece)
        yield piece


def disk_free_bytes(path: Path) -> int:
    """Free bytes on the disk of this directory."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        raise storage_error(path, "look at the disk of", error) from error
    return found.f_bavail * found.f_frsize


def lock_directory(path: Path) -> int:
    """Creates `path` if needed, and locks it for this process. Closing the returned descriptor unlocks it."""
    make_directory(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise storage_error(path, "open the directory", error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StorageError(
            f"Another process holds {path}.",
            next_step="Stop that process, or give this one a directory of its own.",
            path=str(path),
            errno=error.errno,
        ) from error
    return descriptor
