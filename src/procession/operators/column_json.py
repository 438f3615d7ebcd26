"""Records in columns as JSON payloads, a whole batch at once.

Invariant: the bytes are those that `operators/codecs` writes for each record. Arrow might write some values in another
way: a text that must be escaped, a float that is not finite, a time before the year 1000. Rows with such values are
doubtful, and that codec writes them. Used by `operators/chain_output`. Pure.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from procession.operators.codecs import ENCODE
from procession.operators.column_values import ColumnValues, Flags, Settled, any_of, as_objects, settled
from procession.planner.graph import PayloadCodec

ESCAPED = r'["\\\x00-\x1f]'
SCALE_MAX = 6
"""Decimals with more digits after the point may have an exponent."""
EARLIEST, LATEST = (datetime(year, 1, 1, tzinfo=UTC) for year in (1000, 9999))
SECOND = 1_000_000


def encoded(records: pa.StructArray) -> Settled:
    """Return the payloads of these records."""
    column = json_column(records)
    if column.doubts is None:
        return Settled(column.values, None, [])
    rows = np.flatnonzero(column.doubts)
    doubtful = dict(zip(rows.tolist(), as_objects(records.take(pa.array(rows))), strict=True))
    return settled(column, lambda row: ENCODE[PayloadCodec.JSON](doubtful[row]))


def json_column(records: pa.StructArray) -> ColumnValues:
    """Return the payloads of these records, and which of them are doubtful."""
    parts: list[pa.Array | pa.Scalar] = []
    doubts: list[Flags | None] = []
    for place, field in enumerate(records.type):
        name = json.dumps(field.name, ensure_ascii=False)
        values, are_doubtful = _texts(records.field(place))
        parts += [pa.scalar(f"{',' if place else '{'}{name}:"), pc.fill_null(values, "null")]
        doubts.append(are_doubtful)
    payloads = pc.binary_join_element_wise(*parts, pa.scalar("}"), pa.scalar(""))
    return ColumnValues(payloads.cast(pa.binary()), any_of(*doubts))


def _texts(values: pa.Array) -> ColumnValues:
    """Return the JSON texts of the values of a field. None becomes null."""
    kind = values.type
    if types.is_string(kind):
        return ColumnValues(_quoted(values), _flags(pc.match_substring_regex(values, ESCAPED)))
    if types.is_boolean(kind):
        return ColumnValues(pc.if_else(values, "true", "false"))
    if types.is_float64(kind):
        listed = values.to_pylist()  # written by Python, because Arrow writes 1.0 as 1
        texts = pa.array([None if number is None else repr(number) for number in listed], pa.string())
        return ColumnValues(texts, _flags(pc.invert(pc.is_finite(values))))
    if types.is_integer(kind):
        return ColumnValues(values.cast(pa.string()))
    if types.is_decimal(kind) and 0 <= kind.scale <= SCALE_MAX:
        return ColumnValues(_quoted(values.cast(pa.string())))
    if types.is_date32(kind):
        return ColumnValues(_quoted(values.cast(pa.string())), _flags(_is_far(values.cast(pa.timestamp("us", "UTC")))))
    if types.is_timestamp(kind):
        return _times(values.cast(pa.timestamp("us", kind.tz)))
    return ColumnValues(pa.nulls(len(values), pa.string()), np.ones(len(values), np.bool_))


def _times(times: pa.Array) -> ColumnValues:
    """Return times as `isoformat` writes them, with microseconds only if there are some."""
    plain = times.cast(pa.int64())
    is_whole = pc.equal(pc.multiply(pc.divide(plain, SECOND), SECOND), plain)
    local = times.cast(pa.timestamp("us"))
    text = pc.if_else(is_whole, local.cast(pa.timestamp("s"), safe=False).cast(pa.string()), local.cast(pa.string()))
    text = pc.utf8_replace_slice(text, start=10, stop=11, replacement="T")
    zoned = text if times.type.tz is None else pc.binary_join_element_wise(text, "+00:00", "")
    return ColumnValues(_quoted(zoned), _flags(_is_far(plain.cast(pa.timestamp("us", "UTC")))))


def _is_far(times: pa.Array) -> pa.Array:
    """Whether each of these times has a year that Arrow or Python does not write with four digits."""
    return pc.or_(pc.less(times, pa.scalar(EARLIEST, times.type)), pc.greater(times, pa.scalar(LATEST, times.type)))


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar('"'), texts, pa.scalar('"'), pa.scalar(""))


def _flags(values: pa.Array) -> Flags | None:
    found: Flags = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return found if found.any() else None
