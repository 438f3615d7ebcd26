"""The directory of a gateway: its free space and its small files.

Invariant: the small files are the identity, the snapshot, the pause marker and the leader's list of members. Each file
is replaced as a whole, and is on disk when the call returns. `recovery` reads the files, `performer` writes snapshots,
and `members` stores the gateways of the pipeline. The log is in a subdirectory.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from procession.gateway.credit_flow import CreditFlow
from procession.gateway.snapshot import Snapshot, decode_snapshot, encode_snapshot
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.storage.durable import disk_free_bytes, fsync_dir, read_if_there, remove, storage_error, write_durably
from procession.storage.flight_reader import IDENTITY, read_identity, written_identity

log = structlog.get_logger("gateway")

SNAPSHOT = "positions.json"
MEMBERS = "gateways.json"
UNREPLICATED_BYTES_MAX = 16 * 1024 * 1024
"""Maximum bytes that are on their way to the replicas. Above it, producers are not read."""
PAUSED = "paused"
"""The file that keeps a gateway paused across restarts."""


def save_snapshot(directory: Path, snapshot: Snapshot, files: FileSystem = HOST_FILES) -> None:
    write_durably(directory / SNAPSHOT, encode_snapshot(snapshot), files)


def load_snapshot(directory: Path, files: FileSystem = HOST_FILES) -> Snapshot | None:
    """Read the last snapshot. None: nothing was ever committed. Raises StorageError if it is damaged."""
    data = read_if_there(directory / SNAPSHOT, files)
    return None if data is None else decode_snapshot(data, directory / SNAPSHOT)


def is_paused(directory: Path, files: FileSystem = HOST_FILES) -> bool:
    return files.exists(directory / PAUSED)


def keep_paused(directory: Path, paused: bool, files: FileSystem = HOST_FILES) -> None:
    """Store whether the gateway is paused, for its next start."""
    if paused:
        write_durably(directory / PAUSED, b"", files)
    elif is_paused(directory, files):
        try:
            remove(directory / PAUSED, files)
        except OSError as error:
            raise storage_error(directory / PAUSED, "remove", error) from error
        fsync_dir(directory, files)


def check_free_space(flow: CreditFlow, directory: Path, bytes_min: int, files: FileSystem = HOST_FILES) -> None:
    """Set in flow control whether the disk of this directory is low on space, and log changes."""
    free_bytes = disk_free_bytes(directory, files)
    is_short = free_bytes < bytes_min
    if is_short is not flow.is_disk_short:
        space = {"path": str(directory), "free_bytes": free_bytes, "disk_free_bytes_min": bytes_min}
        if is_short:
            log.warning("gateway.disk_low", producers="wait", **space)
        else:
            log.info("gateway.disk_has_room", producers="go on", **space)
    flow.is_disk_short = is_short
    flow.is_disk_full = free_bytes < bytes_min // 2


def check_replicas(flow: CreditFlow, unreplicated_bytes: int) -> None:
    """Set in flow control whether the replicas lag, and log changes. Then producers wait, not the event loop."""
    is_behind = unreplicated_bytes > UNREPLICATED_BYTES_MAX
    if is_behind is not flow.are_replicas_behind:
        if is_behind:
            log.warning("gateway.replicas_behind", producers="wait", unreplicated_bytes=unreplicated_bytes)
        else:
            log.info("gateway.replicas_caught_up", producers="go on", unreplicated_bytes=unreplicated_bytes)
    flow.are_replicas_behind = is_behind


def find_identity(directory: Path, files: FileSystem = HOST_FILES) -> str | None:
    """Return the identity of this directory. A directory that replaces it has another identity. None: the directory is
    new."""
    path = directory / IDENTITY
    try:
        return read_identity(directory, files) if files.exists(path) else None
    except OSError as error:
        raise storage_error(path, "read", error) from error


def keep_identity(directory: Path, identity: str, files: FileSystem = HOST_FILES) -> None:
    """Write the identity. An existing identity is written again, because an earlier process may have crashed before its
    sync."""
    write_durably(directory / IDENTITY, written_identity(identity), files)


class MemberFile:
    """The leader's file of the gateways that belong to the pipeline."""

    def __init__(self, directory: Path, files: FileSystem = HOST_FILES) -> None:
        self.path = directory / MEMBERS
        self._files = files

    def load(self) -> bytes | None:
        return read_if_there(self.path, self._files)

    def save(self, document: bytes) -> None:
        write_durably(self.path, document, self._files)
