"""Spark's own log of a checkpoint: `offsets/N` before an epoch, `commits/N` after it.

Invariant: an epoch is decided if and only if `commits/N`, or a later file, exists and is complete (`is_committed`);
there is no other test. Spark does not sync these files. A sync of a file that another process wrote proves nothing,
because an earlier failed sync may have marked its pages clean without writing them. So the driver copies each file into
a new file, syncs the copy and renames it over Spark's file before any step relies on it. It does this for `metadata`
and `offsets/N` before phase 1, and for `commits/N` before phase 2. With replicas, a sync returns when the quorum has
the data, so data that is only on this machine's disk is in doubt.
"""

from __future__ import annotations

import asyncio
import json
import re
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
"""Name of the file with the last epoch whose commit the driver of this copy has put on disk. It is not synced, because
it is for the helper process of the same driver, and a successor writes its own file."""


OFFSETS = "offsets"
"""Spark's folder with the end of each epoch."""
METADATA = "metadata"
"""Spark's file with the id of the query. Spark does not continue from a log without it."""


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
        return self.ends(self.offered)

    def ends(self, epoch: int) -> dict[str, LogOffset]:
        """Return the end of an epoch at each gateway. Empty if it was not offered."""
        path = self.directory / OFFSETS / str(epoch)
        try:
            return parse_offsets(self._files.read(path), path)
        except FileNotFoundError:
            return {}

    def check(self) -> None:
        """Raise StorageError for a log from which Spark would silently skip or repeat an epoch."""
        offered, committed = self.offered, self.committed
        if offered - committed not in (0, 1):
            raise StorageError(
                f"the checkpoint {self.directory} has offsets up to epoch {offered} but commits up to {committed}",
                next_step="restore the checkpoint directory from a copy; on this one Spark skips or repeats an epoch",
            )

    def sync_offsets(self, epoch: int) -> None:
        self._renew("offsets", epoch)

    def sync_commit(self, epoch: int) -> None:
        """Make `commits/N` durable, and notify the helper process."""
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
        except (OSError, ValueError):  # missing, or being written
            return -1

    def await_decided(self, check: Callable[[], None], timeout_s: float = DECISION_TIMEOUT_S) -> int:
        """Wait until the driver has put its newest commit on disk, and return its epoch, or -1. Called in the helper
        process. `check` may raise."""
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
            raise StorageError(f"{path} is incomplete, so epoch {epoch} is not committed.", path=str(path))

    def _is_whole(self, part: str, epoch: int) -> bool:
        return is_whole(self.directory / part / str(epoch), self._files)

    def _renew(self, part: str, epoch: int) -> None:
        path = self.directory / part / str(epoch)
        try:
            data = self._files.read(path)
        except OSError as error:
            raise storage_error(path, "read", error) from error
        if not _is_all(data, part):
            raise StorageError(f"{path} is incomplete.", path=str(path))
        write_durably(path, data, self._files)
        if part not in self._named:
            if part == OFFSETS and (found := read_if_there(self.directory / METADATA, self._files)) is not None:
                write_durably(self.directory / METADATA, found, self._files)  # syncs the name of the folder, too
            else:
                fsync_dir(self.directory, self._files)  # the folder itself is made once
            self._named.add(part)


LINES = {"offsets": 3, "commits": 2}
"""The minimum number of lines of each file: a version, then a line about the epoch; in `offsets`, then a line for each
source."""
OFFSETS_VERSION = "v1"
"""First line of the files in `offsets`. `spark/session` has Spark write this version."""
_VERSION = re.compile(r"v[0-9]+")


def parse_offsets(data: bytes, path: Path) -> dict[str, LogOffset]:
    """Parse Spark's file with the end of an epoch at each gateway. Raises StorageError if it is damaged or has another
    version."""
    try:
        version, *_, last = data.decode().splitlines()
        if version == OFFSETS_VERSION:
            return read_offsets(json.loads(last))
        if not _VERSION.fullmatch(version):
            raise ValueError("its first line is not a version")
    except (ValueError, IndexError, AttributeError, TypeError) as error:
        raise StorageError(
            f"{path} is damaged: {error}", next_step="restore the checkpoint directory from a copy"
        ) from error
    raise StorageError(
        f"{path} has version {version} of Spark's offset log, and Procession reads {OFFSETS_VERSION}.",
        next_step="Restore the checkpoint from an older copy, or start the version of Procession that wrote it.",
        path=str(path),
    )


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
    """Return the epochs of the files in a directory, newest first."""
    try:
        return sorted((int(name) for name in files.names(directory) if name.isdigit()), reverse=True)
    except FileNotFoundError:
        return []
