"""What of a gateway's directory would survive a power cut: its snapshot, its retired streams and its log.

Invariant: reads the simulated disk, and changes nothing. For `simulated_gateway`, which has the oracle compare it with
what producers receive, and for `set_back`, which checks whether a copy is old.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from procession.gateway.gateway_directory import SNAPSHOT
from procession.gateway.gateway_limits import Limits
from procession.gateway.retired_file import path_of
from procession.gateway.retired_streams import RetiredStreams
from procession.gateway.snapshot import Snapshot, decode_snapshot
from procession.sim.disk import Directory, Disk, File
from procession.sim.environment import Environment
from procession.sim.oracle import MEMORY
from procession.storage.segment import HEADER_BYTES, SUFFIX, entry_at
from procession.wire.draft_messages import AnyFrame
from procession.wire.messages import NOTHING_COMMITTED, Ack, NotifyAck

LOG = "log"


def snapshot_path(part: str) -> str:
    return f"{part}/{SNAPSHOT}"


@lru_cache(MEMORY)
def read_snapshot(data: bytes | None) -> Snapshot:
    return decode_snapshot(data, Path(SNAPSHOT)) if data else Snapshot()


class DurableSnapshot:
    """The snapshot of one gateway, read again only after a sync."""

    def __init__(self, disk: Disk, part: str) -> None:
        self._disk = disk
        self._path = snapshot_path(part)
        self._read = -1, Snapshot()

    def __call__(self) -> Snapshot:
        if self._read[0] != self._disk.syncs:
            self._read = self._disk.syncs, read_snapshot(self._disk.durable_file(self._path))
        return self._read[1]


def is_durable_anywhere(disks: Mapping[str, Disk], stream_id: int, point: int) -> bool:
    """Whether, after a power cut, any gateway would still know that this id is committed. For a stream that has moved,
    that is its last holder. A directory that an older copy has replaced counts: it is put back, or the copy gets what
    it lacks."""
    directories = ((part, disk) for name, disk in disks.items() for part in (name, set_aside(name)))
    for part, disk in directories:
        found = read_snapshot(disk.durable_file(snapshot_path(part)))
        position = found.streams.get(stream_id)
        if position is not None and position.committed >= point:
            return True
        if found.retired is not None:
            data = disk.durable_file(str(path_of(Path(part), found.retired.number))) or b""
            kept = RetiredStreams(Limits(), found.retired, data[: found.retired.length]).committed(stream_id)
            if kept is not None and kept >= point:
                return True
    return False


def set_aside(part: str) -> str:
    """Where the newest directory of a gateway is while an older copy has its place."""
    return f"{part}.newest"


def check_acknowledgement(site: Environment, durable: Callable[[], Snapshot], frame: AnyFrame) -> None:
    """A gateway sends this frame, and has this snapshot on disk."""
    if isinstance(frame, NotifyAck) and frame.success:
        site.oracle.opened(frame.stream_id, frame.point_of_reference)
    match frame:
        case Ack():
            positions = frame.positions
        case NotifyAck() if frame.success and frame.point_of_reference != NOTHING_COMMITTED:
            positions = ((frame.stream_id, frame.point_of_reference),)
        case _:
            return
    for stream_id, point in positions:
        position = durable().streams.get(stream_id)
        is_durable = position is not None and position.committed >= point
        if not is_durable and isinstance(frame, NotifyAck):
            is_durable = is_durable_anywhere(site.disks, stream_id, point)
        site.oracle.check_ack(stream_id, point, is_durable)


def log_end(directory: Directory) -> int:
    """Where the log in a gateway's directory ends."""
    folder, end = directory.names.get(LOG), 0
    for name, node in folder.names.items() if isinstance(folder, Directory) else ():
        if name.endswith(SUFFIX) and isinstance(node, File):
            base = int(name.removesuffix(SUFFIX))
            end = max(end, _segment_end(node.data, base))
    return end


def _segment_end(data: bytes, base: int) -> int:
    buffer, position, sequence = pa.py_buffer(data), HEADER_BYTES, base
    while (entry := entry_at(buffer, position, sequence)) is not None:
        position, sequence = entry.position_end, entry.end
    return sequence
