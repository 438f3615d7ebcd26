"""The round record: what an epoch would commit, written to disk before Spark may decide.

The one rule: a transaction commits if and only if `commits/N` exists and `rounds/N` names it. So a record is fsynced
before `foreachBatch` returns, and kept until every sink has confirmed the epoch. Before it the votes of
`commit/coordinator`; after it Spark's commit log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from procession.errors import StorageError
from procession.format_number import check_format
from procession.storage.durable import fsync_dir, write_durably
from procession.storage.log_ranges import FIRST_GATEWAY
from procession.storage.state_store import Version

ROUNDS_KEPT = 100
"""As many as Spark keeps of its own commits."""

FORMAT = 2
"""A record without a format number is of format 1, which says the same."""

_ENCODER = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True)
class Part:
    """One sink's share of a round: its transaction, and the positions of the output that it covers."""

    txn: str
    start: int
    end: int


@dataclass(frozen=True)
class Round:
    """The record of an epoch's round."""

    epoch: int
    fence: int
    fingerprint: str
    first: int
    last: int
    parts: Mapping[str, Part]
    positions: Mapping[int, int] = field(default_factory=dict)
    """The last committed message id of each stream, as far as gateways may not know it yet."""
    counters: Mapping[str, int] = field(default_factory=dict)
    states: Mapping[str, Version] = field(default_factory=dict)
    """The version of each keyed stage's states that the epoch commits."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """The end of the epoch in the log of each gateway that has had a record so far."""
    sides: Mapping[str, str] = field(default_factory=dict)
    """The copies of tables that the next epoch reads, by file."""

    @property
    def offsets(self) -> Mapping[str, int]:
        """The offsets, also of a record from before there could be several gateways."""
        return self.ends or {FIRST_GATEWAY: self.last}

    def to_json(self) -> bytes:
        # The fields in their order, as `asdict` has them, without its copies of everything.
        parts = {sink: part.__dict__ for sink, part in self.parts.items()}
        states = {stage: version.__dict__ for stage, version in self.states.items()}
        return _ENCODER.encode({"format": FORMAT, **self.__dict__, "parts": parts, "states": states}).encode()

    @classmethod
    def from_json(cls, data: bytes, path: Path = Path("a round record")) -> Round:
        """Raises StorageError if it is of a later format, and ValueError, TypeError or KeyError if it is damaged."""
        fields: dict[str, Any] = json.loads(data)
        if not isinstance(fields, dict):
            raise TypeError("it is not an object")
        check_format(path, fields.pop("format", 1), FORMAT)
        fields["parts"] = {sink: Part(**part) for sink, part in fields["parts"].items()}
        fields["states"] = {stage: Version.from_json(told) for stage, told in fields.get("states", {}).items()}
        fields["positions"] = {int(stream): last for stream, last in fields["positions"].items()}
        return cls(**fields)


def next_positions(
    last: Round | None, acknowledged: Round | None, changes: Iterable[Mapping[int, int]]
) -> dict[int, int]:
    """The positions that the record of the next epoch says: its own changes, and those of the last record that some
    gateway may not have on disk. So a record names the streams of a few epochs, however many there ever were."""
    known = {} if acknowledged is None else acknowledged.positions
    before = {} if last is None else last.positions
    positions = {stream_id: at for stream_id, at in before.items() if known.get(stream_id) != at}
    for changed in changes:
        positions.update(changed)
    return positions


class Rounds:
    """The records of a checkpoint, one file per epoch."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, record: Round) -> None:
        """Durable when this returns."""
        if not self.directory.exists():
            self.directory.mkdir()
            fsync_dir(self.directory.parent)
        write_durably(self._path(record.epoch), record.to_json())

    def read(self, epoch: int) -> Round | None:
        path = self._path(epoch)
        try:
            return Round.from_json(path.read_bytes(), path)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise StorageError(
                f"round record {path} is damaged: {error}",
                next_step="restore the checkpoint directory from a copy; without this record epoch"
                f" {epoch} cannot be decided",
                path=str(path),
            ) from error

    def states(self, epoch: int) -> Mapping[str, Version]:
        """The states of keyed stages after this epoch. Raises StorageError if it has no record."""
        return self._must(epoch).states

    def sides(self, epoch: int) -> Mapping[str, str]:
        """The copies of tables that the next epoch reads. Raises StorageError if the epoch has no record."""
        return self._must(epoch).sides

    def _must(self, epoch: int) -> Round:
        record = self.read(epoch)
        if record is None:
            raise StorageError(
                f"there is no round record of epoch {epoch}, which names what the next one begins with",
                next_step="restore the checkpoint directory from a copy",
            )
        return record

    def read_all(self) -> dict[int, Round]:
        epochs = sorted(int(path.name) for path in self.directory.glob("[0-9]*") if path.name.isdigit())
        return {epoch: record for epoch in epochs if (record := self.read(epoch)) is not None}

    def positions(self, upto: int) -> dict[int, int]:
        """The last committed message id of each stream, as far as the records that are kept up to this epoch say."""
        positions: dict[int, int] = {}
        for epoch, record in self.read_all().items():
            positions |= record.positions if epoch <= upto else {}
        return positions

    def drop_before(self, epoch: int) -> None:
        """Deletes records that are confirmed and older than ROUNDS_KEPT."""
        for path in self.directory.glob("[0-9]*"):
            if path.name.isdigit() and int(path.name) < epoch - ROUNDS_KEPT:
                path.unlink(missing_ok=True)

    def _path(self, epoch: int) -> Path:
        return self.directory / f"{epoch:020d}"
