"""Messages as plain values, for comparing."""

from __future__ import annotations

from typing import Any, NamedTuple

from procession.wire.messages import Messages


class Row(NamedTuple):
    stream_id: int
    message_id: int
    event_time: int
    key: bytes
    payload: bytes


def rows_of(messages: Messages) -> list[Row]:
    columns = (
        messages.stream_ids,
        messages.message_ids,
        messages.event_times,
        messages.keys,
        messages.payloads,
    )
    return [Row(*row) for row in zip(*map(_plain, columns), strict=True)]


def _plain(column: Any) -> list[Any]:
    for plain in ("tolist", "to_pylist"):
        if hasattr(column, plain):
            return list(getattr(column, plain)())
    return list(column)
