"""Codecs: how a payload's bytes become a value for the user's functions, and how values become bytes again at a sink.

The one rule: a codec is a pair of functions, of one payload and of one value; what they raise is an error of the
record. Nothing that a peer sends is ever executed. Used by `operators/chain`. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgpack
import pyarrow as pa

from procession.planner.graph import Codec

TYPES = "str or bytes, or name the sink's codec"


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"the function gave back {type(value).__name__}: give {TYPES}")


def _to_json(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray):
        raise TypeError("the function gave back bytes, which have no form in JSON: give what they mean")
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_as_json).encode()


def _as_json(value: Any) -> Any:
    """What stands in JSON for a key, or a part of a result, that JSON has no form for."""
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="backslashreplace")
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"a {type(value).__name__} has no form in JSON: {value!r}")


def _from_msgpack(payload: bytes) -> Any:
    return msgpack.unpackb(payload, strict_map_key=False)


def _to_msgpack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


def from_arrow(payload: bytes) -> pa.Table:
    """The table in an Arrow IPC stream."""
    with pa.ipc.open_stream(payload) as stream:
        return stream.read_all()


def to_arrow(value: Any) -> bytes:
    """A table or a record batch as an Arrow IPC stream."""
    if not isinstance(value, pa.Table | pa.RecordBatch):
        raise TypeError(f"the function gave back {type(value).__name__}: give an Arrow table or record batch")
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, value.schema) as stream:
        stream.write(value)
    return bytes(buffer.getvalue())


DECODE: dict[Codec, Callable[[bytes], Any]] = {
    Codec.BYTES: bytes,
    Codec.TEXT: bytes.decode,
    Codec.JSON: json.loads,
    Codec.MSGPACK: _from_msgpack,
    Codec.ARROW: from_arrow,
}
ENCODE: dict[Codec, Callable[[Any], bytes]] = {
    Codec.BYTES: _as_bytes,
    Codec.TEXT: _as_bytes,
    Codec.JSON: _to_json,
    Codec.MSGPACK: _to_msgpack,
    Codec.ARROW: to_arrow,
}
