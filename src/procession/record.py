"""The record: words for its parts that every room uses. Imports nothing of ours.

The one rule: a column of rows has one name everywhere, from the ingress log to the last run.
"""

from __future__ import annotations

import hashlib

ORDER = "order_"
"""Columns whose names begin so are the rows' order key, the most significant first: the sequence, then the numbers that
tell apart what one record became. Rows that need not be put in order again have none."""

COLUMNS = ("key", "event_time", "stream_id", "message_id")
"""What a record has beside its payload."""


def stream_id(name: bytes) -> int:
    """64 bits of a name: enough that no two of a pipeline's streams meet. A file's name is its absolute path."""
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())
