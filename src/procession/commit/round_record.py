"""The round record: the transactions and positions that an epoch would commit, on disk before Spark may decide.

Invariant: a transaction commits if and only if `commits/N` exists and `rounds/N` names it. So a record is fsynced
before `foreachBatch` returns, and kept until every sink has confirmed the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from procession.errors import StorageError
from procession.format_number import check_format
from procession.storage.log_ranges import FIRST_GATEWAY
from procession.storage.state_version import StateVersion

ROUNDS_KEPT = 100
"""Number of records that are kept, as many as Spark keeps of its own commits."""

FORMAT = 3
"""Format number. A record without a number has format 1, which means the same as format 2: neither has
`acknowledged`."""

_ENCODER = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True)
class SinkShare:
    """One sink's share of a round: its transaction, and the positions of the output that it covers."""

    txn: str
    start: int
    end: int


@dataclass(frozen=True)
class RoundRecord:
    """The record of an epoch's round."""

    epoch: int
    fence: int
    fingerprint: str
    first: int
    last: int
    parts: Mapping[str, SinkShare]
    positions: Mapping[int, int] = field(default_factory=dict)
    """The last committed message id of each stream, unless all gateways already know it."""
    counters: Mapping[str, int] = field(default_factory=dict)
    states: Mapping[str, StateVersion] = field(default_factory=dict)
    """The version of each keyed stage's states that the epoch commits."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """The end of the epoch in the log of each gateway that has had a record so far."""
    sides: Mapping[str, str] = field(default_factory=dict)
    """The copies of tables that the next epoch reads, by file."""
    acknowledged: int = -1
    """The last epoch that every gateway had on disk when this record was made; `positions` names all later changes."""

    @property
    def offsets(self) -> Mapping[str, int]:
        """The end of the epoch for each gateway, also from a record that is older than several gateways."""
        return self.ends or {FIRST_GATEWAY: self.last}

    def to_json(self) -> bytes:
        # The fields in their order, like `asdict`, but without its copies.
        parts = {sink: part.__dict__ for sink, part in self.parts.items()}
        states = {stage: version.__dict__ for stage, version in self.states.items()}
        return _ENCODER.encode({"format": FORMAT, **self.__dict__, "parts": parts, "states": states}).encode()

    @classmethod
    def from_json(cls, data: bytes, path: Path = Path("a round record")) -> RoundRecord:
        """Parse a record. Raises StorageError if it has a newer format, and ValueError, TypeError or KeyError if it is
        damaged."""
        fields: dict[str, Any] = json.loads(data)
        if not isinstance(fields, dict):
            raise TypeError("it is not an object")
        check_format(path, fields.pop("format", 1), FORMAT)
        fields["parts"] = {sink: SinkShare(**part) for sink, part in fields["parts"].items()}
        fields["states"] = {
            stage: StateVersion.from_json(version) for stage, version in fields.get("states", {}).items()
        }
        fields["positions"] = {int(stream): last for stream, last in fields["positions"].items()}
        return cls(**fields)


def next_positions(
    last: RoundRecord | None, acknowledged: RoundRecord | None, changes: Iterable[Mapping[int, int]]
) -> dict[int, int]:
    """Return the positions for the next epoch's record: its own changes, and those of the last record that some gateway
    may not have on disk. So a record names the streams of only a few epochs, however many streams there are."""
    known = {} if acknowledged is None else acknowledged.positions
    before = {} if last is None else last.positions
    positions = {stream_id: at for stream_id, at in before.items() if known.get(stream_id) != at}
    for changed in changes:
        positions.update(changed)
    return positions


def acknowledged_epoch(last: RoundRecord | None, acknowledged: RoundRecord | None) -> int:
    """Return the last epoch that every gateway has reported as on disk, to this driver or an earlier one."""
    return max((-1 if last is None else last.acknowledged), (-1 if acknowledged is None else acknowledged.epoch))


def last_round(rounds: Mapping[int, RoundRecord], committed: int) -> RoundRecord | None:
    """Return the record of the last committed epoch, or None if no epoch is committed. Raises StorageError if it is
    missing."""
    last = rounds.get(committed)
    if committed >= 0 and last is None:
        raise StorageError(
            f"the checkpoint has epoch {committed} committed, but no round record of it",
            next_step="restore the checkpoint directory from a copy",
        )
    return last
