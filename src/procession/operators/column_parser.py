"""The column parser: JSON payloads as one Arrow column of records, a whole batch at once.

Invariant: each payload yields exactly one row, and the row is what `SchemaJson.decode` returns for this payload. A
payload begins with `{` and ends with `}`, so it holds at least one object. No object continues in the next payload,
because `}` and `{` with only a line break between them end one object and begin another. So if there are as many rows
as payloads, each payload is one row. A payload of another form, or with a value that Arrow might read in another way,
goes through `decode`. Used by `operators/chain`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyarrow import types

from procession.operators.column_values import ColumnValues, Flags, any_of, joined_columns, nulls, settled
from procession.operators.record_schema import SchemaJson

PIECE_RECORDS = 8192
PIECES = 8
"""Number of pieces into which a piece that Arrow refuses is cut, at most twice. Pieces that Arrow still refuses go
through Python."""
PIECE_RECORDS_MIN = PIECE_RECORDS // PIECES**2
DEPTH_MAX = 100
"""Maximum number of brackets in a payload that Arrow parses, because Arrow has no limit for nested objects. Python has
a limit."""
PAYLOAD_BYTES_MAX = 256 * 1024
"""Maximum size of a payload that Arrow parses. Larger payloads go through Python, one by one."""
JSON_SPACE = " \t\r\n"
END = 2**31 - 1

TIME = r"^[12]\d{3}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?"
ZONED, LOCAL = TIME + r"(Z|[+-](0\d|1[0-2]):[0-5]\d)$", TIME + "$"
DAY = r"^[12]\d{3}-\d{2}-\d{2}$"


class ParsedRecords(NamedTuple):
    """Records as a column, the rows that have a record (None: all rows), and the errors of the others."""

    values: pa.Array
    rows: list[int] | None
    errors: list[tuple[int, Exception]]


def why_not(codec: SchemaJson) -> str:
    """Return why records of this schema are not parsed as columns. Empty: they are."""
    nested = next((field.name for field in codec.schema if types.is_nested(field.type)), None)
    return "" if nested is None else f"its field {nested!r} is nested"


def parsed(codec: SchemaJson, payloads: pa.Array) -> ParsedRecords:
    """Parse the records in these payloads."""
    values: list[pa.Array] = []
    rows: list[int] = []
    errors: list[tuple[int, Exception]] = []
    start = 0
    for part, column in _pieces(codec, payloads, PIECE_RECORDS):
        records = settled(column, lambda row, part=part: codec.decode(part[row].as_py()))  # type: ignore[misc]
        assert not isinstance(records.values, list), "what the codec decodes fits the schema"
        values.append(records.values)
        rows += range(start, start + len(part)) if records.rows is None else [start + row for row in records.rows]
        errors += [(start + row, error) for row, error in records.errors]
        start += len(part)
    whole = joined_columns(values) if values else pa.array([], codec.record_type)
    assert not isinstance(whole, list)
    return ParsedRecords(whole, rows if errors else None, errors)


def _pieces(codec: SchemaJson, payloads: pa.Array, count: int) -> Iterator[tuple[pa.Array, ColumnValues]]:
    """Yield the payloads in pieces, each with its records."""
    for start in range(0, len(payloads), count):
        part = payloads.slice(start, count)
        try:
            yield part, _column(codec, part)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            if count > PIECE_RECORDS_MIN:
                yield from _pieces(codec, part, count // PIECES)
            else:
                nothing = pa.nulls(len(part), codec.record_type)
                yield part, ColumnValues(nothing, np.ones(len(part), np.bool_))


def _column(codec: SchemaJson, payloads: pa.Array) -> ColumnValues:
    """Parse payloads as a column of records. Raises ArrowInvalid if not each is exactly one object, or if values have
    other types."""
    text = pc.ascii_trim(payloads.cast(pa.string()), JSON_SPACE)  # Arrow refuses text that is not UTF-8
    are_odd = ~_flags(pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}")))
    are_odd |= _flags(pc.greater(pc.binary_length(text), PAYLOAD_BYTES_MAX))
    lines = pc.binary_replace_slice(text.cast(pa.binary()), start=END, stop=END, replacement=b"\n")
    if _brackets(_data(lines)) > len(text) + DEPTH_MAX:
        brackets = pc.add(pc.count_substring(text, "{"), pc.count_substring(text, "["))
        are_odd |= _flags(pc.greater(brackets, DEPTH_MAX))
    if are_odd.any():
        lines = pc.if_else(pa.array(are_odd), pa.scalar(b"{}\n"), lines)
    data = _data(lines)
    kinds = [(field.name, _read_as(field.type)) for field in codec.schema]
    table = pj.read_json(
        pa.BufferReader(data),
        pj.ReadOptions(use_threads=False, block_size=max(1, data.size)),
        pj.ParseOptions(explicit_schema=pa.schema(kinds), unexpected_field_behavior="ignore"),
    )
    if table.num_rows != len(text):
        raise pa.ArrowInvalid("a payload has several objects")
    columns = [_typed(table.column(field.name).combine_chunks(), field.type) for field in codec.schema]
    doubts = any_of(
        are_odd if are_odd.any() else None,
        *(column.doubts for column in columns),
        *(nulls(column.values) for column, field in zip(columns, codec.schema, strict=True) if not field.nullable),
    )
    arrays = [column.values for column in columns]
    return ColumnValues(pa.StructArray.from_arrays(arrays, fields=list(codec.record_type)), doubts)


def _read_as(kind: pa.DataType) -> pa.DataType:
    """Return the type as which Arrow reads a field. Texts of other types are converted afterwards."""
    is_text = types.is_timestamp(kind) or types.is_date(kind) or types.is_decimal(kind)
    return pa.string() if is_text else kind


def _typed(values: pa.Array, kind: pa.DataType) -> ColumnValues:
    """Convert the values of a field. Also returns those that Python might read in another way."""
    if types.is_float64(kind):
        numbers = pc.fill_null(values, 1.0).to_numpy()
        # Python reads -0 as an integer, which has no sign.
        are_odd: Flags = ~np.isfinite(numbers) | ((numbers == 0) & np.signbit(numbers))
        return ColumnValues(values, are_odd if are_odd.any() else None)
    if not types.is_string(values.type) or types.is_string(kind):
        return ColumnValues(values)
    are_plain = pc.match_substring_regex(values, _plain_form(kind))
    are_other = _flags(pc.invert(pc.fill_null(are_plain, True)))  # None stays None
    doubts = are_other if are_other.any() else None
    plain = values if doubts is None else pc.if_else(pa.array(doubts), pa.scalar(None, pa.string()), values)
    if not types.is_timestamp(kind):
        return ColumnValues(plain.cast(kind), doubts)
    times = plain.cast(pa.timestamp("us", kind.tz))
    if kind.unit == "us":
        return ColumnValues(times, doubts)
    coarse = times.cast(kind, safe=False)
    is_finer = pc.fill_null(pc.not_equal(coarse.cast(times.type), times), False)
    return ColumnValues(coarse, any_of(doubts, _flags(is_finer)))


def _plain_form(kind: pa.DataType) -> str:
    """Return a pattern for texts from which Arrow and Python make the same value."""
    if types.is_timestamp(kind):
        return LOCAL if kind.tz is None else ZONED
    if types.is_date(kind):
        return DAY
    whole, scale = kind.precision - kind.scale, kind.scale
    point = rf"(\.\d{{1,{scale}}})?" if scale > 0 else ""
    return rf"^-?\d{{1,{whole}}}{point}$" if whole > 0 and scale >= 0 else r"^$"


def _data(lines: pa.Array) -> pa.Buffer:
    """Return the bytes of these lines, one after the other."""
    _, offsets, data = lines.buffers()
    ends = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return data.slice(int(ends[0]), int(ends[-1] - ends[0])) if len(lines) else pa.py_buffer(b"")


def _brackets(data: pa.Buffer) -> int:
    found = np.frombuffer(data, np.uint8)
    return int(np.count_nonzero(found == ord("{")) + np.count_nonzero(found == ord("[")))


def _flags(values: pa.Array) -> Flags:
    found: Flags = values.to_numpy(zero_copy_only=False)
    return found
