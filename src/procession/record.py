"""The record: words for its parts that every room uses. Imports nothing of ours.

The one rule: a column of rows has one name everywhere, from the ingress log to the last run.
"""

from __future__ import annotations

ORDER = "order_"
"""Columns whose names begin so are the rows' order key, the most significant first: the sequence, then the numbers that
tell apart what one record became. Rows that need not be put in order again have none."""

COLUMNS = ("key", "event_time", "stream_id", "message_id")
"""What a record has beside its payload."""
