"""Reads the decisions in a pipeline's checkpoint, while a driver may be writing it.

The one rule: only the copy that `CURRENT` names counts, or the last complete one while its successor is being made.
Read decisions after the sinks' logs: a decision is on disk before its phase 2, so whatever was visible is decided by
then. Used by `verify/decided`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from procession.commit.checkpoint import read_pipeline
from procession.commit.round_record import Round, Rounds
from procession.commit.spark_log import SparkLog
from procession.commit.transaction_id import Transaction
from procession.errors import ConfigError
from procession.storage.driver_claim import CURRENT
from procession.verify.decided import Decisions

Read = TypeVar("Read")

TRIES = 20
"""A driver that takes over clears older copies away under our eyes; it cannot do so for ever."""


class DecisionReader:
    """Looks up what is asked for and no more. The checkpoint forgets a record after a while, so ask soon."""

    def __init__(self, root: Path) -> None:
        self._root = root
        try:
            self.id = str(read_pipeline(root)["id"])
        except OSError as error:
            raise ConfigError(
                f"{root} is not the checkpoint of a pipeline.",
                next_step="name the directory that the pipeline was given with --dir",
            ) from error

    def look(self, visible: Iterable[tuple[str, int, int]]) -> Decisions:
        """What is decided now, with the records of these transactions' epochs as far as they are there."""
        parsed = (Transaction.parse(txn) for txn, _, _ in visible)
        epochs = {transaction.epoch for transaction in parsed if transaction is not None}

        def read(committed: int, rounds: Rounds) -> Decisions:
            found = {epoch: record for epoch in epochs if epoch <= committed and (record := rounds.read(epoch))}
            return Decisions(self.id, committed, found)

        return self._read(read)

    def last(self) -> Round | None:
        """The record of the last committed epoch; None if there is none."""
        return self._read(lambda committed, rounds: rounds.read(committed) if committed >= 0 else None)

    def _read(self, read: Callable[[int, Rounds], Read]) -> Read:
        """What this gives of the last committed epoch and the round records, all of one copy."""
        for _ in range(TRIES):
            copy = self._copy()
            found = read(SparkLog(copy).committed, Rounds(copy / "rounds"))
            if self._copy() == copy:
                return found
        raise ConfigError(f"{self._root} changes all the time.", next_step="stop all drivers but one")

    def _copy(self) -> Path:
        copies = sorted(path for path in self._root.glob("[0-9]*") if path.name.isdigit())
        try:
            current = self._root / f"{int((self._root / CURRENT).read_text()):010d}"
        except (OSError, ValueError):
            current = self._root / "none"
        return current if current in copies or not copies else copies[-1]
