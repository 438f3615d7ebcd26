"""The value codec: Python values as a column of bytes, for exchanges and states, and back again.

Invariant: what is decoded is equal to what was encoded, and of the same type. Any other value is refused, as an
error of the stage that made it. There is no pickle, because reading a store that others can write to must not run code.
Dataclasses, named tuples, pydantic models and enums are those that the app lists (`operators/named_types`). Used by
`operators/chain`, for `storage/run_store` and `storage/state_store`. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from functools import cached_property
from operator import countOf
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from procession.errors import PlanError
from procession.operators.codecs import from_arrow, to_arrow
from procession.operators.column_pack import packed_records
from procession.operators.column_values import as_objects, is_records
from procession.operators.named_types import NO_TYPES, NamedTypes, is_model, is_named_tuple, is_storable, model_parts

# How the bytes of a value are decoded.
BYTES, TEXT, VALUE = 0, 1, 2
Forms = npt.NDArray[np.uint8]

# Types that msgpack lacks, or would decode as another type. The numbers are in stored files: never reuse one.
_TUPLE, _LARGE_INT, _TABLE, _BATCH = 1, 2, 3, 4
_SET, _FROZENSET, _ORDERED_DICT, _BYTEARRAY = 5, 6, 7, 8
_DATE, _TIME, _DATETIME, _TIMEDELTA, _DECIMAL, _UUID = 9, 10, 11, 12, 13, 14
_ENUM, _NAMED_TUPLE, _DATACLASS, _MODEL = 15, 16, 17, 18

ALLOWED = (
    "None, bool, int, float, str, bytes, bytearray, list, tuple, dict, OrderedDict, set, frozenset, date, time,"
    " datetime, timedelta, Decimal, UUID, Arrow tables and batches, and classes that Pipeline(types=[…]) lists"
)
SHOWN_MAX = 80
PYDANTIC_ZONE = "TzInfo"
"""The class of the fixed offsets in times that pydantic reads from text."""

_CONTAINERS, _BUFFERS = frozenset({list, dict}), frozenset({bytearray, memoryview})
_MICROSECOND = timedelta(microseconds=1)
_DECIMAL_BITS_MAX = 1024
"""Larger integers are stored in hexadecimal, because Python converts at most 4,300 decimal digits."""
_FIRST_DAY = datetime(1, 1, 1)  # noqa: DTZ001  (without a time zone on purpose)


def as_column(values: list[Any]) -> pa.Array | list[Any]:
    """Return values as a column if all of them are bytes, otherwise as they are."""
    is_plain = values and countOf(map(type, values), bytes) == len(values)
    return pa.array(values, pa.binary()) if is_plain else values


def as_payloads(values: list[Any]) -> pa.Array | list[Any]:
    """Return values as a column of bytes, as a sink writes them, if all are bytes or text. Otherwise returns them as
    they are."""
    try:
        column = pa.array(values, pa.binary())
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, UnicodeEncodeError):
        return values
    return values if column.null_count else column  # Arrow accepts None as a value; this codec does not


@dataclass(frozen=True)
class ValueCodec:
    """Encodes values as bytes, and decodes them. Values of dataclasses, named tuples and enums are accepted only if
    `types` lists their class."""

    types: NamedTypes = NO_TYPES

    def pack(self, values: pa.Array | list[Any]) -> tuple[pa.Array, Forms]:
        """Encode the values as a column of bytes. Also returns the form of each. Raises like `packed_value`."""
        if is_records(values):
            if (records := packed_records(values)) is not None:
                return records, np.full(len(values), VALUE, np.uint8)
            values = as_objects(values)
        if not isinstance(values, list):
            form = TEXT if pa.types.is_string(values.type) else BYTES
            return values.cast(pa.binary()), np.full(len(values), form, np.uint8)
        kinds = set(map(type, values))
        if kinds <= {bytes}:
            return pa.array(values, pa.binary()), np.full(len(values), BYTES, np.uint8)
        if kinds == {str}:
            with suppress(UnicodeEncodeError):  # of a lone surrogate
                return pa.array(values, pa.string()).cast(pa.binary()), np.full(len(values), TEXT, np.uint8)
        pairs = [self.packed_value(value) for value in values]
        return pa.array([data for data, _ in pairs], pa.binary()), np.array([form for _, form in pairs], np.uint8)

    def packed_value(self, value: Any) -> tuple[bytes, int]:
        """Encode one value. Returns its bytes and its form. Raises TypeError or ValueError if it could not be decoded
        to an equal value."""
        if type(value) is bytes:
            return value, BYTES
        if type(value) is str:
            with suppress(UnicodeEncodeError):
                return value.encode(), TEXT
        return self.packed(value), VALUE

    def unpack(self, payload: pa.Array, forms: Forms) -> pa.Array | list[Any]:
        """Decode values: as Arrow if all are bytes or all are text, otherwise as a list."""
        if not len(forms) or (forms[0] != VALUE and (forms == forms[0]).all()):
            return payload.cast(pa.string()) if len(forms) and forms[0] == TEXT else payload
        read = self.read
        return [read[form](data) for data, form in zip(payload.to_pylist(), forms.tolist(), strict=True)]

    @cached_property
    def read(self) -> Mapping[int, Callable[[bytes], Any]]:
        """The decoders, by form."""
        return {BYTES: bytes, TEXT: bytes.decode, VALUE: self.decoded_value}

    def packed(self, value: Any) -> bytes:
        """Encode one value of any type, for `decoded_value`. Raises TypeError or ValueError if decoding could not give
        an equal value."""
        data = self._packed(value)
        # msgpack encodes a bytearray as bytes. Few values contain either, and this is a fast test for both.
        if (b"\xc4" in data or b"\xc5" in data or b"\xc6" in data) and _has_buffer(value):
            data = self._packed(_marked(value))
        return data

    def _packed(self, value: Any) -> bytes:
        try:
            data: bytes = msgpack.packb(value, default=self._extended, strict_types=True)
        except UnicodeEncodeError:  # text with a lone surrogate, which JSON may contain; it is encoded more slowly
            data = msgpack.packb(value, default=self._extended, strict_types=True, unicode_errors="surrogatepass")
        return data

    def decoded_value(self, data: bytes) -> Any:
        """Decode a value that `packed` encoded."""
        return msgpack.unpackb(data, ext_hook=self._from_extended, strict_map_key=False, unicode_errors="surrogatepass")

    def _extended(self, value: Any) -> msgpack.ExtType:
        kind = type(value)
        if (plain := _PLAIN.get(kind)) is not None:
            code, parts_of = plain
            parts = parts_of(value)
            return msgpack.ExtType(code, parts if type(parts) is bytes else self.packed(parts))
        if is_storable(kind):
            try:
                name = self.types.name_of(kind)
            except TypeError as error:
                raise TypeError(f"{_shown(value)} cannot be stored: {error}") from None
            if isinstance(value, Enum):
                # A member has a name; a combination of flags may have none.
                parts = [name, value.name, None] if value.name in kind.__members__ else [name, None, value.value]
                return msgpack.ExtType(_ENUM, self.packed(parts))
            if is_model(kind):
                return msgpack.ExtType(_MODEL, self.packed([name, *model_parts(value)]))
            names = value._fields if is_named_tuple(kind) else [field.name for field in fields(value)]
            code = _NAMED_TUPLE if is_named_tuple(kind) else _DATACLASS
            return msgpack.ExtType(code, self.packed([name, {field: getattr(value, field) for field in names}]))
        if isinstance(value, pa.Table):
            return msgpack.ExtType(_TABLE, to_arrow(value))
        if isinstance(value, pa.RecordBatch):
            return msgpack.ExtType(_BATCH, to_arrow(value))
        raise TypeError(
            f"{_shown(value)} is a {kind.__module__}.{kind.__qualname__}, which can be neither exchanged nor stored:"
            f" use {ALLOWED}"
        )

    def _from_extended(self, code: int, data: bytes) -> Any:
        if code in _READ_BYTES:
            return _READ_BYTES[code](data)
        parts = self.decoded_value(data)
        if code in _READ_PARTS:
            return _READ_PARTS[code](parts)
        match code:
            case 15:  # _ENUM
                name, member, value = parts
                return self.types.member(name, member, value)
            case 16 | 17:  # _NAMED_TUPLE, _DATACLASS
                name, values = parts
                return self.types.build(name, values)
            case 18:  # _MODEL
                name, *state = parts
                return self.types.made_model(name, *state)
            case _:
                raise ValueError(f"a stored value has the type code {code}, which no version writes")


def _has_buffer(value: Any) -> bool:
    """Whether there is a bytearray or a memoryview in this value, or in lists and dicts in it."""
    parts = value.values() if type(value) is dict else value if type(value) is list else (value,)
    kinds = set(map(type, parts))
    if not kinds.isdisjoint(_BUFFERS):
        return True
    return not kinds.isdisjoint(_CONTAINERS) and any(_has_buffer(part) for part in parts if type(part) in _CONTAINERS)


def _marked(value: Any) -> Any:
    """Return the same value with each bytearray wrapped, so that it is decoded as a bytearray."""
    if type(value) is bytearray:
        return msgpack.ExtType(_BYTEARRAY, bytes(value))
    if type(value) is memoryview:
        raise TypeError(f"a memoryview can be neither exchanged nor stored: use {ALLOWED}")
    if type(value) is list:
        return [_marked(part) for part in value]
    return {key: _marked(part) for key, part in value.items()} if type(value) is dict else value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 1]}…"


def _zone_parts(zone: tzinfo | None) -> Any:
    if zone is None:
        return None
    if type(zone) is timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        return [offset // _MICROSECOND, *name]
    if type(zone) is ZoneInfo and zone.key is not None:
        return zone.key
    if type(zone).__name__ == PYDANTIC_ZONE:
        return {PYDANTIC_ZONE: int(zone.utcoffset(None).total_seconds())}  # type: ignore[union-attr]
    raise TypeError(f"the time zone {zone!r} cannot be stored: use datetime.timezone or a ZoneInfo with a key")


def _zone(parts: Any) -> tzinfo | None:
    if parts is None:
        return None
    if isinstance(parts, str):
        try:
            return ZoneInfo(parts)
        except (ZoneInfoNotFoundError, ValueError):
            raise PlanError(
                f"a stored value has the time zone {parts!r}, which this machine does not know",
                next_step="install the tzdata package on every machine; nothing of this epoch is committed",
            ) from None
    if isinstance(parts, dict):
        from pydantic_core import TzInfo

        return TzInfo(parts[PYDANTIC_ZONE])
    offset, *name = parts
    return timezone(timedelta(microseconds=offset), *name)


def _datetime_parts(value: datetime) -> list[Any]:
    plain = value.replace(tzinfo=None, fold=0)
    return [(plain - _FIRST_DAY) // _MICROSECOND, value.fold, _zone_parts(value.tzinfo)]


def _datetime(parts: list[Any]) -> datetime:
    plain, fold, zone = parts
    return (_FIRST_DAY + timedelta(microseconds=plain)).replace(fold=fold, tzinfo=_zone(zone))


def _time_parts(value: time) -> list[Any]:
    return [value.hour, value.minute, value.second, value.microsecond, value.fold, _zone_parts(value.tzinfo)]


def _time(parts: list[Any]) -> time:
    hour, minute, second, microsecond, fold, zone = parts
    return time(hour, minute, second, microsecond, _zone(zone), fold=fold)


def _ordered(parts: list[Any]) -> OrderedDict[Any, Any]:
    return OrderedDict(zip(parts[::2], parts[1::2], strict=True))


def _batch(data: bytes) -> pa.RecordBatch:
    table = from_arrow(data).combine_chunks()
    return next(iter(table.to_batches()), pa.RecordBatch.from_pylist([], schema=table.schema))


# How each type is stored: as bytes, or as a list of values.
_PLAIN: dict[type[Any], tuple[int, Callable[[Any], Any]]] = {
    tuple: (_TUPLE, list),
    int: (_LARGE_INT, lambda value: (str(value) if value.bit_length() < _DECIMAL_BITS_MAX else hex(value)).encode()),
    set: (_SET, list),
    frozenset: (_FROZENSET, list),
    OrderedDict: (_ORDERED_DICT, lambda value: [part for pair in value.items() for part in pair]),
    date: (_DATE, lambda value: value.isoformat().encode()),
    time: (_TIME, _time_parts),
    datetime: (_DATETIME, _datetime_parts),
    timedelta: (_TIMEDELTA, lambda value: [value.days, value.seconds, value.microseconds]),
    Decimal: (_DECIMAL, lambda value: str(value).encode()),
    UUID: (_UUID, lambda value: value.bytes),
}
_READ_BYTES: dict[int, Callable[[bytes], Any]] = {
    _LARGE_INT: lambda data: int(data, 0),
    _TABLE: from_arrow,
    _BATCH: _batch,
    _BYTEARRAY: bytearray,
    _DATE: lambda data: date.fromisoformat(data.decode()),
    _DECIMAL: lambda data: Decimal(data.decode()),
    _UUID: lambda data: UUID(bytes=data),
}
_READ_PARTS: dict[int, Callable[[Any], Any]] = {
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _ORDERED_DICT: _ordered,
    _TIME: _time,
    _DATETIME: _datetime,
    _TIMEDELTA: lambda parts: timedelta(*parts),
}

PLAIN = ValueCodec()
"""For values of built-in types only."""
