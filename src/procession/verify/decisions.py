"""Reads the decisions in a pipeline's checkpoint, while a driver may be writing it.

Invariant: only the copy that `CURRENT` names is read, or the last complete copy while a new one is being written.
Decisions must be read after the sinks' logs: a decision is on disk before its phase 2, so all output that was visible
then has its decision. Used by `verify/decided`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from procession.commit.checkpoint import read_pipeline
from procession.commit.round_files import RoundRecords
from procession.commit.round_record import RoundRecord
from procession.commit.spark_log import SparkLog
from procession.commit.transaction_id import TransactionId
from procession.errors import ConfigError
from procession.storage.driver_claim import CURRENT, checkpoint_of
from procession.verify.decided import Decisions

Read = TypeVar("Read")

TRIES = 20
"""Number of retries while a driver that takes over removes older copies."""


class DecisionReader:
    """Looks up decisions. The checkpoint deletes old round records, so look them up soon."""

    def __init__(self, root: Path) -> None:
        self._root = root
        try:
            self.id = str(read_pipeline(root)["id"])
        except OSError as error:
            raise ConfigError(
                f"{root} is not the checkpoint of a pipeline.",
                next_step="name the directory of the pipeline (its --dir)",
            ) from error

    def poll(self, visible: Iterable[tuple[str, int, int]]) -> Decisions:
        """Return the current decisions, with the existing round records of these transactions' epochs."""
        parsed = (TransactionId.parse(txn) for txn, _, _ in visible)
        epochs = {transaction.epoch for transaction in parsed if transaction is not None}

        def read(committed: int, rounds: RoundRecords) -> Decisions:
            found = {epoch: record for epoch in epochs if epoch <= committed and (record := rounds.read(epoch))}
            return Decisions(self.id, committed, found)

        return self._read(read)

    def last(self) -> RoundRecord | None:
        """Return the round record of the last committed epoch, or None."""
        return self._read(lambda committed, rounds: rounds.read(committed) if committed >= 0 else None)

    def _read(self, read: Callable[[int, RoundRecords], Read]) -> Read:
        """Call `read` with the last committed epoch and the round records of one consistent copy."""
        for _ in range(TRIES):
            copy = self.copy()
            found = read(SparkLog(copy).committed, RoundRecords(copy / "rounds"))
            if self.copy() == copy:
                return found
        raise ConfigError(f"{self._root} keeps changing.", next_step="stop all drivers but one")

    def copy(self) -> Path:
        """Return the directory of the current copy."""
        copies = sorted(path for path in self._root.glob("[0-9]*") if path.name.isdigit())
        try:
            current = self._root / f"{int((self._root / CURRENT).read_text()):010d}"
        except (OSError, ValueError):
            current = self._root / "none"
        return current if current in copies or not copies else copies[-1]


def last_committed(directory: Path) -> RoundRecord | None:
    """Return the round record of the last committed epoch of the pipeline in this directory, or None."""
    try:
        return DecisionReader(checkpoint_of(directory)).last()
    except ConfigError:  # there is no checkpoint yet
        return None
