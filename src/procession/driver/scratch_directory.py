"""The scratch directory: where Spark's process keeps temporary files, inside the pipeline's directory.

Invariant: each driver has its own scratch directory and holds a lock on it while it lives. A driver removes a
directory only if the directory is not locked and the driver's fence is current. Used by `driver/driver`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SCRATCH = "scratch"
"""Name of the scratch directory in the pipeline's directory."""

SOCKET_DIRECTORY_MAX = 60
"""Maximum path length of the socket directory: a Unix socket path has 107 bytes, and Spark's names take 43 of them."""

SOCKETS = "sockets"
TEMPORARY = "procession-sockets-"


class ScratchDirectory:
    """One driver's directory below `root`. The constructor creates and locks it; `close` removes it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = -1
        while self._lock < 0:
            self.directory = root / f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
            self._lock = _locked_new(self._lock_path)
        self.directory.mkdir(mode=0o700)
        self.sockets = self.directory
        if len(os.fsencode(self.directory)) > SOCKET_DIRECTORY_MAX:
            self.sockets = Path(tempfile.mkdtemp(prefix=TEMPORARY))
            (self.directory / SOCKETS).symlink_to(self.sockets)

    @property
    def _lock_path(self) -> Path:
        return self.directory.with_suffix(".lock")

    def clear_others(self, check_fence: Callable[[], None]) -> None:
        """Remove the directories of drivers that have exited. Raises FencedError if this driver was replaced."""
        for path in self._root.glob("*.lock"):
            if path == self._lock_path:
                continue
            lock = _lock(path)
            if lock < 0:
                continue  # its driver runs: a spare driver, or a driver that has not noticed yet that it was replaced
            try:
                check_fence()
                _remove(path.with_suffix(""))
                path.unlink(missing_ok=True)
            finally:
                os.close(lock)

    def close(self) -> None:
        """Remove this driver's directory. The next driver removes what Spark's processes still write there."""
        _remove(self.directory)
        if not self.directory.exists():
            self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)


def _locked_new(path: Path) -> int:
    """Create and lock a file. Return -1 if another driver removed it before it was locked."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with suppress(FileNotFoundError):
        if os.stat(path).st_ino == os.fstat(lock).st_ino:
            return lock
    os.close(lock)
    return -1


def _lock(path: Path) -> int:
    """Lock an existing file. Return -1 if it is locked or gone."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return -1
    return lock


def _remove(directory: Path) -> None:
    with suppress(OSError):
        sockets = (directory / SOCKETS).readlink()
        if sockets.name.startswith(TEMPORARY) and sockets.stat().st_uid == os.getuid():
            shutil.rmtree(sockets, ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)
