"""The file of a checkpoint that names the last driver that claimed the pipeline.

A driver replaces this file durably before its first decision. Drivers and gateways read it to find out whether a driver
was replaced.
"""

from __future__ import annotations

import errno
from pathlib import Path

from procession.errors import ConfigError, FencedError, StorageError
from procession.runtime.files import FileSystem, HeldLock, OpenMode
from procession.runtime.host_files import HOST_FILES
from procession.storage.durable import storage_error

CURRENT = "CURRENT"
CHECKPOINT = "checkpoint"
"""Name of the checkpoint's directory, in a pipeline's directory and in a savepoint. No other module names it."""


def checkpoint_of(directory: Path) -> Path:
    """Return the checkpoint of the pipeline in this directory."""
    return directory / CHECKPOINT


def lock_checkpoint(root: Path, files: FileSystem = HOST_FILES) -> HeldLock:
    """Take the lock of claims and changes. Waits while another process holds it."""
    try:
        files.open(root / "LOCK", OpenMode.CREATE).close()
        return files.lock(root / "LOCK", waits=True)
    except OSError as error:
        raise storage_error(root / "LOCK", "lock", error) from error


def read_claim(checkpoint: Path, files: FileSystem = HOST_FILES) -> int:
    """Return the number (fence) of the last driver that claimed this checkpoint, or 0."""
    path = checkpoint / CURRENT
    try:
        return int(files.read(path))
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise storage_error(path, "read", error) from error
    except ValueError as error:
        raise claim_damaged(checkpoint) from error


def check_replicas(checkpoint: Path, files: FileSystem, *, asks: bool) -> None:
    """Raise FencedError if another driver is known to have continued from the replicas of this checkpoint. With `asks`,
    the replicas are asked first: then no other driver had continued when this returns. Does nothing without
    replicas."""
    try:
        files.check_owner(asks=asks)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise storage_error(checkpoint, "reach the replicas of", error) from error
        raise FencedError(
            "This driver was replaced: another one has continued from the replicas.",
            next_step="Nothing to do: the other driver continues the work. Delete this directory.",
        ) from error


def check_claimed(fence: int, checkpoint: Path | None, files: FileSystem = HOST_FILES) -> None:
    """Raise ConfigError if no driver has claimed this fence, because an invented number would lock out every later
    driver. `checkpoint` is None if it is on another machine."""
    if checkpoint is None:
        return
    claimed = read_claim(checkpoint, files)
    if fence > claimed:
        raise ConfigError(
            f"Driver {fence} has not claimed the checkpoint {checkpoint}, whose last driver is {claimed}.",
            next_step="Start the driver with the --dir in which this gateway's directory is.",
        )


def claim_damaged(checkpoint: Path) -> StorageError:
    return StorageError(
        f"{checkpoint / CURRENT} is damaged: it does not name the last driver of this checkpoint.",
        next_step="Restore the checkpoint directory, the whole of it, from a copy.",
    )
