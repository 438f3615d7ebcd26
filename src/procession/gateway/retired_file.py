"""The file of retired streams, in the gateway's directory. Writes append to it, or replace it by a new one.

Invariant: a write is on disk before the snapshot that relies on it. A start reads exactly the bytes that the snapshot
names (`recovery`). `retired_streams` decides what to write.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from procession.errors import StorageError
from procession.gateway.retired_streams import Mark, Retiring, checked
from procession.runtime.files import FileSystem, OpenMode
from procession.runtime.host_files import HOST_FILES
from procession.storage.durable import storage_error, write_durably

PREFIX, SUFFIX = "retired-", ".streams"


def path_of(directory: Path, number: int) -> Path:
    return directory / f"{PREFIX}{number:010d}{SUFFIX}"


def write(directory: Path, retiring: Retiring, files: FileSystem = HOST_FILES) -> None:
    """Write retired streams. They are on disk when this returns; only then may a snapshot rely on them."""
    assert retiring.mark is not None
    path = path_of(directory, retiring.mark.number)
    if retiring.position == 0:
        write_durably(path, retiring.data, files)
        return
    try:
        with files.open(path, OpenMode.WRITE) as file:
            file.write(retiring.position, retiring.data)
            file.sync()
    except OSError as error:
        raise storage_error(path, "write", error) from error


def remove_others(directory: Path, mark: Mark | None, files: FileSystem = HOST_FILES) -> None:
    """Remove the files that the snapshot does not name. If a removal fails, the next start removes the file."""
    kept = None if mark is None else path_of(directory, mark.number).name
    with suppress(OSError):
        for name in files.names(directory):
            if name.startswith(PREFIX) and name.endswith(SUFFIX) and name != kept:
                with suppress(OSError):
                    files.remove(directory / name)


def read(directory: Path, mark: Mark, files: FileSystem = HOST_FILES) -> bytes:
    """Read the bytes that the snapshot names. Raises StorageError if some are missing."""
    path = path_of(directory, mark.number)
    try:
        with files.open(path) as file:
            data = file.read(mark.length, 0)
    except FileNotFoundError:
        raise damaged(path, "it is not there") from None
    except OSError as error:
        raise storage_error(path, "read", error) from error
    return checked(data, mark, lambda why: damaged(path, why))


def damaged(path: Path, why: str) -> StorageError:
    return StorageError(
        f"The retired streams in {path} cannot be read: {why}.",
        next_step="Restore the gateway's directory from a copy; without the file it cannot know what these streams have"
        " committed.",
        path=str(path),
    )
