"""The snapshot: a gateway's knowledge besides its log, in one small file that is replaced as a whole.

Invariant: a snapshot is on disk before its positions are sent to producers, and before its rows are trimmed from the
log. Pure. `state` creates it and `gateway_directory` writes it. A restarted gateway consists of this snapshot and the
remaining log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from procession.errors import FencedError, StorageError
from procession.format_number import check_format
from procession.gateway.request_parsing import is_u64, read_clocks, written_clocks
from procession.gateway.retired_streams import Mark
from procession.merge.event_time import ReplayPoint
from procession.merge.stream_clocks import StreamClock
from procession.merge.waiting_rows import Key

FORMAT = 3
"""Format number. A snapshot without a number has format 1, which means the same as format 2: neither knows retired
streams."""


@dataclass(frozen=True, slots=True)
class Position:
    name: str
    committed: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    fence: int = 0
    epoch: int = -1
    end_sequence: int = 0
    next_sequence: int = 0
    streams: dict[int, Position] = field(default_factory=dict)
    point: ReplayPoint | None = None
    """With event-time order: where the replay of arrivals starts. `end_sequence` then refers to the ordered log."""
    clocks: Mapping[int, StreamClock] = field(default_factory=dict)
    """Progress of each stream at any gateway, which a gateway needs to open the stream."""
    retired: Mark | None = None
    """The file with the retired streams, which this snapshot omits. None: no stream was ever retired."""

    def check_fence(self, fence: int) -> None:
        """Raise FencedError if this fence is lower than that of the latest driver."""
        if fence < self.fence:
            raise FencedError(f"Driver {fence} was replaced by driver {self.fence}.", fence=fence, latest=self.fence)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    streams = {str(key): {"name": at.name, "committed": at.committed} for key, at in snapshot.streams.items()}
    document: dict[str, Any] = {
        "format": FORMAT,
        "fence": snapshot.fence,
        "epoch": snapshot.epoch,
        "end_sequence": snapshot.end_sequence,
        "next_sequence": snapshot.next_sequence,
        "streams": streams,
    }
    if snapshot.point is not None:
        document["point"] = _written(snapshot.point)
        document["clocks"] = written_clocks(snapshot.clocks)
    if snapshot.retired is not None:
        document["retired"] = snapshot.retired._asdict()
    return json.dumps(document, separators=(",", ":")).encode()


def decode_snapshot(data: bytes, path: Path) -> Snapshot:
    """Decode the bytes of the file `path`. Raises StorageError if they are damaged, or of a newer format."""
    try:
        document = json.loads(data)
        check_format(path, document.get("format", 1), FORMAT)
        return Snapshot(
            fence=_u64(document["fence"]),
            epoch=_u64(document["epoch"] + 1) - 1,
            end_sequence=_u64(document["end_sequence"]),
            next_sequence=_u64(document["next_sequence"]),
            streams={
                _u64(int(stream_id)): Position(str(at["name"]), _u64(at["committed"]))
                for stream_id, at in document["streams"].items()
            },
            point=_read(document["point"]) if "point" in document else None,
            clocks=read_clocks(document.get("clocks", {})),
            retired=_mark(document["retired"]) if "retired" in document else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise StorageError(
            f"The snapshot {path} cannot be read: {error!r}.",
            next_step="Restore the file from a copy; without it the gateway cannot know which records are committed.",
            path=str(path),
        ) from error


def _mark(document: dict[str, Any]) -> Mark:
    return Mark(*(_u64(document[name]) for name in Mark._fields))


def _u64(value: object) -> int:
    if not is_u64(value) or isinstance(value, bool):
        raise ValueError(f"{str(value)[:40]} is not a whole number below 2^64")
    assert isinstance(value, int)
    return value


def _written(point: ReplayPoint) -> dict[str, Any]:
    return {
        "floor": point.floor,
        "clocks": written_clocks(point.clocks),
        "cut": point.cut,
        "given": sorted(point.moved_away),
        "received": {str(stream_id): last_id for stream_id, last_id in point.received.items()},
    }


def _read(document: dict[str, Any]) -> ReplayPoint:
    cut = None if document["cut"] is None else Key(*map(int, document["cut"]))
    moved_away = frozenset(map(int, document.get("given", ())))
    received = {int(stream_id): None if at is None else int(at) for stream_id, at in document["received"].items()}
    return ReplayPoint(int(document["floor"]), read_clocks(document["clocks"]), cut, moved_away, received)
