"""Reads the part of a gateway's directory that would survive a power cut: its snapshot, retired streams and log.

Invariant: this module reads the simulated disk and changes nothing. Used by `simulated_gateway`, whose oracle
compares the result with the acknowledgements to producers, and by `set_back`, which checks whether a copy is old.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from procession.gateway.gateway_directory import SNAPSHOT
from procession.sim.disk import Directory, Disk, File
from procession.sim.environment import Environment
from procession.sim.file_formats import (
    Positions,
    read_positions,
    read_retired,
    retired_name,
    segment_base,
    segment_end,
)
from procession.sim.oracle import MEMORY
from procession.wire.draft_messages import AnyFrame
from procession.wire.messages import NOTHING_COMMITTED, Ack, NotifyAck

LOG = "log"


def snapshot_path(part: str) -> str:
    return f"{part}/{SNAPSHOT}"


@lru_cache(MEMORY)
def read_snapshot(data: bytes | None) -> Positions:
    return read_positions(data) if data else Positions()


class DurableSnapshot:
    """The snapshot of one gateway, read again only after a sync."""

    def __init__(self, disk: Disk, part: str) -> None:
        self._disk = disk
        self._path = snapshot_path(part)
        self._read = -1, Positions()

    def __call__(self) -> Positions:
        if self._read[0] != self._disk.syncs:
            self._read = self._disk.syncs, read_snapshot(self._disk.durable_file(self._path))
        return self._read[1]


def is_durable_anywhere(disks: Mapping[str, Disk], stream_id: int, point: int) -> bool:
    """Return whether, after a power cut, any gateway would still know that this id is committed. For a moved stream,
    this is its last holder. A directory that an older copy has replaced also counts: either the directory is put
    back, or the copy gets the missing data."""
    directories = ((part, disk) for name, disk in disks.items() for part in (name, set_aside(name)))
    for part, disk in directories:
        found = read_snapshot(disk.durable_file(snapshot_path(part)))
        if found.committed.get(stream_id, -1) >= point:
            return True
        if found.retired is not None:
            number, length = found.retired
            data = disk.durable_file(f"{part}/{retired_name(number)}") or b""
            if read_retired(data[:length]).get(stream_id, -1) >= point:
                return True
    return False


def set_aside(part: str) -> str:
    """Return the path of a gateway's newest directory while an older copy replaces it."""
    return f"{part}.newest"


def check_acknowledgement(
    site: Environment, durable: Callable[[], Positions], frame: AnyFrame, *, is_zombie: bool = False
) -> None:
    """A gateway sends this frame, and has this snapshot on disk."""
    if isinstance(frame, NotifyAck) and frame.success and not is_zombie:
        site.oracle.opened(frame.stream_id, frame.point_of_reference)
    match frame:
        case Ack():
            positions = frame.positions
        case NotifyAck() if frame.success and frame.point_of_reference != NOTHING_COMMITTED:
            positions = ((frame.stream_id, frame.point_of_reference),)
        case _:
            return
    for stream_id, point in positions:
        is_durable = durable().committed.get(stream_id, -1) >= point
        if not is_durable and isinstance(frame, NotifyAck):
            is_durable = is_durable_anywhere(site.disks, stream_id, point)
        site.oracle.check_ack(stream_id, point, is_durable)


def log_end(directory: Directory) -> int:
    """Return the end of the log in a gateway's directory."""
    folder, end = directory.names.get(LOG), 0
    for name, node in folder.names.items() if isinstance(folder, Directory) else ():
        base = segment_base(name)
        if base is not None and isinstance(node, File):
            end = max(end, segment_end(node.data, base))
    return end
