"""A gateway's snapshot on a virtual disk: what `gateway/snapshot` writes, in fewer bytes.

Invariant: all that a restarted gateway needs beside its log is in it. Upstream: `simulated_gateway`, which writes it.
Downstream: the next incarnation, and the oracle, which asks what is durable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from procession.errors import StorageError
from procession.gateway.gateway_limits import Limits
from procession.gateway.retired_streams import Mark, RetiredStreams, Retiring, checked
from procession.gateway.snapshot import Position, Snapshot
from procession.sim.disk import Disk
from procession.sim.disk_calls import Files
from procession.sim.oracle import MEMORY

SNAPSHOT = "positions.json"


def snapshot_path(part: str) -> str:
    return f"{part}/{SNAPSHOT}"


def _retired_name(number: int) -> str:
    return f"retired-{number}"


def dump_snapshot(snapshot: Snapshot) -> bytes:
    streams = {stream_id: (at.name, at.committed) for stream_id, at in snapshot.streams.items()}
    fields = (snapshot.fence, snapshot.epoch, snapshot.end_sequence, snapshot.next_sequence, streams, snapshot.retired)
    return json.dumps(fields).encode()


@lru_cache(MEMORY)
def load_snapshot(data: bytes | None) -> Snapshot:
    if not data:
        return Snapshot()
    fence, epoch, end_sequence, next_sequence, streams, retired = json.loads(data)
    positions = {int(stream_id): Position(*at) for stream_id, at in streams.items()}
    mark = None if retired is None else Mark(*retired)
    return Snapshot(fence, epoch, end_sequence, next_sequence, positions, retired=mark)


def recover_snapshot(files: Files, part: str) -> tuple[Snapshot, bytes]:
    """As `retired_file.recover`: writes the files again, because an earlier process may not have synced them."""
    kept, retired = files.read(snapshot_path(part)), b""
    found = load_snapshot(kept)
    mark = found.retired
    if mark is not None:
        data = (files.read(f"{part}/{_retired_name(mark.number)}") or b"")[: mark.length]
        retired = checked(data, mark, lambda why: StorageError(f"Retired streams: {why}.", next_step="Restore them."))
        found = replace(found, retired=mark._replace(number=mark.number + 1))
        files.write_durably(part, _retired_name(mark.number + 1), retired)
    if kept:
        files.write_durably(part, SNAPSHOT, dump_snapshot(found))
        if mark is not None:
            files.remove(part, _retired_name(mark.number))
    return found, retired


def write_retired(files: Files, part: str, retiring: Retiring) -> None:
    """As `retired_file.write`."""
    assert retiring.mark is not None
    name = _retired_name(retiring.mark.number)
    if retiring.position == 0:
        files.write_durably(part, name, retiring.data)
    else:
        files.write_at(f"{part}/{name}", retiring.position, retiring.data)
        files.sync(f"{part}/{name}")


def is_durable_anywhere(disks: Mapping[str, Disk], stream_id: int, point: int) -> bool:
    """Whether, after a power cut, any gateway would still know that this id is committed. For a stream that has moved,
    that is its last holder."""
    for part, disk in disks.items():
        found = load_snapshot(disk.durable_file(snapshot_path(part)))
        position = found.streams.get(stream_id)
        if position is not None and position.committed >= point:
            return True
        if found.retired is not None:
            data = disk.durable_file(f"{part}/{_retired_name(found.retired.number)}") or b""
            kept = RetiredStreams(Limits(), found.retired, data[: found.retired.length]).committed(stream_id)
            if kept is not None and kept >= point:
                return True
    return False
