"""What a request at the side door may say: numbers, and positions of streams. Pure.

The one rule: what is not as it must be is the peer's error, in one short sentence. `control` and `doorway` ask it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from procession.errors import RemoteProtocolError

U64_DIGITS = 20


def integers(request: Mapping[str, Any], *names: str) -> list[int]:
    for name in names:
        if not is_u64(request.get(name)):
            raise RemoteProtocolError(f"{name} must be a whole number below 2^64")
    return [request[name] for name in names]


def positions(request: Mapping[str, Any]) -> dict[int, int]:
    told = request.get("positions")
    if not isinstance(told, dict):
        raise RemoteProtocolError("positions must be an object")
    for stream_id, message_id in told.items():
        if not (stream_id.isdecimal() and len(stream_id) <= U64_DIGITS and is_u64(int(stream_id))):
            raise RemoteProtocolError("positions must map stream ids to message ids")
        if not is_u64(message_id):
            raise RemoteProtocolError("positions must map stream ids to message ids")
    return {int(stream_id): message_id for stream_id, message_id in told.items()}


def is_u64(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 2**64
