"""Event times in columns: the nanoseconds that each value gives alone."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from procession.operators.column_keys import time_column
from procession.operators.column_values import as_objects
from procession.times import TIME_MAX, UNITS, nanoseconds


@pytest.mark.parametrize("unit", UNITS)
@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-(10**9), 10**9), max_size=5))
@example([TIME_MAX])
@example([-TIME_MAX - 1])
@example([TIME_MAX // 10**9 + 1])
def test_a_column_of_times_has_the_nanoseconds_of_each_time(unit: Any, values: list[int | None]) -> None:
    assert_times(pa.array(values, pa.int64()), unit, values)


@pytest.mark.parametrize("zone", [None, "UTC"])
@given(
    st.lists(
        st.none() | st.integers(-(10**15), 10**15).map(lambda us: datetime(1970, 1, 1) + timedelta(microseconds=us)),  # noqa: DTZ001
        max_size=5,
    )
)
@example([datetime(2043, 1, 26, 1, 53, 33)])  # noqa: DTZ001
@example([datetime(2043, 1, 27)])  # noqa: DTZ001
def test_a_column_of_moments_has_the_nanoseconds_of_each(zone: str | None, values: list[datetime | None]) -> None:
    column = pa.array(values, pa.timestamp("us")).cast(pa.timestamp("us", zone))
    assert_times(column, "ms", as_objects(column))


def assert_times(column: pa.Array, unit: Any, values: list[Any]) -> None:
    found = time_column(column, unit)
    if found is not None:
        assert found.dtype == np.int64
        assert found.tolist() == [nanoseconds(value, unit) for value in values]
        return
    assert not values or None in values or any(abs(exact(value, unit)) > TIME_MAX for value in values)


def exact(value: Any, unit: Any) -> int:
    try:
        return nanoseconds(value, unit)
    except ValueError:
        return TIME_MAX + 1


def test_times_of_other_types_are_converted_one_by_one() -> None:
    assert time_column(pa.array([1.5]), "s") is None
    assert time_column(pa.array([date(2026, 3, 1)]), "s") is None
