"""Columns of PostgreSQL: the bytes of COPY for each type, and values that are refused instead of rounded."""

from __future__ import annotations

import datetime
import struct
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.connectors.postgres_types import (
    FLOATS,
    INTEGERS,
    JSONS,
    TEXTS,
    UNBOUNDED_NUMERIC,
    Column,
    binary_rows,
    text_rows,
)

UTC = datetime.UTC
LOCAL = datetime.datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC).replace(tzinfo=None)
"""A time without a zone."""
SAMPLE = "6f1c0e0a-0b1c-4d2e-8f3a-0123456789AB"


def column(base: str, **more: Any) -> Column:
    return Column("c", base, base, **more)


def numeric(precision: int, scale: int) -> Column:
    return column("numeric", type_modifier=(precision << 16 | scale & 0x7FF) + 4)


def row(*values: bytes | None) -> bytes:
    """A row as PostgreSQL's documentation of COPY BINARY describes it."""
    fields = [struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value for value in values]
    return struct.pack(">h", len(values)) + b"".join(fields)


def encoded(target: Column, *values: Any) -> list[bytes]:
    return binary_rows([(target, pa.array(values, target.arrow_type))]).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("base", "value", "data"),
    [
        ("bool", True, b"\x01"),
        ("int2", -2, struct.pack(">h", -2)),
        ("int4", 2**31 - 1, struct.pack(">i", 2**31 - 1)),
        ("int8", -(2**63), struct.pack(">q", -(2**63))),
        ("oid", 2**32 - 1, struct.pack(">I", 2**32 - 1)),
        ("float4", 1.5, struct.pack(">f", 1.5)),
        ("float8", 0.1, struct.pack(">d", 0.1)),
        ("float4", float("inf"), struct.pack(">f", float("inf"))),
        ("text", "zwölf\t", "zwölf\t".encode()),
        ("json", '{"a":1}', b'{"a":1}'),
        ("jsonb", '{"a":1}', b'\x01{"a":1}'),
        ("date", datetime.date(2000, 1, 2), struct.pack(">i", 1)),
        ("date", datetime.date(1999, 12, 31), struct.pack(">i", -1)),
        (
            "timestamp",
            datetime.datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC).replace(tzinfo=None),
            struct.pack(">q", 1_000_000),
        ),
        ("timestamptz", datetime.datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC), struct.pack(">q", -1_000_000)),
        ("uuid", SAMPLE, uuid.UUID(SAMPLE).bytes),
    ],
)
def test_a_value_is_encoded_as_postgresql_reads_it_and_so_is_a_null_beside_it(
    base: str, value: Any, data: bytes
) -> None:
    target = column(base)
    assert target.has_binary
    assert encoded(target, value) == [row(data)]
    assert encoded(target, None, value) == [row(None), row(data)]


@pytest.mark.parametrize("base", sorted(TEXTS | JSONS | {"bytea", "bool", "uuid", "date"} | {*INTEGERS, *FLOATS}))
def test_types_with_a_binary_encoding_here_encode_a_null(base: str) -> None:
    assert column(base).has_binary
    assert encoded(column(base), None) == [row(None)]


def test_an_enumeration_is_its_label_and_other_types_have_no_binary_encoding() -> None:
    mood = column("mood", is_enum=True)
    assert encoded(mood, "ok") == [row(b"ok")]
    assert not column("mood").has_binary
    assert not column("numeric").has_binary
    assert column("inet").arrow_type == pa.string(), "the server parses it"


@pytest.mark.parametrize("base", INTEGERS)
def test_a_number_that_does_not_fit_is_refused_and_the_limits_are_not(base: str) -> None:
    bits = {"int2": 16, "int4": 32, "int8": 64, "oid": 32}[base]
    low, high = (0, 2**bits - 1) if base == "oid" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    assert len(encoded(column(base), low, high)) == 2
    for outside in (low - 1, high + 1):
        if -(2**63) <= outside < 2**63:
            with pytest.raises(pa.ArrowInvalid, match=f"{outside} is out of the range of {base}"):
                encoded(column(base), 0, outside)


def test_a_float_that_would_become_infinite_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid, match="out of the range of float4"):
        encoded(column("float4"), 1.0, 1e39)


@pytest.mark.parametrize("text", ["", "x" * 36, SAMPLE[:-1], SAMPLE.replace("-", ""), SAMPLE[:8] + "0" + SAMPLE[9:]])
def test_a_text_that_is_not_a_uuid_is_refused_by_name(text: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match=f"{text!r} is no uuid"):
        encoded(column("uuid"), SAMPLE, text)


@given(st.lists(st.tuples(st.none() | st.integers(0, 9), st.none() | st.text(max_size=3), st.booleans()), min_size=1))
def test_rows_of_several_columns_are_the_fields_side_by_side(values: list[tuple[int | None, str | None, bool]]) -> None:
    numbers, texts, flags = (pa.array(list(some)) for some in zip(*values, strict=True))
    given_columns = [
        (column("int4"), numbers.cast(pa.int64())),
        (column("text"), texts.cast(pa.string())),
        (column("bool"), flags),
        (column("int2"), numbers.cast(pa.int64())),
    ]
    assert binary_rows(given_columns).to_pylist() == [
        row(
            None if number is None else struct.pack(">i", number),
            None if text is None else text.encode(),
            bytes([flag]),
            None if number is None else struct.pack(">h", number),
        )
        for number, text, flag in values
    ]


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        (numeric(10, 2), pa.decimal128(10, 2)),
        (numeric(38, 0), pa.decimal128(38, 0)),
        (numeric(39, 5), pa.decimal256(39, 5)),
        (numeric(77, 5), UNBOUNDED_NUMERIC),
        (numeric(2, 5), UNBOUNDED_NUMERIC),
        (numeric(2, -3), UNBOUNDED_NUMERIC),
        (column("numeric"), UNBOUNDED_NUMERIC),
    ],
)
def test_a_numeric_has_its_precision_and_scale_where_arrow_has_them(target: Column, kind: pa.DataType) -> None:
    assert target.arrow_type == kind


@pytest.mark.parametrize(
    ("base", "kind"),
    [
        ("bool", pa.bool_()),
        ("int2", pa.int64()),
        ("oid", pa.int64()),
        ("float4", pa.float64()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us")),
        ("timestamptz", pa.timestamp("us", "UTC")),
        ("text", pa.string()),
    ],
)
def test_values_come_in_the_type_of_their_column(base: str, kind: pa.DataType) -> None:
    assert column(base).arrow_type == kind


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("1.50", b"1.5"),
        ("100", b"100"),
        ("0.000", b"0"),
        ("-7.25", b"-7.25"),
        ("1200.0", b"1200"),
        ("0.0000000010", b"1E-9"),
        ("-0.00000000105", b"-1.05E-9"),
    ],
)
def test_an_unbounded_numeric_has_no_zeros_that_were_added(number: str, text: bytes) -> None:
    values = pa.array([Decimal(number)], UNBOUNDED_NUMERIC)
    assert column("numeric").as_text(values).to_pylist() == [text]


def test_a_bounded_numeric_keeps_the_zeros_of_its_scale() -> None:
    assert numeric(10, 2).as_text(pa.array([Decimal("1.50")], pa.decimal128(10, 2))).to_pylist() == [b"1.50"]


@given(st.lists(st.none() | st.text(st.sampled_from("a\\\t\n\rN"), max_size=5), min_size=1))
def test_a_line_of_text_has_one_end_and_is_read_back(values: list[str | None]) -> None:
    texts = pa.array(values, pa.string())
    for line, value in zip(
        text_rows([(column("inet"), texts), (column("text"), texts)]).to_pylist(), values, strict=True
    ):
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        one, other = line[:-1].split(b"\t")
        assert one == other
        unescaped = one.replace(b"\\\\", b"\0").replace(b"\\t", b"\t").replace(b"\\n", b"\n").replace(b"\\r", b"\r")
        assert (None if one == rb"\N" else unescaped.replace(b"\0", b"\\").decode()) == value


def test_bytes_in_text_format_are_hexadecimal() -> None:
    values = pa.array([b"\x00\xff", None], pa.binary())
    assert column("bytea").as_text(values).to_pylist() == [rb"\\x00ff", rb"\N"]
