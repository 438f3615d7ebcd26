"""A lock on a file that tells which process holds it.

Invariant: the kernel holds the lock and drops it when the process ends in any way, so a lock is never stale. A query
for the holder never takes the lock.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from procession.errors import ConfigError
from procession.storage.durable import storage_error

_HELD: set[Path] = set()
"""The locks of this process. The kernel refuses a lock only to other processes, and drops it when any descriptor of the
file is closed. So this process must not open the file a second time."""

_FLOCK = "hhqqi"
"""The kernel's `struct flock`: type, whence, start, length, process."""


@contextmanager
def locked(path: Path, refusal: Callable[[], ConfigError]) -> Iterator[None]:
    """Hold the lock of a file inside the block. The file is created if needed. Raises `refusal()` if the lock is held
    already."""
    place = path.resolve()
    if place in _HELD:
        raise refusal()
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise storage_error(path, "open", error) from error
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise refusal() from error
        _HELD.add(place)
        try:
            yield
        finally:
            _HELD.discard(place)
    finally:
        os.close(descriptor)


def lock_holder(path: Path) -> int | None:
    """Return the process that holds the lock of this file, or None."""
    if path.resolve() in _HELD:
        return os.getpid()
    try:
        with path.open("rb") as file:
            lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, lock))
    except FileNotFoundError:
        return None
    return None if kind == fcntl.F_UNLCK else int(pid)
