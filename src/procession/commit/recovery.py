"""Recovery of a driver: reads its copy of the checkpoint, and returns the state that the driver continues with.

Invariant: an epoch is decided if and only if `commits/N`, or a later file, exists and is complete. The files together
mean:

- `offsets` and `commits` end with the same epoch: every epoch is committed;
- `offsets` has one more epoch: Spark runs it again, and the transactions that its sinks prepared are aborted, with or
without a round record;
- anything else: Spark would skip or repeat an epoch, so the driver refuses to start;
- the last committed epoch has no round record: its transactions are unknown, so the driver refuses to start;
- no `attempts.json`: the copy is from before attempts were numbered.

Used only at the start. `commit/checkpoint` claims and copies; `commit/coordinator` decides the outcome of the
transactions that sinks list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from procession.commit.round_files import RoundRecords, read_reserved
from procession.commit.round_record import RoundRecord, last_round
from procession.commit.spark_log import SparkLog
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES


@dataclass(frozen=True)
class RecoveredRounds:
    """The state that a driver starts with."""

    committed: int
    """The last committed epoch, or -1."""
    undecided: int | None
    """The epoch that Spark runs again, if any."""
    rounds: Mapping[int, RoundRecord]
    """The records of committed epochs that are still kept."""
    reserved: int
    """The last attempt number that may have been used."""

    @property
    def last(self) -> RoundRecord | None:
        """The record of the last committed epoch."""
        return self.rounds.get(self.committed)


def recover(directory: Path, files: FileSystem = HOST_FILES) -> RecoveredRounds:
    """Read a copy of the checkpoint. Raises StorageError if a driver cannot continue from it."""
    log = SparkLog(directory, files)
    log.check()
    offered, committed = log.offered, log.committed
    found = RoundRecords(directory / "rounds", files).read_all()
    rounds = {epoch: record for epoch, record in found.items() if epoch <= committed}
    last_round(rounds, committed)
    return RecoveredRounds(
        committed, offered if offered > committed else None, rounds, read_reserved(directory, committed, files)
    )
