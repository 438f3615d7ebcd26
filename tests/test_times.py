"""Times are exact: the written value is compared to the nanosecond."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.times import NS, TIME_MAX, UNITS, all_nanoseconds, in_unit, length, nanoseconds

SECONDS_MAX = TIME_MAX // NS - 1


def written(time: float) -> int:
    """Return the whole number of nanoseconds nearest to the decimal number that a float prints as, computed with
    fractions."""
    return round(Fraction(repr(time)) * NS)


FLOATS = st.one_of(
    st.floats(-SECONDS_MAX, SECONDS_MAX),
    st.integers(-SECONDS_MAX * 1000, SECONDS_MAX * 1000).map(lambda ms: ms / 1000),
    st.integers(-SECONDS_MAX * 10**7, SECONDS_MAX * 10**7).map(lambda part: part / 10**7),
    st.floats(-1e-6, 1e-6),
)


@given(st.lists(FLOATS, min_size=1, max_size=20))
def test_a_float_is_the_decimal_number_that_it_prints_as(times: list[float]) -> None:
    assert [nanoseconds(time) for time in times] == [written(time) for time in times]
    found = all_nanoseconds(times)
    assert found is not None
    assert found.tolist() == [written(time) for time in times]


@given(st.integers(-(TIME_MAX // 1000), TIME_MAX // 1000))
def test_a_float_of_microseconds_is_converted_back_unchanged(micros: int) -> None:
    time = micros / 10**6
    assert in_unit(nanoseconds(time)) == time


@pytest.mark.parametrize("unit", UNITS)
@given(ns=st.integers(-TIME_MAX, TIME_MAX))
def test_whole_numbers_of_any_unit_are_exact_there_and_back(unit: Any, ns: int) -> None:
    count = ns // UNITS[unit]
    if abs(count * UNITS[unit]) <= TIME_MAX:
        assert nanoseconds(count, unit) == count * UNITS[unit]
        assert in_unit(nanoseconds(count, unit), unit) == count
        assert nanoseconds(Decimal(count), unit) == count * UNITS[unit]
        assert all_nanoseconds([count, count], unit).tolist() == [count * UNITS[unit]] * 2  # type: ignore[union-attr]


def test_datetimes_are_instants_and_without_a_zone_in_utc() -> None:
    at = datetime(2023, 11, 14, 22, 13, 20, 250001, tzinfo=UTC)
    assert nanoseconds(at) == 1_700_000_000_250_001_000
    assert nanoseconds(at.astimezone(timezone(timedelta(hours=5, minutes=30)))) == nanoseconds(at)
    assert nanoseconds(at.replace(tzinfo=None)) == nanoseconds(at)
    assert nanoseconds(at, "ms") == nanoseconds(at)


def test_decimals_keep_all_their_digits() -> None:
    assert nanoseconds(Decimal("1700000000.123456789")) == 1_700_000_000_123_456_789
    assert nanoseconds(Decimal("1700000000123.456789"), "ms") == 1_700_000_000_123_456_789
    assert nanoseconds(Decimal("0.0000000005")) == 0
    assert nanoseconds(Decimal("0.0000000015")) == 2


def test_floats_and_integers_of_numpy_are_numbers_too() -> None:
    assert nanoseconds(np.float64(1700000000.1)) == 1_700_000_000_100_000_000
    assert nanoseconds(np.int64(3), "ms") == 3_000_000


@pytest.mark.parametrize(
    "time", [float("nan"), float("inf"), 1e300, 10**40, Decimal("NaN"), Decimal("1e999999"), 2.4e9, -(10**10)]
)
def test_a_time_that_is_not_a_number_or_too_large_is_refused(time: Any) -> None:
    with pytest.raises(ValueError, match="out of range"):
        nanoseconds(time)
    assert all_nanoseconds([1.0 if isinstance(time, float) else 1, time]) is None


@pytest.mark.parametrize("time", ["1", None, True, b"1", timedelta(1)])
def test_a_value_of_another_type_than_a_time_is_refused(time: Any) -> None:
    with pytest.raises(TypeError, match=f"the time is a {type(time).__name__}"):
        nanoseconds(time)


def test_lengths_of_time_are_seconds_or_a_timedelta() -> None:
    assert length(0.25) == length(Decimal("0.25")) == length(timedelta(milliseconds=250)) == 250_000_000
    assert length(0.1) == 100_000_000
    assert length(86_400) == 86_400 * NS
    assert [length(wrong) for wrong in ("1", None, True, float("nan"), datetime(2020, 1, 1, tzinfo=UTC))] == [None] * 5
