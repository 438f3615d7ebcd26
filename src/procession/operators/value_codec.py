"""The value codec: Python values as a column of bytes, for exchanges and states, and back again.

The one rule: what is decoded is equal to what was encoded, and of the same type. A value for which that cannot be
promised is refused, as an error of the stage that made it. No pickle: reading a store that others can write to must not
run code. Dataclasses, named tuples and enums are those that the app lists (`operators/named_types`). Pure. Used by
`operators/chain`, for `storage/run_store` and `storage/state_store`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
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
from procession.operators.named_types import NO_TYPES, NamedTypes, is_named_tuple, is_storable

# How a value's bytes are to be read.
BYTES, TEXT, VALUE = 0, 1, 2
Forms = npt.NDArray[np.uint8]

# What msgpack does not know, or would give back as something else. The numbers are in stored files: never reuse one.
_TUPLE, _LARGE_INT, _TABLE, _BATCH = 1, 2, 3, 4
_SET, _FROZENSET, _ORDERED_DICT, _BYTEARRAY = 5, 6, 7, 8
_DATE, _TIME, _DATETIME, _TIMEDELTA, _DECIMAL, _UUID = 9, 10, 11, 12, 13, 14
_ENUM, _NAMED_TUPLE, _DATACLASS = 15, 16, 17

ALLOWED = (
    "None, bool, int, float, str, bytes, bytearray, list, tuple, dict, OrderedDict, set, frozenset, date, time,"
    " datetime, timedelta, Decimal, UUID, Arrow tables and batches, and classes that Pipeline(types=[…]) lists"
)
SHOWN_MAX = 80

_CONTAINERS, _BUFFERS = frozenset({list, dict}), frozenset({bytearray, memoryview})
_MICROSECOND = timedelta(microseconds=1)
_FIRST_DAY = datetime(1, 1, 1)  # noqa: DTZ001  (it is the one without a zone that is meant)


def as_column(values: list[Any]) -> pa.Array | list[Any]:
    """Values that are all bytes, and nothing but bytes, as a column; others as they are."""
    is_plain = values and countOf(map(type, values), bytes) == len(values)
    return pa.array(values, pa.binary()) if is_plain else values


def as_payloads(values: list[Any]) -> pa.Array | list[Any]:
    """Values as a column of what a sink would write of them, if all are bytes or text; others as they are."""
    try:
        column = pa.array(values, pa.binary())
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, UnicodeEncodeError):
        return values
    return values if column.null_count else column  # Arrow takes None for a value; we do not


@dataclass(frozen=True)
class ValueCodec:
    """Values as bytes, and back. Values of dataclasses, named tuples and enums are stored only if `types` lists their
    class."""

    types: NamedTypes = NO_TYPES

    def pack(self, values: pa.Array | list[Any]) -> tuple[pa.Array, Forms]:
        """The values as a column of bytes, and how each is to be read. Raises what `packed_value` raises."""
        if not isinstance(values, list):
            form = TEXT if pa.types.is_string(values.type) else BYTES
            return values.cast(pa.binary()), np.full(len(values), form, np.uint8)
        kinds = set(map(type, values))
        if kinds <= {bytes}:
            return pa.array(values, pa.binary()), np.full(len(values), BYTES, np.uint8)
        if kinds == {str}:
            return pa.array(values, pa.string()).cast(pa.binary()), np.full(len(values), TEXT, np.uint8)
        pairs = [self.packed_value(value) for value in values]
        return pa.array([data for data, _ in pairs], pa.binary()), np.array([form for _, form in pairs], np.uint8)

    def packed_value(self, value: Any) -> tuple[bytes, int]:
        """One value. Raises TypeError or ValueError if it could not be given back as it is."""
        if type(value) is bytes:
            return value, BYTES
        if type(value) is str:
            return value.encode(), TEXT
        return self.packed(value), VALUE

    def unpack(self, payload: pa.Array, forms: Forms) -> pa.Array | list[Any]:
        """The values again: as Arrow where all are bytes or all are text, else as a list."""
        if not len(forms) or (forms[0] != VALUE and (forms == forms[0]).all()):
            return payload.cast(pa.string()) if len(forms) and forms[0] == TEXT else payload
        read = self.read
        return [read[form](data) for data, form in zip(payload.to_pylist(), forms.tolist(), strict=True)]

    @cached_property
    def read(self) -> Mapping[int, Callable[[bytes], Any]]:
        """How to read the bytes of a value, by its form."""
        return {BYTES: bytes, TEXT: bytes.decode, VALUE: self.thawed}

    def packed(self, value: Any) -> bytes:
        """One value, whatever it is, as `thawed` reads it. Raises TypeError or ValueError if it could not be given back
        as it is."""
        data: bytes = msgpack.packb(value, default=self._extended, strict_types=True)
        # msgpack takes a bytearray for bytes. Few values have either: the marks of binary data show that cheaply.
        if (b"\xc4" in data or b"\xc5" in data or b"\xc6" in data) and _has_buffer(value):
            data = msgpack.packb(_marked(value), default=self._extended, strict_types=True)
        return data

    def thawed(self, data: bytes) -> Any:
        """The value that `packed` made these bytes of."""
        return msgpack.unpackb(data, ext_hook=self._from_extended, strict_map_key=False)

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
                # A member has a name; what flags make together may have none.
                told = [name, value.name, None] if value.name in kind.__members__ else [name, None, value.value]
                return msgpack.ExtType(_ENUM, self.packed(told))
            names = value._fields if is_named_tuple(kind) else [field.name for field in fields(value)]
            code = _NAMED_TUPLE if is_named_tuple(kind) else _DATACLASS
            return msgpack.ExtType(code, self.packed([name, {one: getattr(value, one) for one in names}]))
        if isinstance(value, pa.Table):
            return msgpack.ExtType(_TABLE, to_arrow(value))
        if isinstance(value, pa.RecordBatch):
            return msgpack.ExtType(_BATCH, to_arrow(value))
        raise TypeError(
            f"{_shown(value)} is a {kind.__module__}.{kind.__qualname__}, which cannot go over an exchange, nor into a"
            f" state: give {ALLOWED}"
        )

    def _from_extended(self, code: int, data: bytes) -> Any:
        if code in _READ_BYTES:
            return _READ_BYTES[code](data)
        parts = self.thawed(data)
        if code in _READ_PARTS:
            return _READ_PARTS[code](parts)
        match code:
            case 15:  # _ENUM
                name, member, value = parts
                return _member(self.types.named(name), member, value)
            case 16 | 17:  # _NAMED_TUPLE, _DATACLASS
                name, values = parts
                return _made(self.types.named(name), values)
            case _:
                raise ValueError(f"a stored value is of kind {code}, which no version writes")


def _has_buffer(value: Any) -> bool:
    """Whether msgpack would meet a bytearray or a memoryview here: it looks into lists and dicts by itself."""
    parts = value.values() if type(value) is dict else value if type(value) is list else (value,)
    kinds = set(map(type, parts))
    if not kinds.isdisjoint(_BUFFERS):
        return True
    return not kinds.isdisjoint(_CONTAINERS) and any(_has_buffer(part) for part in parts if type(part) in _CONTAINERS)


def _marked(value: Any) -> Any:
    """The same, with each bytearray marked as one."""
    if type(value) is bytearray:
        return msgpack.ExtType(_BYTEARRAY, bytes(value))
    if type(value) is memoryview:
        raise TypeError(f"a memoryview cannot go over an exchange, nor into a state: give {ALLOWED}")
    if type(value) is list:
        return [_marked(part) for part in value]
    return {key: _marked(part) for key, part in value.items()} if type(value) is dict else value


def _shown(value: Any) -> str:
    told = repr(value)
    return told if len(told) <= SHOWN_MAX else f"{told[: SHOWN_MAX - 1]}…"


def _member(kind: type[Any], member: str | None, value: Any) -> Any:
    try:
        return kind(value) if member is None else kind[member]
    except (KeyError, ValueError):
        raise _changed(kind, f"no member {member or value!r}") from None


def _made(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """A named tuple or a dataclass with these fields. As when it is copied, its `__init__` is not called."""
    if is_named_tuple(kind):
        whole = {**kind._field_defaults, **values}
        if set(whole) != set(kind._fields):
            raise _changed(kind, f"the fields {', '.join(kind._fields)} instead of {', '.join(values)}")
        return kind._make(whole[name] for name in kind._fields)
    if not is_dataclass(kind):
        raise _changed(kind, "no fields")
    made = object.__new__(kind)
    known = {field.name: field for field in fields(kind)}
    if unknown := [name for name in values if name not in known]:
        raise _changed(kind, f"no field {unknown[0]!r}")
    for name, field in known.items():
        if name in values:
            value = values[name]
        elif field.default is not MISSING:
            value = field.default
        elif field.default_factory is not MISSING:
            value = field.default_factory()
        else:
            raise _changed(kind, f"a field {name!r} without a default, which stored values lack")
        object.__setattr__(made, name, value)
    return made


def _changed(kind: type[Any], what: str) -> PlanError:
    return PlanError(
        f"class {kind.__name__} has {what}: stored values are of an earlier form of it",
        next_step="give the class its old fields and members back, or give new fields defaults; nothing of this epoch"
        " was committed",
    )


def _zone_parts(zone: tzinfo | None) -> Any:
    if zone is None:
        return None
    if type(zone) is timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        return [offset // _MICROSECOND, *name]
    if type(zone) is ZoneInfo and zone.key is not None:
        return zone.key
    raise TypeError(f"the time zone {zone!r} cannot be stored: give datetime.timezone or a ZoneInfo with a key")


def _zone(parts: Any) -> tzinfo | None:
    if parts is None:
        return None
    if isinstance(parts, str):
        try:
            return ZoneInfo(parts)
        except (ZoneInfoNotFoundError, ValueError):
            raise PlanError(
                f"a stored value is in the time zone {parts!r}, which this machine does not know",
                next_step="install the tzdata package on every machine; nothing of this epoch was committed",
            ) from None
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


# Of each type what is stored: bytes as they are, or a list of values.
_PLAIN: dict[type[Any], tuple[int, Callable[[Any], Any]]] = {
    tuple: (_TUPLE, list),
    int: (_LARGE_INT, lambda value: str(value).encode()),
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
    _LARGE_INT: int,
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
"""For values of no class of an app's own."""
