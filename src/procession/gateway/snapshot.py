"""The snapshot: what a gateway must know beside its log, in one small file that is replaced as a whole.

The one rule: it is on disk before anything that it says is told to a producer, or trimmed from the log. Before it:
`state` makes it. After it: a restarted gateway is this snapshot plus the surviving log.
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
from procession.merge.event_time import Point
from procession.merge.stream_clocks import Clock
from procession.merge.waiting_rows import Key
from procession.storage.durable import storage_error, write_durably

FILE_NAME = "positions.json"
FORMAT = 3
"""A snapshot without a format number is of format 1, which says the same as format 2: neither knows retired streams."""


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
    point: Point | None = None
    """In the order of event time: from where arrivals are heard again. `end_sequence` is then of the ordered log."""
    clocks: Mapping[int, Clock] = field(default_factory=dict)
    """How far each stream has come, at whichever gateway: who lets a stream in must know."""
    retired: Mark | None = None
    """The file with the streams that are not here, if any were ever retired."""

    def check_fence(self, fence: int) -> None:
        """Only the latest driver is heard."""
        if fence < self.fence:
            raise FencedError(f"Driver {fence} was replaced by driver {self.fence}.", fence=fence, latest=self.fence)


def save(directory: Path, snapshot: Snapshot) -> None:
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
    write_durably(directory / FILE_NAME, json.dumps(document, separators=(",", ":")).encode())


def load(directory: Path) -> Snapshot:
    """The last snapshot, or the first one there is: nothing committed."""
    path = directory / FILE_NAME
    try:
        document = json.loads(path.read_bytes())
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
    except FileNotFoundError:
        return Snapshot()
    except OSError as error:
        raise storage_error(path, "read", error) from error
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise StorageError(
            f"The snapshot {path} cannot be read: {error!r}.",
            next_step="Restore the file from a copy; without it the gateway cannot know what is committed.",
            path=str(path),
        ) from error


def _mark(document: dict[str, Any]) -> Mark:
    return Mark(*(_u64(document[name]) for name in Mark._fields))


def _u64(value: object) -> int:
    if not is_u64(value) or isinstance(value, bool):
        raise ValueError(f"{str(value)[:40]} is not a whole number below 2^64")
    assert isinstance(value, int)
    return value


def _written(point: Point) -> dict[str, Any]:
    return {
        "floor": point.floor,
        "clocks": written_clocks(point.clocks),
        "cut": point.cut,
        "given": sorted(point.given),
        "received": {str(stream_id): last_id for stream_id, last_id in point.received.items()},
    }


def _read(document: dict[str, Any]) -> Point:
    cut = None if document["cut"] is None else Key(*map(int, document["cut"]))
    given = frozenset(map(int, document.get("given", ())))
    received = {int(one): None if at is None else int(at) for one, at in document["received"].items()}
    return Point(int(document["floor"]), read_clocks(document["clocks"]), cut, given, received)
