"""Calendar windows: where days, weeks, months, quarters and years begin, also when clocks change."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession import Pipeline, PlanError, aggregates, windows
from procession.operators.calendar import Period, bounds
from procession.testing import run
from procession.times import NS, TIME_MAX
from tests.operators.random_pipelines import STREAMS
from tests.operators.test_window_operator import RECORDS
from tests.operators.timed_records import key, shown, time
from tests.spark.test_plans import expected, ran

HOUR = 3600 * NS
ZONES = ["UTC", "Europe/Berlin", "America/Sao_Paulo", "America/Havana", "Asia/Kathmandu", "Pacific/Apia"]


def at(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * NS


@pytest.mark.parametrize(
    ("period", "zone", "moment", "start", "hours"),
    [
        ("day", "UTC", "2026-03-29 12:00", "2026-03-29", 24),
        ("day", "Europe/Berlin", "2026-03-29 12:00", "2026-03-29", 23),
        ("day", "Europe/Berlin", "2026-10-25 12:00", "2026-10-25", 25),
        ("week", "Europe/Berlin", "2026-03-29 12:00", "2026-03-23", 7 * 24 - 1),
        ("month", "Europe/Berlin", "2026-03-31 23:59", "2026-03-01", 31 * 24 - 1),
        ("month", "UTC", "2024-02-29 00:00", "2024-02-01", 29 * 24),
        ("quarter", "UTC", "2026-05-31 12:00", "2026-04-01", 91 * 24),
        ("quarter", "UTC", "2026-12-31 12:00", "2026-10-01", 92 * 24),
        ("year", "UTC", "2024-12-31 23:59", "2024-01-01", 366 * 24),
        ("year", "Europe/Berlin", "1969-07-20 12:00", "1969-01-01", 365 * 24),
    ],
)
def test_a_period_begins_and_ends_at_local_midnight(
    period: str, zone: str, moment: str, start: str, hours: int
) -> None:
    found = bounds(Period(period), zone, at(moment, zone))
    assert found == (at(start, zone), at(start, zone) + hours * HOUR)


def test_a_day_whose_midnight_does_not_exist_begins_where_the_clock_jumps() -> None:
    start, end = bounds(Period.DAY, "America/Sao_Paulo", at("2018-11-04 12:00", "America/Sao_Paulo"))
    assert (start, end - start) == (at("2018-11-04 03:00"), 23 * HOUR)


def test_a_day_whose_midnight_comes_twice_begins_with_the_first() -> None:
    start, end = bounds(Period.DAY, "America/Havana", at("2026-11-01 12:00", "America/Havana"))
    assert (start, end - start) == (at("2026-11-01 04:00"), 25 * HOUR)


@given(
    period=st.sampled_from(Period), zone=st.sampled_from(ZONES), moment=st.integers(-TIME_MAX + 2**57, TIME_MAX - 2**57)
)
@settings(max_examples=300)
def test_periods_follow_one_another_without_a_gap_and_begin_on_their_first_day(
    period: Period, zone: str, moment: int
) -> None:
    start, end = bounds(period, zone, moment)
    assert start <= moment < end
    assert bounds(period, zone, start) == bounds(period, zone, end - 1) == (start, end)
    assert bounds(period, zone, end)[0] == end
    first = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=start // NS)).astimezone(ZoneInfo(zone)).date()
    is_first: dict[Period, Any] = {
        Period.DAY: lambda day: True,
        Period.WEEK: lambda day: day.weekday() == 0,
        Period.MONTH: lambda day: day.day == 1,
        Period.QUARTER: lambda day: day.day == 1 and day.month in (1, 4, 7, 10),
        Period.YEAR: lambda day: (day.month, day.day) == (1, 1),
    }
    # Apia skipped a whole day when it moved across the date line.
    assert is_first[period](first) or (zone == "Pacific/Apia" and first == date(2011, 12, 31))


@given(
    kind=st.sampled_from(["day", "week", "month"]),
    zone=st.sampled_from(ZONES),
    payloads=RECORDS,
    late=st.sampled_from(["drop", "fire", "oldest"]),
    cuts=st.sets(st.integers(1, 50), max_size=3),
    slice_records=st.sampled_from([1, 7, 1000]),
    ends=st.lists(st.tuples(st.integers(0, 60), st.integers(0, STREAMS - 1)), max_size=5),
)
@settings(max_examples=60)
def test_i11_calendar_windows_fire_what_the_sequential_run_would_have_fired(
    kind: Any, zone: str, payloads: list[bytes], late: Any, cuts: set[int], slice_records: int, ends: list[Any]
) -> None:
    first = at("2026-03-20 21:10") // NS

    def moment(value: bytes) -> int:
        return first + time(value) * 9_000

    pipeline = Pipeline("p", parallelism=3)
    source = pipeline.source(ends=True)
    by = windows.calendar(kind, tz=zone)
    found = source.window(by, aggregates.collect(), key=key, time=moment, late=late, lateness_s=7200, early_records=3)
    found.map(shown).sink("by-key", to="file:out")
    source.window(by, aggregates.count(), time=moment, late=late).map(shown).sink("all", to="file:out")
    graph = pipeline.graph()
    ends = [*ends, *((len(payloads), stream) for stream in range(STREAMS))]
    assert ran(graph, payloads, cuts, len(payloads), slice_records, ends=ends) == expected(graph, payloads, ends)


def test_a_window_fires_with_its_local_start_and_end() -> None:
    pipeline = Pipeline("p")
    sales = pipeline.source("sales", codec="json")
    days = sales.window(windows.calendar("day", tz="Europe/Berlin"), aggregates.count(), time=lambda sale: sale)
    days.sink("days", to="file:out")
    midnight = at("2026-03-29", "Europe/Berlin") // NS
    found = run(pipeline, {"sales": [midnight - 1, midnight, midnight + 23 * 3600 - 1, midnight + 23 * 3600]})["days"]
    assert [(day["end"] - day["start"], day["count"]) for day in found] == [
        (24 * 3600, 1),
        (23 * 3600, 2),
        (24 * 3600, 1),
    ]


@pytest.mark.parametrize("zone", ZONES)
def test_a_window_fires_with_the_first_record_of_the_next_day(zone: str) -> None:
    pipeline = Pipeline("p")
    sales = pipeline.source("sales", codec="json")
    days = sales.window(windows.calendar("day", tz=zone), aggregates.count(), time=lambda sale: sale)
    days.sink("days", to="file:out")
    midnight = at("2026-06-02", zone) // NS
    found = run(pipeline, {"sales": [midnight - 3600, midnight - 1, midnight]}, ends=False)["days"]
    assert [(day["end"], day["count"]) for day in found] == [(midnight, 2)]


def test_the_checkpoint_knows_the_period_and_the_time_zone() -> None:
    shapes = {windows.calendar(period, tz=zone).shape for period in ("day", "month") for zone in ZONES}
    assert len(shapes) == 2 * len(ZONES)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: windows.calendar("hour"),  # type: ignore[arg-type]
        lambda: windows.calendar("day", tz="Europe/Nowhere"),
        lambda: windows.calendar("day", tz=""),
        lambda: windows.calendar("day", tz="../etc/passwd"),
        lambda: windows.calendar("day", tz=2),  # type: ignore[arg-type]
    ],
)
def test_a_mistake_is_reported_where_it_was_made_and_with_a_next_step(mistake: Any) -> None:
    with pytest.raises(PlanError) as caught:
        mistake()
    assert caught.value.next_step
