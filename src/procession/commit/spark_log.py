"""Spark's own log of a checkpoint: `offsets/N` before an epoch, `commits/N` after it.

Invariant: an epoch is decided if and only if `commits/N`, or a later one, exists and is complete (`is_committed`);
there is no other test. Spark does not sync these files. To sync a file that another process wrote proves nothing: an
earlier failed sync may have marked its pages clean without writing them. So the driver copies each file into a new one,
syncs that and renames it over Spark's, before anything relies on it: `metadata` and `offsets/N` before phase 1,
`commits/N` before phase 2. With replicas all of this is true of the replicas: the file system that is handed in returns
from a sync when the quorum has it, so what only the disk of this machine has is in doubt.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

from procession.errors import RoundError, StorageError
from procession.runtime.files import FileSystem, OpenMode
from procession.runtime.host_files import HOST_FILES
from procession.storage.durable import fsync_dir, read_if_there, storage_error, write_durably
from procession.storage.log_ranges import LogOffset, read_offsets

POLL_S = 0.002
"""Interval at which the directory is polled for a decision. Spark's query listener lags by 130 ms."""
DECISION_TIMEOUT_S = 60.0
"""Time that the helper process waits until the driver has made the last commit durable."""
DECIDED = "DECIDED"
"""Names the last epoch whose commit the driver of this copy has put on disk. Not synced: it is for the helper process
of the same driver, and a successor writes its own."""


OFFSETS = "offsets"
"""Spark's folder with the end of each epoch."""
METADATA = "metadata"
"""Spark's file with the id of the query. Spark does not go on from a log without it."""


class SparkLog:
    """Reads the files that Spark writes, and makes them durable."""

    def __init__(self, directory: Path, files: FileSystem = HOST_FILES) -> None:
        self.directory = directory
        self._files = files
        self._named: set[str] = set()
        """Folders whose names this process has synced."""

    @property
    def offered(self) -> int:
        """The last epoch whose range is fixed, or -1."""
        return next(iter(_epochs(self.directory / "offsets", self._files)), -1)

    @property
    def committed(self) -> int:
        """The last epoch whose decision is commit, or -1."""
        folder = self.directory / "commits"
        return next((epoch for epoch in _epochs(folder, self._files) if self._is_whole("commits", epoch)), -1)

    @property
    def offsets(self) -> dict[str, LogOffset]:
        """The end of the last offered epoch at each gateway. Empty if none was offered."""
        path = self.directory / OFFSETS / str(self.offered)
        try:
            return parse_offsets(self._files.read(path), path)
        except FileNotFoundError:
            return {}

    def check(self) -> None:
        """Refuses a log from which Spark would silently skip or repeat an epoch."""
        offered, committed = self.offered, self.committed
        if offered - committed not in (0, 1):
            raise StorageError(
                f"the checkpoint {self.directory} has offsets up to epoch {offered} but commits up to {committed}",
                next_step="restore the checkpoint directory from a copy; on this one Spark skips or repeats an epoch",
            )

    def sync_offsets(self, epoch: int) -> None:
        self._renew("offsets", epoch)

    def sync_commit(self, epoch: int) -> None:
        """Makes `commits/N` durable, and notifies the helper process."""
        self._renew("commits", epoch)
        self.mark_decided(epoch)

    def mark_decided(self, epoch: int) -> None:
        path = self.directory / DECIDED
        try:
            with self._files.open(path, OpenMode.REPLACE) as file:
                file.write(0, b"%d" % epoch)
        except OSError as error:
            raise storage_error(path, "write", error) from error

    @property
    def decided(self) -> int:
        """The last epoch whose commit the driver has made durable, or -1."""
        try:
            return int(self._files.read(self.directory / DECIDED))
        except (OSError, ValueError):  # not there, or just being written
            return -1

    def await_decided(self, check: Callable[[], None], timeout_s: float = DECISION_TIMEOUT_S) -> int:
        """For the helper process: the newest committed epoch, or -1, when the driver has put its commit on disk.
        `check` may raise."""
        newest, deadline = self.committed, time.monotonic() + timeout_s
        while self.decided < newest:
            check()
            if time.monotonic() > deadline:
                raise RoundError(f"The driver did not put the commit of epoch {newest} on disk within {timeout_s:g} s.")
            time.sleep(POLL_S)
        return newest

    def is_committed(self, epoch: int) -> bool:
        # Old files are purged, so a later one counts too; the usual case costs one lookup.
        return self._is_whole("commits", epoch) or self.committed >= epoch

    async def until_committed(self, epoch: int) -> None:
        """Return when `commits/N` exists. Spark renames it into place, so an incomplete file is damaged, and a
        successor ignores it."""
        path = self.directory / "commits" / str(epoch)
        while not self._files.exists(path):  # noqa: ASYNC110  (Spark sends no signal)
            await asyncio.sleep(POLL_S)
        if not self.is_committed(epoch):
            raise StorageError(f"{path} is there but not whole: epoch {epoch} is not committed.", path=str(path))

    def _is_whole(self, part: str, epoch: int) -> bool:
        return is_whole(self.directory / part / str(epoch), self._files)

    def _renew(self, part: str, epoch: int) -> None:
        path = self.directory / part / str(epoch)
        try:
            data = self._files.read(path)
        except OSError as error:
            raise storage_error(path, "read", error) from error
        if not _is_all(data, part):
            raise StorageError(f"{path} is there but not whole.", path=str(path))
        write_durably(path, data, self._files)
        if part not in self._named:
            if part == OFFSETS and (found := read_if_there(self.directory / METADATA, self._files)) is not None:
                write_durably(self.directory / METADATA, found, self._files)  # syncs the name of the folder, too
            else:
                fsync_dir(self.directory, self._files)  # the folder itself is made once
            self._named.add(part)


LINES = {"offsets": 3, "commits": 2}
"""A version, then a line about the epoch; in `offsets`, then a line for each source. A prefix may end with any."""


def parse_offsets(data: bytes, path: Path) -> dict[str, LogOffset]:
    """Parse Spark's file with the end of an epoch at each gateway. Raises StorageError if it is damaged."""
    try:
        return read_offsets(json.loads(data.splitlines()[-1]))
    except (ValueError, IndexError, AttributeError, TypeError) as error:
        raise StorageError(
            f"{path} is damaged: {error}", next_step="restore the checkpoint directory from a copy"
        ) from error


def is_whole(path: Path, files: FileSystem = HOST_FILES) -> bool:
    """Whether a file of Spark's is complete: it has its lines, and the last one is a JSON object."""
    try:
        return _is_all(files.read(path), path.parent.name)
    except OSError:
        return False


def _is_all(data: bytes, part: str) -> bool:
    try:
        lines = data.decode().splitlines()
        return len(lines) >= LINES.get(part, 1) and isinstance(json.loads(lines[-1]), dict)
    except (ValueError, IndexError):
        return False


def _epochs(directory: Path, files: FileSystem) -> list[int]:
    """The newest first."""
    try:
        return sorted((int(name) for name in files.names(directory) if name.isdigit()), reverse=True)
    except FileNotFoundError:
        return []
