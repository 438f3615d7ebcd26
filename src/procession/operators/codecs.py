"""Codecs: convert a payload's bytes to a value for the user's functions, and values to bytes at a sink.

Invariant: a codec is a pair of functions, of one payload and of one value. An exception in them is an error of the
record. Data of a peer is never executed. Used by `operators/chain`. Pure.
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

from procession.operators.typed_json import as_fields
from procession.planner.graph import Node, PayloadCodec

TYPES = "str or bytes, or name the sink's codec"


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"the function returned {type(value).__name__}: return {TYPES}")


def _to_json(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray):
        raise TypeError("the function returned bytes, which JSON cannot represent: return decoded values")
    try:
        return _json_text(value, is_ascii=False).encode()
    except UnicodeEncodeError:  # half of a surrogate pair: JSON can escape it, UTF-8 cannot represent it
        return _json_text(value, is_ascii=True).encode()


def _json_text(value: Any, *, is_ascii: bool) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=is_ascii, allow_nan=False, default=_as_json)


def _as_json(value: Any) -> Any:
    """Return the JSON value for a key, or a part of a result, that JSON cannot represent itself."""
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="backslashreplace")
    return _as_plain(value, "JSON")


def _as_plain(value: Any, codec: str) -> Any:
    """Return the text, number or dict for a value that the codec cannot represent itself."""
    if isinstance(value, date | time):  # every datetime is also a date
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if (fields := as_fields(value)) is not None:
        return fields
    raise TypeError(f"{codec} cannot represent a {type(value).__name__}: {value!r}")


def _from_msgpack(payload: bytes) -> Any:
    return msgpack.unpackb(payload, strict_map_key=False)


def _to_msgpack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, default=_as_msgpack)
    return packed


def _as_msgpack(value: Any) -> Any:
    return _as_plain(value, "msgpack")


def from_arrow(payload: bytes) -> pa.Table:
    """Read the table in an Arrow IPC stream."""
    with pa.ipc.open_stream(payload) as stream:
        return stream.read_all()


def to_arrow(value: Any) -> bytes:
    """Write a table or a record batch as an Arrow IPC stream."""
    if not isinstance(value, pa.Table | pa.RecordBatch):
        raise TypeError(f"the function returned {type(value).__name__}: return an Arrow table or record batch")
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, value.schema) as stream:
        stream.write(value)
    return bytes(buffer.getvalue())


DECODE: dict[PayloadCodec, Callable[[bytes], Any]] = {
    PayloadCodec.BYTES: bytes,
    PayloadCodec.TEXT: bytes.decode,
    PayloadCodec.JSON: json.loads,
    PayloadCodec.MSGPACK: _from_msgpack,
    PayloadCodec.ARROW: from_arrow,
}
ENCODE: dict[PayloadCodec, Callable[[Any], bytes]] = {
    PayloadCodec.BYTES: _as_bytes,
    PayloadCodec.TEXT: _as_bytes,
    PayloadCodec.JSON: _to_json,
    PayloadCodec.MSGPACK: _to_msgpack,
    PayloadCodec.ARROW: to_arrow,
}


def decoder_of(source: Node) -> Callable[[bytes], Any]:
    """Return the function with which a source decodes a payload."""
    return DECODE[source.codec] if source.typed is None else source.typed.decode
