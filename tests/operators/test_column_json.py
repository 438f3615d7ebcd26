"""Records in columns are encoded as JSON with the same bytes that the codec writes for each record."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from procession.operators.codecs import ENCODE
from procession.operators.column_json import encoded, json_column
from procession.operators.column_values import as_objects
from procession.planner.graph import PayloadCodec

KIND = pa.struct(
    [
        *(("n", pa.int64()), ("small", pa.uint8()), ("x", pa.float64()), ("text", pa.string()), ("b", pa.bool_())),
        *(("at", pa.timestamp("us", tz="UTC")), ("ms", pa.timestamp("ms", tz="UTC")), ("local", pa.timestamp("s"))),
        *(("day", pa.date32()), ("price", pa.decimal128(12, 4)), ('a"\n', pa.int8())),
    ]
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
seconds = st.one_of(st.integers(-62_000_000_000, 253_000_000_000), st.integers(-3, 3))
times = st.builds(
    lambda second, part: EPOCH + timedelta(seconds=second, microseconds=part),
    seconds,
    st.sampled_from([0, 1, 250_000, 999_999]),
)
floats = st.one_of(
    st.floats(),
    st.integers(-(10**17), 10**17).map(float),
    st.decimals(-(10**6), 10**6, places=3).map(float),
    st.sampled_from([0.0, -0.0, 1e-4, 9.999e-5, 1e15, 999999999999999.9, 1e16, 1e22, 5e-324, 0.1 + 0.2]),
)
records = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "small": st.none() | st.integers(0, 255),
        "x": st.none() | floats,
        "text": st.none() | st.text() | st.sampled_from(['"', "\\", "\n", "\x00", "\x1f", "\x7f", "é", "\u2028", "/"]),
        "b": st.none() | st.booleans(),
        "at": st.none() | times,
        "ms": st.none() | times.map(lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000)),
        "local": st.none() | times.map(lambda time: time.replace(microsecond=0, tzinfo=None)),
        "day": st.none() | st.dates(),
        "price": st.none() | st.decimals(-(10**7), 10**7, places=4),
        'a"\n': st.none() | st.integers(-128, 127),
    }
)


def by_record(given_records: list[Any]) -> tuple[list[tuple[int, bytes]], list[tuple[int, str]]]:
    payloads, errors = [], []
    for row, record in enumerate(given_records):
        try:
            payloads.append((row, ENCODE[PayloadCodec.JSON](record)))
        except ValueError as error:
            errors.append((row, repr(error)))
    return payloads, errors


@given(st.lists(records, max_size=10))
@example([{"x": float("inf")}, {"x": 1e16}, {"at": datetime(2026, 3, 1, tzinfo=UTC), "price": Decimal("-0.5000")}])
@example([{"day": date(1, 1, 1), "at": datetime(999, 12, 31, tzinfo=UTC)}])
def test_the_bytes_and_errors_are_those_of_the_codec(given_records: list[dict[str, Any]]) -> None:
    column = pa.array([{field.name: record.get(field.name) for field in KIND} for record in given_records], KIND)
    found = encoded(column)
    rows = range(len(column)) if found.rows is None else found.rows
    payloads = found.values if isinstance(found.values, list) else found.values.to_pylist()
    errors = [(row, repr(error)) for row, error in found.errors]
    assert (list(zip(rows, payloads, strict=True)), errors) == by_record(as_objects(column))


@pytest.mark.parametrize(
    "plain",
    [
        {"n": 7, "x": 0.25, "text": "é", "b": True, "at": EPOCH, "day": date(2026, 3, 1), "price": Decimal("1.5000")},
        {"x": -123456789.125, "at": EPOCH + timedelta(microseconds=1), "local": datetime(2026, 3, 1)},  # noqa: DTZ001
        {"text": "", "n": None},
    ],
)
def test_plain_values_are_encoded_without_python(plain: dict[str, Any]) -> None:
    names = [field for field in KIND if field.name in plain]
    assert json_column(pa.array([plain] * 3, pa.struct(names))).doubts is None


def test_whole_floats_are_written_as_python_writes_them() -> None:
    column = pa.array([{"x": 0.0}, {"x": -0.0}, {"x": 1e14}, {"x": 1e22}], pa.struct([("x", pa.float64())]))
    assert json_column(column).doubts is None
    assert encoded(column).values.to_pylist() == [  # type: ignore[union-attr]
        b'{"x":0.0}',
        b'{"x":-0.0}',
        b'{"x":100000000000000.0}',
        b'{"x":1e+22}',
    ]
