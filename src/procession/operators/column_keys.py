"""Keys and event times in columns: a whole column of values as encoded keys, or as nanoseconds.

Invariant: each encoded key has the bytes that `KeyCodec.encode` returns for the value. Values that might be encoded in
another way, or are not keys (NaN), are doubtful; that codec encodes them. Each time is the result of
`times.nanoseconds` for the value. Used by `operators/chain_output` and `operators/function_calls`. Pure.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from procession.operators.column_values import ColumnValues
from procession.operators.stage_rows import Numbers
from procession.planner.keys import BOOL, DATE, DATETIME, FLOAT, INSTANT, NONE, TEXT, fixed_keys, integer_keys, tagged
from procession.times import TIME_MAX, UNITS, Unit

FALSE, TRUE, NO_VALUE = (pa.scalar(key, pa.binary()) for key in (bytes([BOOL, 0]), bytes([BOOL, 1]), bytes([NONE])))
SIGN = np.uint64(2**63)
FIRST_DAY, LAST_DAY, EPOCH_DAY = 1, date.max.toordinal(), date(1970, 1, 1).toordinal()
MICROSECOND = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_US, LAST_US = ((EPOCH.replace(year=1) - EPOCH) // MICROSECOND, (EPOCH.replace(year=9999) - EPOCH) // MICROSECOND)
"""The first moment of year 1, and the first of year 9999, in microseconds. Times outside are doubtful."""


def has_key_column(kind: pa.DataType) -> bool:
    """Whether values of this type are encoded as a column."""
    return bool(
        types.is_string(kind)
        or types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_float64(kind)
        or types.is_date32(kind)
        or (types.is_timestamp(kind) and kind.unit == "us" and kind.tz in (None, "UTC"))
    )


def key_column(values: pa.Array) -> ColumnValues:
    """Encode values of a type that `has_key_column`. Also returns which of them are doubtful."""
    keys, doubts = _plain(values)
    if values.null_count:
        is_key = values.is_valid()
        keys = pc.if_else(is_key, keys, NO_VALUE)
        if doubts is not None:
            doubts = doubts & is_key.to_numpy(zero_copy_only=False)
    return ColumnValues(keys, doubts if doubts is not None and doubts.any() else None)


def _plain(values: pa.Array) -> ColumnValues:
    """Encode the values that are not None."""
    kind = values.type
    if types.is_string(kind):
        return ColumnValues(tagged(values.cast(pa.binary()), TEXT))
    if types.is_boolean(kind):
        return ColumnValues(pc.if_else(values, TRUE, FALSE))
    if types.is_float64(kind):
        return _of_floats(_numbers(values, 0.0))
    if kind == pa.uint64():
        large = _numbers(values, 0)
        return ColumnValues(integer_keys(large.view(np.int64)), large >= SIGN)
    if types.is_integer(kind):
        return ColumnValues(integer_keys(_numbers(values.cast(pa.int64()), 0)))
    if types.is_date32(kind):
        days = _numbers(values.cast(pa.int32()), 0).astype(np.int64) + EPOCH_DAY
        return ColumnValues(fixed_keys(bytes([DATE]), days.astype(">u4")), (days < FIRST_DAY) | (days > LAST_DAY))
    micros = _numbers(values.cast(pa.int64()), 0)
    words = micros.view(np.uint64) ^ SIGN if kind.tz is not None else (micros - FIRST_US).view(np.uint64)
    keys = fixed_keys(bytes([DATETIME if kind.tz is None else INSTANT]), words.astype(">u8"))
    return ColumnValues(keys, (micros < FIRST_US) | (micros > LAST_US))


def _of_floats(numbers: Any) -> ColumnValues:
    """Encode floats. The bits of positive floats sort like the floats, those of negative floats backwards. -0.0 is
    0.0."""
    bits = (numbers + 0.0).view(np.uint64)
    words = np.where(bits >= SIGN, ~bits, bits | SIGN)
    return ColumnValues(fixed_keys(bytes([FLOAT]), words.astype(">u8")), np.isnan(numbers))


def _numbers(values: pa.Array, instead: Any) -> Any:
    return (pc.fill_null(values, instead) if values.null_count else values).to_numpy()


def time_column(values: pa.Array, unit: Unit) -> Numbers | None:
    """Convert times to nanoseconds. Returns None if a value must be converted alone, such as a float."""
    if values.type == pa.int64():
        factor = UNITS[unit]
    elif types.is_timestamp(values.type) and values.type.unit == "us":
        factor, values = UNITS["us"], values.cast(pa.int64())
    else:
        return None
    if values.null_count or not len(values):
        return None
    bounds = pc.min_max(values)
    most = TIME_MAX // factor
    if bounds["min"].as_py() < -most or bounds["max"].as_py() > most:
        return None
    times: Numbers = values.to_numpy() * factor
    return times
