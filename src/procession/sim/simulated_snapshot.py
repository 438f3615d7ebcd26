"""A gateway's snapshot on a virtual disk: what `gateway/snapshot` writes, in fewer bytes.

The one rule: all that a restarted gateway needs beside its log is in it. Before it: `simulated_gateway`, which writes
it. After it: the next incarnation, and the oracle, which asks what is durable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache

from procession.gateway.snapshot import Position, Snapshot
from procession.sim.disk import Disk
from procession.sim.oracle import MEMORY

SNAPSHOT = "positions.json"


def snapshot_path(part: str) -> str:
    return f"{part}/{SNAPSHOT}"


def dump_snapshot(snapshot: Snapshot) -> bytes:
    streams = {stream_id: (at.name, at.committed) for stream_id, at in snapshot.streams.items()}
    fields = (snapshot.fence, snapshot.epoch, snapshot.end_sequence, snapshot.next_sequence, streams)
    return json.dumps(fields).encode()


@lru_cache(MEMORY)
def load_snapshot(data: bytes | None) -> Snapshot:
    if not data:
        return Snapshot()
    fence, epoch, end_sequence, next_sequence, streams = json.loads(data)
    positions = {int(stream_id): Position(*at) for stream_id, at in streams.items()}
    return Snapshot(fence, epoch, end_sequence, next_sequence, positions)


def is_durable_anywhere(disks: Mapping[str, Disk], stream_id: int, point: int) -> bool:
    """Whether any gateway would still know, after a power cut, that this id is committed. A stream that has moved:
    whoever had it last does."""
    for part, disk in disks.items():
        position = load_snapshot(disk.durable_file(snapshot_path(part))).streams.get(stream_id)
        if position is not None and position.committed >= point:
            return True
    return False
