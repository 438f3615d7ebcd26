"""The record: names of its columns that every package uses.

Invariant: a column of rows has one name everywhere, from the ingress log to the last run.
"""

from __future__ import annotations

import hashlib

ORDER = "order_"
"""Prefix of the columns with the rows' order key, the most significant column first: the sequence, then numbers that
distinguish the results of one record. Rows that need no sorting have no such columns."""

COLUMNS = ("key", "event_time", "stream_id", "message_id")
"""The columns of a record besides its payload."""


def stream_id(name: bytes) -> int:
    """Return the id of a stream: a 64-bit hash of its name, long enough to avoid collisions. The name of a file's
    stream is its absolute path."""
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())


SHARE_SHIFT = 40
"""Number of lower bits of a stream's id if a source reads a URL. The bits above them are the number of the source."""


def share_of(source: str) -> int:
    """Return the number of a source that reads a URL: the upper bits of the ids of its streams. It must be unique in a
    pipeline."""
    return stream_id(b"source " + source.encode()) >> SHARE_SHIFT


def id_in_share(share: int, stream: int) -> int:
    """Return the id of a connector's stream within the share of its source."""
    return share << SHARE_SHIFT | stream & (1 << SHARE_SHIFT) - 1
