"""The file of retired streams, in the gateway's directory. Writes append to it, or replace it by a new one.

Invariant: a write is on disk before the snapshot that relies on it, and a start reads exactly what the snapshot names
(`recovery`). `retired_streams` decides what to write.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from procession.errors import StorageError
from procession.gateway.retired_streams import Mark, Retiring, checked
from procession.storage.durable import storage_error, sync, write_all, write_durably

NAMES = "retired-*.streams"


def path_of(directory: Path, number: int) -> Path:
    return directory / f"retired-{number:010d}.streams"


def write(directory: Path, retiring: Retiring) -> None:
    """On disk when this returns. A snapshot may count on it only then."""
    assert retiring.mark is not None
    path = path_of(directory, retiring.mark.number)
    if retiring.position == 0:
        write_durably(path, retiring.data)
        return
    try:
        descriptor = os.open(path, os.O_WRONLY)
        try:
            write_all(descriptor, retiring.data, retiring.position)
            sync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise storage_error(path, "write", error) from error


def remove_others(directory: Path, mark: Mark | None) -> None:
    """Remove the files that the snapshot does not name. One that stays is removed by the next start."""
    for path in directory.glob(NAMES):
        if mark is None or path != path_of(directory, mark.number):
            with suppress(OSError):
                path.unlink(missing_ok=True)


def read(directory: Path, mark: Mark) -> bytes:
    """What the snapshot counts on. StorageError if it is not all there."""
    path = path_of(directory, mark.number)
    try:
        with open(path, "rb") as file:
            data = file.read(mark.length)
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
