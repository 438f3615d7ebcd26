"""The files that a driver keeps in its copy of the checkpoint, in addition to Spark's: `rounds/N` and `attempts.json`.

Invariant: a round record is on disk before Spark may decide its epoch. An attempt number is reserved on disk before a
transaction with it is sent. A successor starts above all numbers that its predecessor reserved. It reads the file after
it has replaced `CURRENT`, and a driver reads `CURRENT` again after a reservation. So two drivers never use the same
number, and no driver waits for another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from procession.commit.round_record import ROUNDS_KEPT, RoundRecord
from procession.errors import StorageError
from procession.format_number import check_format
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.storage.durable import fsync_dir, remove, storage_error, write_durably
from procession.storage.state_version import StateVersion

ATTEMPTS = "attempts.json"
ATTEMPTS_FORMAT = 1


def read_reserved(directory: Path, committed: int, files: FileSystem = HOST_FILES) -> int:
    """Return the last number that a driver of this copy of the checkpoint may have used. A copy from before attempts
    were numbered has no file. Its transactions contain epochs instead, up to the epoch after `committed`."""
    path = directory / ATTEMPTS
    try:
        found = json.loads(files.read(path))
        check_format(path, found["format"], ATTEMPTS_FORMAT)
        return int(found["reserved"])
    except FileNotFoundError:
        return committed + 1
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{path} is damaged: {error}", next_step="restore the checkpoint directory from a copy"
        ) from error


def write_reserved(directory: Path, number: int, files: FileSystem = HOST_FILES) -> None:
    """Write the number. It is durable when this returns."""
    data = json.dumps({"format": ATTEMPTS_FORMAT, "reserved": number}).encode()
    write_durably(directory / ATTEMPTS, data, files)


class RoundRecords:
    """The records of a checkpoint, one file per epoch."""

    def __init__(self, directory: Path, files: FileSystem = HOST_FILES) -> None:
        self.directory = directory
        self._files = files

    def write(self, record: RoundRecord) -> None:
        """Write a record. It is durable when this returns."""
        if not self._files.exists(self.directory):
            try:
                self._files.make_directory(self.directory)
            except OSError as error:  # a successor may have removed this driver's copy of the checkpoint
                raise storage_error(self.directory, "make the directory", error) from error
            fsync_dir(self.directory.parent, self._files)
        write_durably(self._path(record.epoch), record.to_json(), self._files)

    def read(self, epoch: int) -> RoundRecord | None:
        path = self._path(epoch)
        try:
            return RoundRecord.from_json(self._files.read(path), path)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise StorageError(
                f"round record {path} is damaged: {error}",
                next_step="restore the checkpoint directory from a copy; without this record epoch"
                f" {epoch} cannot be decided",
                path=str(path),
            ) from error

    def states(self, epoch: int) -> Mapping[str, StateVersion]:
        """Return the states of keyed stages after this epoch. Raises StorageError if the epoch has no record."""
        return self._must(epoch).states

    def sides(self, epoch: int) -> Mapping[str, str]:
        """Return the copies of tables that the next epoch reads. Raises StorageError if the epoch has no record."""
        return self._must(epoch).sides

    def _must(self, epoch: int) -> RoundRecord:
        record = self.read(epoch)
        if record is None:
            raise StorageError(
                f"there is no round record of epoch {epoch}, which the next epoch needs",
                next_step="restore the checkpoint directory from a copy",
            )
        return record

    def read_all(self) -> dict[int, RoundRecord]:
        return {epoch: record for epoch in self._epochs() if (record := self.read(epoch)) is not None}

    def positions(self, upto: int) -> dict[int, int]:
        """Return the last committed message id of each stream in the kept records up to this epoch."""
        positions: dict[int, int] = {}
        for epoch, record in self.read_all().items():
            positions |= record.positions if epoch <= upto else {}
        return positions

    def drop_before(self, epoch: int) -> None:
        """Delete records that are confirmed and older than ROUNDS_KEPT."""
        for known in self._epochs():
            if known < epoch - ROUNDS_KEPT:
                remove(self._path(known), self._files)

    def _epochs(self) -> list[int]:
        try:
            return sorted(int(name) for name in self._files.names(self.directory) if name.isdigit())
        except FileNotFoundError:
            return []

    def _path(self, epoch: int) -> Path:
        return self.directory / f"{epoch:020d}"
