"""Records in columns as stored values, a whole batch at once.

Invariant: `operators/value_codec` decodes each of them to an equal record, with values of the same types, in the same
order of fields. The bytes are MessagePack, with numbers and texts in their longest form, which has one length for all
rows. Used by `operators/value_codec`, for exchanges. Pure.
"""

from __future__ import annotations

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

NIL, FALSE, TRUE = b"\xc0", b"\xc2", b"\xc3"
INT64, UINT64, FLOAT64, STR32, MAP32 = 0xD3, 0xCF, 0xCB, 0xDB, 0xDF
NOTHING = pa.scalar(b"", pa.binary())


def packed_records(records: pa.StructArray) -> pa.Array | None:
    """Return these records as a column of stored values. None: a field has a type that is stored in another way."""
    fields = list(records.type)
    if unpacked_field(records.type) is not None:
        return None
    parts: list[pa.Array | pa.Scalar] = [pa.scalar(bytes([MAP32]) + len(fields).to_bytes(4, "big"), pa.binary())]
    for place, field in enumerate(fields):
        parts.append(pa.scalar(msgpack.packb(field.name), pa.binary()))
        values = records.field(place)
        packed = _texts(values) if types.is_string(field.type) else _plain(values)
        parts.append(pc.fill_null(packed, NIL) if values.null_count else packed)
    return pc.binary_join_element_wise(*parts, NOTHING)


def unpacked_field(records: pa.StructType) -> pa.Field | None:
    """Return the first field of records of this type that is stored in another way, or None."""
    return next((field for field in records if _is_other(field.type)), None)


def _is_other(kind: pa.DataType) -> bool:
    return not (types.is_string(kind) or types.is_boolean(kind) or types.is_integer(kind) or types.is_float64(kind))


def _plain(values: pa.Array) -> pa.Array:
    """Return numbers and flags as stored values. None stays None."""
    if types.is_boolean(values.type):
        return pc.if_else(values, pa.scalar(TRUE, pa.binary()), pa.scalar(FALSE, pa.binary()))
    if types.is_float64(values.type):
        tag, wide = FLOAT64, pc.fill_null(values, 0.0).to_numpy().view(np.uint64)
    elif values.type == pa.uint64():
        tag, wide = UINT64, pc.fill_null(values, 0).to_numpy()
    else:
        tag, wide = INT64, pc.fill_null(values.cast(pa.int64()), 0).to_numpy().view(np.uint64)
    column = _tagged(tag, wide.astype(">u8"), 8)
    return column if not values.null_count else pc.if_else(values.is_valid(), column, pa.scalar(None, pa.binary()))


def _texts(values: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy()
    heads = _tagged(STR32, lengths.astype(">u4"), 4)
    return pc.binary_join_element_wise(heads, values.cast(pa.binary()), NOTHING)


def _tagged(tag: int, numbers: npt.NDArray[np.generic], width: int) -> pa.Array:
    """Return a column with a tag and a number of this many bytes in each row."""
    rows = np.empty((len(numbers), width + 1), np.uint8)
    rows[:, 0] = tag
    rows[:, 1:] = np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, width)
    offsets = np.arange(0, (width + 1) * len(numbers) + 1, width + 1, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(rows)])
