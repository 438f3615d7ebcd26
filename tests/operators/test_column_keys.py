"""Keys in columns: the bytes that the codec gives for each value, or doubtful."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.operators.column_keys import has_key_column, key_column
from procession.operators.column_values import as_objects, settled
from procession.planner.keys import PLAIN_KEYS

INSTANTS = st.datetimes(timezones=st.just(UTC))
LOCAL = st.datetimes()
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1) | st.sampled_from([2**63 - 1, 2**63])),
    "float": (pa.float64(), st.floats() | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324])),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text() | st.sampled_from(["", "\x00", "a\x00", "\U0001f600"])),
    "date": (pa.date32(), st.dates() | st.sampled_from([date.min, date.max])),
    "local": (pa.timestamp("us"), LOCAL | st.sampled_from([datetime.min, datetime.max])),  # noqa: DTZ901
    "instant": (pa.timestamp("us", "UTC"), INSTANTS | st.just(datetime(1, 1, 1, tzinfo=UTC))),
}


def encoded(values: list[Any]) -> list[bytes | str]:
    """Each key as the codec encodes it, or the error that it raises."""
    found: list[bytes | str] = []
    for value in values:
        try:
            found.append(PLAIN_KEYS.encode(value))
        except ValueError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("name", VALUES)
def test_a_column_of_keys_has_the_bytes_of_each_key(name: str) -> None:
    kind, strategy = VALUES[name]

    @given(st.lists(st.none() | strategy, max_size=8), st.integers(0, 2))
    def check(values: list[Any], start: int) -> None:
        column = pa.array(values, kind)[start:]
        objects = as_objects(column)
        found = settled(key_column(column), lambda row: PLAIN_KEYS.encode(objects[row]))
        rows = range(len(objects)) if found.rows is None else found.rows
        made: dict[int, bytes | str] = dict(zip(rows, as_list(found.values), strict=True))
        made |= {row: str(error) for row, error in found.errors}
        assert [made[row] for row in range(len(objects))] == encoded(objects)

    assert has_key_column(kind)
    check()


def as_list(values: Any) -> list[bytes]:
    listed: list[bytes] = values.to_pylist()
    return listed


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.float64(), [1.5, -0.0, math.inf, None]),
        (pa.uint64(), [0, 2**63 - 1]),
        (pa.date32(), [date.min, date.max]),
        (pa.timestamp("us", "UTC"), [datetime(1, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, 23, 59, tzinfo=UTC)]),
    ],
)
def test_few_values_are_doubtful(kind: pa.DataType, values: list[Any]) -> None:
    assert key_column(pa.array(values, kind)).doubts is None


def test_a_value_that_is_not_a_key_or_too_large_is_doubtful() -> None:
    for kind, values in ((pa.float64(), [math.nan, None]), (pa.uint64(), [2**63, 1])):
        doubts = key_column(pa.array(values, kind)).doubts
        assert doubts is not None
        assert doubts.tolist() == [True, False]


@pytest.mark.parametrize("kind", [pa.decimal128(6, 2), pa.binary(), pa.timestamp("ms"), pa.list_(pa.int8())])
def test_keys_of_other_types_are_encoded_one_by_one(kind: pa.DataType) -> None:
    assert not has_key_column(kind)
