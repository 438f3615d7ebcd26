"""Removes committed output of a stopped sink for `procession rollback`: code for all sinks, and the file sinks.

Invariant: `check` changes nothing. `perform` can be repeated after a crash at any point. It changes the output before
the transaction log, except where the log alone determines what is visible. The sink's directory is locked, so that no
sink runs on it. `savepoints/rollback` calls both. A connector without a `rollback` in its SinkTraits cannot remove
output.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from procession.errors import ConfigError
from procession.planner.connector_url import ConnectorUrl, parse_url
from procession.runtime.host_files import sync
from procession.sdk.lane_files import LANE_SUFFIX, announce_rollback
from procession.sdk.transaction_log import TransactionLog
from procession.storage.durable import lock_directory, storage_error


@dataclass(frozen=True)
class SinkPlace:
    """The location of a sink's output and of its transaction log."""

    sink: str
    instance: str
    directory: Path
    """The sink's own directory."""
    url: ConnectorUrl
    base: Path
    """The base directory of a relative path in the URL."""

    @classmethod
    def of(cls, sink: str, document: dict[str, str]) -> SinkPlace:
        """Return the place from the details that a run has written (`deployment/run_details`)."""
        url = parse_url(document["url"])
        return cls(sink, document["instance"], Path(document["directory"]), url, Path(document["base"]))

    @property
    def txnlog(self) -> Path:
        return self.directory / f"{self.instance}.txnlog"

    @property
    def target(self) -> str:
        """The place of the URL; a path is absolute."""
        place = self.url.place
        return place if "://" in place else str((self.base / place).resolve())

    @contextmanager
    def opened(self) -> Iterator[TransactionLog]:
        """Yield the transaction log while the directory is locked. Raises StorageError if a sink runs there."""
        with closing(lock_directory(self.directory)), closing(TransactionLog(self.txnlog)) as txnlog:
            txnlog.open()
            yield txnlog

    def refusal(self, why: str, next_step: str) -> ConfigError:
        return ConfigError(f"Sink {self.sink!r} cannot remove its output: {why}", next_step=next_step)


class SinkRollback(Protocol):
    """Removes later output of one sink."""

    def __init__(self, place: SinkPlace) -> None: ...

    def check(self, end: int) -> None:
        """Raise ConfigError if the output cannot be rolled back to this position."""

    def perform(self, end: int, txn_id: str) -> None:
        """Remove the output after this position, where this transaction ended. Durable when this returns."""


Announce = Callable[[Path, int, int], None]
"""Called with the file, its new end, and the committed end before the rollback."""


class FileRollback:
    """The rollback of a file sink. The transaction log determines the visible output; the rest of the file is
    truncated. Readers of the file detect the shorter log."""

    suffix = ".data"

    def __init__(self, place: SinkPlace, announce: Announce = lambda data, end, committed_end: None) -> None:
        """Prepare a rollback. `announce` notifies readers of the file before it is truncated."""
        self._place = place
        self._data = place.directory / f"{place.instance}{self.suffix}"
        self._announce = announce

    def check(self, end: int) -> None:
        with self._place.opened() as txnlog:
            held = txnlog.committed_end
        if held < end:
            raise self._place.refusal(
                f"it holds {held:,} bytes, and {end:,} at the savepoint.", "Restore the sink's directory from a copy."
            )

    def perform(self, end: int, txn_id: str) -> None:
        with self._place.opened() as txnlog:
            self._announce(self._data, end, txnlog.committed_end)
            txnlog.roll_back(end, txn_id)
            try:
                with self._data.open("r+b") as file:
                    os.ftruncate(file.fileno(), end)
                    sync(file.fileno())
            except FileNotFoundError:
                return  # the sink never had any output
            except OSError as error:
                raise storage_error(self._data, "truncate", error) from error


class LaneRollback(FileRollback):
    """The rollback of a lane. A merger must not continue if it has emitted removed records. Its position does not
    show this, because the lane grows again."""

    suffix = LANE_SUFFIX

    def __init__(self, place: SinkPlace) -> None:
        super().__init__(place, _announce_to_mergers)


def _announce_to_mergers(lane: Path, end: int, committed_end: int) -> None:
    if end < committed_end:
        announce_rollback(lane, end, committed_end)
