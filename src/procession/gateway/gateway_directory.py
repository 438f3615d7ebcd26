"""The small files of a gateway's directory: its identity, its snapshot, and the members that a leader knows.

Invariant: each file is replaced as a whole, and is on disk when the call returns. `recovery` reads the files,
`performer` writes snapshots, and `members` stores the gateways of the pipeline. The log is in a subdirectory.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from procession.gateway.snapshot import Snapshot, decode_snapshot, encode_snapshot
from procession.storage.durable import storage_error, write_durably
from procession.storage.flight_reader import IDENTITY, read_identity, written_identity

SNAPSHOT = "positions.json"
MEMBERS = "gateways.json"


def save_snapshot(directory: Path, snapshot: Snapshot) -> None:
    write_durably(directory / SNAPSHOT, encode_snapshot(snapshot))


def load_snapshot(directory: Path) -> Snapshot | None:
    """The last snapshot. None: nothing was ever committed. Raises StorageError if it is damaged."""
    data = _read(directory / SNAPSHOT)
    return None if data is None else decode_snapshot(data, directory / SNAPSHOT)


def find_identity(directory: Path) -> str | None:
    """The identity of this directory. A directory that replaces it has another one. None: it is new."""
    path = directory / IDENTITY
    try:
        return read_identity(directory) if path.exists() else None
    except OSError as error:
        raise storage_error(path, "read", error) from error


def keep_identity(directory: Path, found: str | None) -> str:
    """Creates an identity if there is none. Writes an existing one again, because an earlier process may have crashed
    before its sync."""
    identity = found if found is not None else uuid.uuid4().hex
    write_durably(directory / IDENTITY, written_identity(identity))
    return identity


class MemberFile:
    """The leader's file of the gateways that belong to the pipeline."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / MEMBERS

    def load(self) -> bytes | None:
        return _read(self.path)

    def save(self, document: bytes) -> None:
        write_durably(self.path, document)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(path, "read", error) from error
