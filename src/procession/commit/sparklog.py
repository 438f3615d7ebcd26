"""Spark's own log of a checkpoint: `offsets/N` before an epoch, `commits/N` after it.

The one rule: Spark does not sync these files, so we do, before anything that relies on them: `offsets/N` before phase
1, `commits/N` before phase 2. Before it `spark/query`, which makes Spark write them; after it `commit/coordinator`.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
from pathlib import Path

from procession.errors import StorageError
from procession.storage.durable import fsync_dir, storage_error, sync

POLL_S = 0.002
"""How often the directory is looked at while a decision is awaited. The listener of queries lags by 130 ms."""


class SparkLog:
    """Reads and syncs what Spark writes; never writes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def offered(self) -> int:
        """The last epoch whose range is fixed; -1 if none."""
        return _newest(self.directory / "offsets")

    @property
    def committed(self) -> int:
        """The last epoch that is decided commit; -1 if none."""
        return _newest(self.directory / "commits")

    @property
    def offsets(self) -> dict[str, int]:
        """Where the last offered epoch ends, for each gateway; empty if none was offered."""
        path = self.directory / "offsets" / str(self.offered)
        try:
            found = json.loads(path.read_text().splitlines()[-1])
            return {str(gateway): int(sequence) for gateway, sequence in found.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, IndexError, AttributeError, TypeError) as error:
            raise StorageError(
                f"{path} is damaged: {error}", next_step="restore the checkpoint directory from a copy"
            ) from error

    def check(self) -> None:
        """Refuse a log from which Spark would silently skip or repeat an epoch."""
        offered, committed = self.offered, self.committed
        if offered - committed not in (0, 1):
            raise StorageError(
                f"the checkpoint {self.directory} has offsets up to epoch {offered} but commits up to {committed}",
                next_step="restore the checkpoint directory from a copy; on this one Spark skips or repeats an epoch",
            )

    def sync_offsets(self, epoch: int) -> None:
        self._sync("offsets", epoch)

    def sync_newest_commit(self) -> None:
        """Before Spark is given a new epoch, the last one is decided for good."""
        if (epoch := self.committed) >= 0:
            self.sync_commit(epoch)

    def sync_commit(self, epoch: int) -> None:
        self._sync("commits", epoch)

    def is_committed(self, epoch: int) -> bool:
        # Old files are purged, so a later one counts too; the usual case costs one look.
        return (self.directory / "commits" / str(epoch)).exists() or self.committed >= epoch

    async def until_committed(self, epoch: int) -> None:
        """Returns when `commits/N` is there and on disk."""
        path = self.directory / "commits" / str(epoch)
        while not path.exists():  # noqa: ASYNC110  (Spark tells nobody)
            await asyncio.sleep(POLL_S)
        self.sync_commit(epoch)

    def _sync(self, part: str, epoch: int) -> None:
        path = self.directory / part / str(epoch)
        try:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                sync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise storage_error(path, "sync", error) from error
        fsync_dir(path.parent)
        _sync_once(self.directory, part)


LINES = {"offsets": 3, "commits": 2}
"""A version, then a line about the epoch; in `offsets`, then a line for each source. A prefix may end with any."""


def is_whole(path: Path) -> bool:
    """Whether a file of Spark's is all there: it has its lines, and the last one is a JSON object."""
    try:
        lines = path.read_text().splitlines()
        return len(lines) >= LINES.get(path.parent.name, 1) and isinstance(json.loads(lines[-1]), dict)
    except (OSError, ValueError, IndexError):
        return False


@functools.cache
def _sync_once(directory: Path, part: str) -> None:
    """The folder `part` itself, and the file in which Spark keeps its query's name: both are made only once."""
    metadata = directory / "metadata"
    try:
        if metadata.exists():
            with metadata.open("rb") as file:
                sync(file.fileno())
    except OSError as error:
        raise storage_error(metadata, "sync", error) from error
    fsync_dir(directory)


def _newest(directory: Path) -> int:
    try:
        return max((int(name) for name in os.listdir(directory) if name.isdigit()), default=-1)
    except FileNotFoundError:
        return -1
