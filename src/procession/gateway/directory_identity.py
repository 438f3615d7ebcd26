"""The identity of a gateway's directory: made once, with it.

The one rule: a directory that was lost and made anew has another one, so that a driver which has read from the old one
sees it, instead of taking new records for those it knows. Before it `gateway/performer`; after it the driver's
checkpoint.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from procession.storage.durable import storage_error, write_durably
from procession.storage.flight_reader import IDENTITY, read_identity, written_identity


def has_identity(directory: Path) -> bool:
    return (directory / IDENTITY).exists()


def identity(directory: Path) -> str:
    """The directory's own; made now if it has none. It is written anew: whoever made it may not have synced it."""
    path = directory / IDENTITY
    try:
        found = read_identity(directory) if path.exists() else uuid.uuid4().hex
        write_durably(path, written_identity(found))
        return found
    except OSError as error:
        raise storage_error(path, "read", error) from error
