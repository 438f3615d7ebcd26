"""The carriage: Python values as a column of bytes, for the way over an exchange, and back again.

The one rule: what comes out is what went in, type and all; a value for which that cannot be promised is refused, as the
error of the stage that made it. No pickle: what is read from a store that others can write to must not run. Pure.
Before it and after it `plan/chain`; between them `storage/runs`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import countOf
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from procession.plan.codecs import from_arrow, to_arrow

# How a value's bytes are to be read.
BYTES, TEXT, VALUE = 0, 1, 2
Forms = npt.NDArray[np.uint8]

# What msgpack does not know, or would give back as something else.
_TUPLE, _LARGE_INT, _TABLE, _BATCH = 1, 2, 3, 4


def pack(values: pa.Array | list[Any]) -> tuple[pa.Array, Forms]:
    """The values as a column of bytes, and how each is to be read. Raises what `packed_value` raises."""
    if not isinstance(values, list):
        form = TEXT if pa.types.is_string(values.type) else BYTES
        return values.cast(pa.binary()), np.full(len(values), form, np.uint8)
    kinds = set(map(type, values))
    if kinds <= {bytes}:
        return pa.array(values, pa.binary()), np.full(len(values), BYTES, np.uint8)
    if kinds == {str}:
        return pa.array(values, pa.string()).cast(pa.binary()), np.full(len(values), TEXT, np.uint8)
    pairs = [packed_value(value) for value in values]
    return pa.array([data for data, _ in pairs], pa.binary()), np.array([form for _, form in pairs], np.uint8)


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


def packed_value(value: Any) -> tuple[bytes, int]:
    """One value. Raises TypeError if it could not be given back as it is."""
    if type(value) is bytes:
        return value, BYTES
    if type(value) is str:
        return value.encode(), TEXT
    return packed(value), VALUE


def unpack(payload: pa.Array, forms: Forms) -> pa.Array | list[Any]:
    """The values again: as Arrow where all are bytes or all are text, else as a list."""
    if not len(forms) or (forms[0] != VALUE and (forms == forms[0]).all()):
        return payload.cast(pa.string()) if len(forms) and forms[0] == TEXT else payload
    return [READ[form](data) for data, form in zip(payload.to_pylist(), forms.tolist(), strict=True)]


def packed(value: Any) -> bytes:
    """One value, whatever it is, as `READ[VALUE]` reads it. Raises TypeError if it could not be given back as it is."""
    data: bytes = msgpack.packb(value, default=_extended, strict_types=True)
    return data


def _extended(value: Any) -> msgpack.ExtType:
    if type(value) is tuple:
        return msgpack.ExtType(_TUPLE, packed(list(value)))
    if type(value) is int:
        return msgpack.ExtType(_LARGE_INT, str(value).encode())
    if isinstance(value, pa.Table):
        return msgpack.ExtType(_TABLE, to_arrow(value))
    if isinstance(value, pa.RecordBatch):
        return msgpack.ExtType(_BATCH, to_arrow(value))
    raise TypeError(
        f"a {type(value).__name__} cannot go over an exchange, nor into a state: give bytes, text, numbers, lists,"
        " tuples, dicts or Arrow"
    )


def _value(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=_from_extended, strict_map_key=False)


def _from_extended(kind: int, data: bytes) -> Any:
    match kind:
        case 1:
            return tuple(_value(data))
        case 2:
            return int(data)
        case 3:
            return from_arrow(data)
        case 4:
            table = from_arrow(data).combine_chunks()
            return next(iter(table.to_batches()), pa.RecordBatch.from_pylist([], schema=table.schema))
        case _:
            raise ValueError(f"a run holds a value of kind {kind}, which nobody wrote")


READ: dict[int, Callable[[bytes], Any]] = {BYTES: bytes, TEXT: bytes.decode, VALUE: _value}
