"""Keys: the keys of records, as bytes that sort like the keys.

Invariant: `encode(a) < encode(b)` exactly if a sorts before b, and `decode(encode(a))` is equal to a and of the same
type. So the same encoding is used for the bucket, the state's name and the order of results. Encodes the results of the
user's key functions, for `operators/partitioning`, `operators/keyed` and the stages that return keys. Pure.

Two keys are the same if they have the same type and are equal. So 1, 1.0, True and Decimal(1) are four keys. 0.0 and
-0.0 are one key (decoded as 0.0), as are Decimal("1.5") and Decimal("1.50") (decoded as the shorter), and one instant
in two time zones (decoded in UTC). Keys of different types sort by type, in the order of the tags below.

    key      tag, then the body
    int      0x80 and 8 bytes, if it fits into 64 bits; else the length first, so that longer is further from 0
    text     UTF-8; inside a tuple a NUL is 00 FF, and 00 ends it
    tuple    its elements, each with its tag; 00 ends it
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from procession.operators.named_types import NO_TYPES, NamedTypes

END = 0x00
NONE, BOOL, INT, FLOAT, DECIMAL, DATE, DATETIME, INSTANT = 0x08, 0x10, 0x18, 0x20, 0x28, 0x30, 0x38, 0x40
UUID_, BYTES, TEXT, ENUM, TUPLE = 0x48, 0x50, 0x58, 0x60, 0x68

TAGS = frozenset(range(NONE, TUPLE + 1, 8))
"""The first bytes of encoded keys."""

NO_KEY = bytes([BYTES])
"""The key of records without a key: empty bytes."""

ALLOWED = (
    "None, bool, int, float, Decimal, date, datetime, UUID, bytes, str, a member of an enum in Pipeline(types=…), or a"
    " tuple of these"
)

_INT64 = 0x80
_ESCAPED = b"\x00\xff"
_MICROSECOND = timedelta(microseconds=1)
_FIRST_DAY = datetime(1, 1, 1)  # noqa: DTZ001  (without a time zone on purpose)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXPONENT_BIAS = 2**63
_PLAIN_EXPONENT_MAX = 64
"""A Decimal with at most this many zeros before its point is decoded without an exponent."""


@dataclass(frozen=True)
class RecordKey:
    """The key of a stage that uses the key which `key_by` gave to its records. The function is not called again,
    because stages in between may have changed the value. `given_by` are the functions of `key_by`, which identify the
    key in a checkpoint; there are several if branches meet before the stage."""

    given_by: tuple[Callable[[Any], Any], ...]


@dataclass(frozen=True)
class KeyCodec:
    """Encodes keys as bytes, and decodes them. Members of an enum are keys only if `types` lists the enum."""

    types: NamedTypes = NO_TYPES
    has_any_enum: bool = False
    """Whether members of any enum may be encoded, for keys that are looked up and never decoded."""

    def encode(self, key: Any) -> bytes:
        """Encode a key. Raises TypeError or ValueError if the value cannot be a key."""
        kind = type(key)
        if kind is str:
            return b"\x58" + key.encode()  # type: ignore[no-any-return]
        if kind is bytes:
            return b"\x50" + key  # type: ignore[no-any-return]
        return self._element(key)

    def column(self, keys: Sequence[Any]) -> pa.Array:
        """Encode many keys as a column. Raises like `encode`."""
        kinds = set(map(type, keys))
        if kinds == {str}:
            return tagged(pa.array(keys, pa.string()).cast(pa.binary()), TEXT)
        if kinds == {bytes}:
            return of_bytes(pa.array(keys, pa.binary()))
        if kinds == {int}:
            try:
                return integer_keys(np.array(keys, np.int64))
            except OverflowError:
                pass  # one by one
        return pa.array(list(map(self.encode, keys)), pa.binary())

    def decode(self, data: bytes) -> Any:
        """Decode a key."""
        tag = data[0]
        if tag == TEXT:
            return data[1:].decode()
        if tag == BYTES:
            return data[1:]
        key, end = self._read(data, 0)
        if end != len(data):
            raise ValueError(f"{data!r} is not an encoded key")
        return key

    def shown(self, keys: pa.Array) -> pa.Array:
        """Return a column of encoded keys as plain bytes: bytes unchanged, text as UTF-8, other keys as their `str`."""
        tags = set(pc.unique(pc.binary_slice(keys, 0, 1)).to_pylist())
        if tags <= {bytes([BYTES]), bytes([TEXT])}:
            return pc.binary_replace_slice(keys, start=0, stop=1, replacement=b"")
        encoded = keys.dictionary_encode()
        plain = pa.array([_plain(self.decode(key)) for key in encoded.dictionary.to_pylist()], pa.binary())
        return plain.take(encoded.indices)

    def _element(self, key: Any) -> bytes:
        """Encode a key as an element of a tuple, with a mark at its end."""
        if isinstance(key, Enum):
            kind = type(key)
            name = f"{kind.__module__}.{kind.__qualname__}" if self.has_any_enum else self.types.name_of(kind)
            return bytes([ENUM]) + _terminated(name.encode()) + self._element(key.value)
        if type(key) is tuple:
            return bytes([TUPLE]) + b"".join(map(self._element, key)) + bytes([END])
        encode = _ENCODE.get(type(key))
        if encode is None:
            raise TypeError(f"the key {_short(key)} is a {type(key).__name__}: use {ALLOWED}")
        return encode(key)

    def _read(self, data: bytes, at: int) -> tuple[Any, int]:
        """Return the element that begins here, and its end."""
        tag = data[at]
        if tag == TUPLE:
            elements = []
            at += 1
            while data[at] != END:
                element, at = self._read(data, at)
                elements.append(element)
            return tuple(elements), at + 1
        if tag == ENUM:
            name, at = _read_terminated(data, at + 1)
            value, at = self._read(data, at)
            return self.types.member(name.decode(), None, value), at
        return _DECODE[tag](data, at + 1)


PLAIN_KEYS = KeyCodec()
"""The codec for keys of built-in types only."""


def of_bytes(column: pa.Array) -> pa.Array:
    """Encode a column of keys that are plain bytes."""
    return tagged(column, BYTES)


def tagged(column: pa.Array, tag: int) -> pa.Array:
    """Encode a column of keys whose bytes follow their tag."""
    return pc.binary_replace_slice(column, start=0, stop=0, replacement=bytes([tag]))


def integer_keys(keys: npt.NDArray[np.int64]) -> pa.Array:
    """Encode many numbers that fit into 64 bits, like `_int`."""
    return fixed_keys(bytes([INT, _INT64]), (keys.view(np.uint64) ^ np.uint64(2**63)).astype(">u8"))


def fixed_keys(head: bytes, words: npt.NDArray[Any]) -> pa.Array:
    """Return a column of encoded keys that begin with these bytes, each followed by a number as it is in memory."""
    width = len(head) + words.itemsize
    rows = np.empty((len(words), width), np.uint8)
    rows[:, : len(head)] = np.frombuffer(head, np.uint8)
    rows[:, len(head) :] = words.view(np.uint8).reshape(-1, words.itemsize)
    offsets = np.arange(0, width * len(words) + 1, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(words), [None, pa.py_buffer(offsets), pa.py_buffer(rows)])


def _plain(key: Any) -> bytes:
    return key if isinstance(key, bytes) else str(key).encode()


def _short(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _terminated(data: bytes) -> bytes:
    return data.replace(b"\x00", _ESCAPED) + bytes([END])


def _read_terminated(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.index(END, at)
    while data[end : end + 2] == _ESCAPED:
        end = data.index(END, end + 2)
    return data[at:end].replace(_ESCAPED, b"\x00"), end + 1


def _inverted(data: bytes) -> bytes:
    return bytes(255 - byte for byte in data)


def _int(key: int) -> bytes:
    if -(2**63) <= key < 2**63:
        return struct.pack(">BBQ", INT, _INT64, key + 2**63)
    size = (key.bit_length() + 7) // 8
    body = struct.pack(">I", size) + abs(key).to_bytes(size, "big")
    return bytes([INT, _INT64 + 1]) + body if key > 0 else bytes([INT, _INT64 - 1]) + _inverted(body)


def _read_int(data: bytes, at: int) -> tuple[int, int]:
    if data[at] == _INT64:
        return int.from_bytes(data[at + 1 : at + 9], "big") - 2**63, at + 9
    is_negative = data[at] < _INT64
    body = _inverted(data[at + 1 :]) if is_negative else data[at + 1 :]
    size = int.from_bytes(body[:4], "big")
    found = int.from_bytes(body[4 : 4 + size], "big")
    return (-found if is_negative else found), at + 5 + size


def _float(key: float) -> bytes:
    if key != key:
        raise ValueError("the key is NaN, which is equal to nothing")
    # Adding zero turns -0.0 into 0.0. The bits of positive floats sort like the floats, those of negative floats
    # backwards.
    (bits,) = struct.unpack(">Q", struct.pack(">d", key + 0.0))
    return struct.pack(">BQ", FLOAT, bits ^ (2**64 - 1) if bits >> 63 else bits | 2**63)


def _read_float(data: bytes, at: int) -> tuple[float, int]:
    bits = int.from_bytes(data[at : at + 8], "big")
    (key,) = struct.unpack(">d", struct.pack(">Q", bits ^ 2**63 if bits >> 63 else bits ^ (2**64 - 1)))
    return key, at + 8


def _decimal(key: Decimal) -> bytes:
    """Encode a Decimal: 1 for minus infinity, 2 negative, 3 zero, 4 positive, 5 infinity; then the exponent of the
    first digit, and the digits without trailing zeros."""
    if key.is_nan():
        raise ValueError("the key is NaN, which is equal to nothing")
    if key.is_infinite():
        return bytes([DECIMAL, 1 if key < 0 else 5])
    if not key:
        return bytes([DECIMAL, 3])
    digits = bytes(digit + 1 for digit in key.as_tuple().digits).rstrip(b"\x01")
    body = struct.pack(">Q", key.adjusted() + _EXPONENT_BIAS) + digits + b"\x00"
    return bytes([DECIMAL, 2]) + _inverted(body) if key < 0 else bytes([DECIMAL, 4]) + body


def _read_decimal(data: bytes, at: int) -> tuple[Decimal, int]:
    sign = data[at]
    if sign in (1, 3, 5):
        return Decimal({1: "-Infinity", 3: "0", 5: "Infinity"}[sign]), at + 1
    body = _inverted(data[at + 1 :]) if sign == 2 else data[at + 1 :]
    end = body.index(0, 8)
    digits = [byte - 1 for byte in body[8:end]]
    exponent = int.from_bytes(body[:8], "big") - _EXPONENT_BIAS - len(digits) + 1
    if 0 < exponent <= _PLAIN_EXPONENT_MAX:
        digits, exponent = digits + [0] * exponent, 0
    return Decimal((int(sign == 2), tuple(digits), exponent)), at + 1 + end + 1


def _datetime(key: datetime) -> bytes:
    if key.utcoffset() is None:
        return struct.pack(">BQ", DATETIME, (key.replace(tzinfo=None) - _FIRST_DAY) // _MICROSECOND)
    try:
        key = key.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"the key {key!r} has no date in UTC") from None
    return struct.pack(">BQ", INSTANT, (key - _EPOCH) // _MICROSECOND + 2**63)


def _read_instant(data: bytes, at: int) -> tuple[datetime, int]:
    return _EPOCH + (int.from_bytes(data[at : at + 8], "big") - 2**63) * _MICROSECOND, at + 8


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    found, end = _read_terminated(data, at)
    return found.decode(), end


_ENCODE: dict[type[Any], Callable[[Any], bytes]] = {
    type(None): lambda _: bytes([NONE]),
    bool: lambda key: bytes([BOOL, key]),
    int: _int,
    float: _float,
    Decimal: _decimal,
    date: lambda key: struct.pack(">BI", DATE, key.toordinal()),
    datetime: _datetime,
    UUID: lambda key: bytes([UUID_]) + key.bytes,
    bytes: lambda key: bytes([BYTES]) + _terminated(key),
    str: lambda key: bytes([TEXT]) + _terminated(key.encode()),
}
_DECODE: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    NONE: lambda data, at: (None, at),
    BOOL: lambda data, at: (bool(data[at]), at + 1),
    INT: _read_int,
    FLOAT: _read_float,
    DECIMAL: _read_decimal,
    DATE: lambda data, at: (date.fromordinal(int.from_bytes(data[at : at + 4], "big")), at + 4),
    DATETIME: lambda data, at: (_FIRST_DAY + int.from_bytes(data[at : at + 8], "big") * _MICROSECOND, at + 8),
    INSTANT: _read_instant,
    UUID_: lambda data, at: (UUID(bytes=data[at : at + 16]), at + 16),
    BYTES: _read_terminated,
    TEXT: _read_text,
}
