"""The record: names of its columns that every package uses.

Invariant: a column of rows has one name everywhere, from the ingress log to the last run.
"""

from __future__ import annotations

import hashlib

ORDER = "order_"
"""Prefix of the columns with the rows' order key, the most significant first: the sequence, then the numbers that
distinguish the results of one record. Rows that need no sorting have none."""

COLUMNS = ("key", "event_time", "stream_id", "message_id")
"""The columns of a record besides its payload."""


def stream_id(name: bytes) -> int:
    """Return a 64-bit hash of a name, enough to avoid collisions. A file's name is its absolute path."""
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())


SHARE_SHIFT = 40
"""The bits of a stream's id below the number of the source that it belongs to, if a connector sends it for one."""


def share_of(source: str) -> int:
    """The number of a source that reads a URL: the upper bits of the ids of its streams. Two such sources of a pipeline
    must not have the same."""
    return stream_id(b"source " + source.encode()) >> SHARE_SHIFT


def id_in_share(share: int, stream: int) -> int:
    """The id of a connector's stream within the share of its source."""
    return share << SHARE_SHIFT | stream & (1 << SHARE_SHIFT) - 1
