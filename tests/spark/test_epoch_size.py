"""The size of epochs, computed for pipelines whose cost is a fixed time and a time per record."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from procession.spark.epoch_size import FIRST_RECORDS, FIXED_SHARE, EpochPace, EpochSize
from procession.spark.log_source import Ranges
from procession.storage.log_ranges import LogLocation

TARGET_S = 2.5


def under_backlog(size: EpochSize, epochs: int, fixed_s: float, record_s: float, records_max: int = 10**9) -> list[int]:
    """Return the sizes of epochs while more records wait than any epoch takes."""
    sizes = []
    for _ in range(epochs):
        records = min(size.records_max, records_max)
        sizes.append(records)
        size.observe(records, fixed_s + records * record_s)
    return sizes


@pytest.mark.parametrize("record_s", [0.2e-6, 0.7e-6, 10e-6, 1e-3])
def test_under_backlog_the_fixed_time_becomes_a_small_share_within_a_few_epochs(record_s: float) -> None:
    fixed_s = 0.08
    size = EpochSize(TARGET_S)
    records = under_backlog(size, 8, fixed_s, record_s)[-1]
    assert records * record_s / (fixed_s + records * record_s) >= 0.95


@pytest.mark.parametrize("record_s", [0.2e-6, 0.7e-6, 10e-6, 1e-3, 0.1, 1.0])
def test_no_epoch_after_the_first_takes_much_longer_than_the_target(record_s: float) -> None:
    size = EpochSize(TARGET_S)
    for records in under_backlog(size, 20, 0.1, record_s)[1:]:
        assert 0.1 + records * record_s <= TARGET_S * 1.1


def test_an_epoch_stops_growing_where_throughput_does_although_the_target_allows_more() -> None:
    size = EpochSize(60.0)
    fixed_s, record_s = 0.01, 1e-6
    records = under_backlog(size, 40, fixed_s, record_s)[-1]
    share = fixed_s / (fixed_s + records * record_s)
    assert FIXED_SHARE / 3 < share < FIXED_SHARE


def test_small_epochs_of_a_trickle_do_not_change_the_limit() -> None:
    size = EpochSize(TARGET_S)
    before = under_backlog(size, 10, 0.08, 0.7e-6)[-1]
    for _ in range(30):
        size.observe(200, 0.09)
    assert size.records_max == pytest.approx(before, rel=0.5)


def test_epochs_without_a_spark_job_do_not_tell_the_fixed_time_of_those_with_one() -> None:
    fixed_s, record_s, small_records_max = 0.09, 0.7e-6, 1000
    size = EpochSize(TARGET_S, small_records_max)
    for _ in range(30):
        size.observe(200, 0.03)
    records = under_backlog(size, 10, fixed_s, record_s)[-1]
    assert fixed_s / (fixed_s + records * record_s) < FIXED_SHARE * 1.5


def test_an_epoch_that_took_all_there_was_lets_the_next_one_be_as_large_as_surely_fits() -> None:
    size = EpochSize(TARGET_S)
    size.observe(3000, 0.1)
    assert size.records_max == 3000 * TARGET_S / 0.1


def test_an_epoch_that_takes_too_long_makes_the_next_ones_smaller_even_if_it_was_not_full() -> None:
    size = EpochSize(TARGET_S)
    under_backlog(size, 10, 0.08, 0.7e-6)
    size.observe(1000, 25.0)  # the function becomes slow
    assert size.records_max == pytest.approx(100, rel=0.5)


def test_a_record_that_takes_longer_than_the_target_makes_epochs_of_one_record() -> None:
    size = EpochSize(TARGET_S)
    assert under_backlog(size, 5, 0.1, 30.0)[-1] == 1


@pytest.mark.parametrize("fixed_s", [1.3, 2.0, 2.4, 3.0, 6.0, 40.0])
@pytest.mark.parametrize("record_s", [1e-6, 1e-4, 0.01])
def test_a_fixed_time_that_takes_up_the_target_does_not_make_epochs_small(fixed_s: float, record_s: float) -> None:
    size = EpochSize(TARGET_S)
    for records in under_backlog(size, 40, fixed_s, record_s)[9:]:
        share = fixed_s / (fixed_s + records * record_s)
        assert 0.4 < share < 0.6, "about as much work as the fixed time"


def test_a_slow_start_does_not_make_small_epochs_smaller() -> None:
    """The times were measured on a loaded machine, on a pipeline with forty sinks whose epochs had shrunk to one
    record."""
    size = EpochSize(TARGET_S)
    size.observe(81, 28.0)
    for seconds in (6.8, 6.6, 4.9, 4.4, 4.9, 4.5, 4.7, 4.4):
        size.observe(min(24, size.records_max), seconds)
        assert size.records_max >= 7
    assert size.records_max > 24


@pytest.mark.parametrize("records", [1, 2, 5])
def test_the_first_epoch_may_have_few_records_and_take_long(records: int) -> None:
    size = EpochSize(TARGET_S)
    size.observe(records, 30.0)
    assert under_backlog(size, 20, 5.0, 1e-3)[-1] > 1000


def test_a_fixed_time_that_grows_later_does_not_make_epochs_small() -> None:
    size = EpochSize(TARGET_S)
    under_backlog(size, 20, 0.1, 1e-3)
    assert min(under_backlog(size, 40, 5.0, 1e-3)) > 100
    assert under_backlog(size, 20, 5.0, 1e-3)[-1] == pytest.approx(5000, rel=0.2)
    assert under_backlog(size, 20, 0.1, 1e-3)[-1] == pytest.approx(2400, rel=0.2)


def test_records_that_become_slow_make_epochs_small_although_the_fixed_time_is_long() -> None:
    size = EpochSize(TARGET_S)
    under_backlog(size, 10, 2.0, 1e-3)
    assert under_backlog(size, 8, 2.0, 1.0)[-1] <= 3


def test_another_limit_that_holds_epochs_back_does_not_let_this_one_run_away() -> None:
    size = EpochSize(TARGET_S)
    under_backlog(size, 50, 0.08, 0.7e-6, records_max=50_000)
    assert size.records_max <= 50_000 * TARGET_S / 0.08 * 2


def test_the_first_epoch_is_small_because_nothing_is_known_of_the_functions() -> None:
    assert EpochSize(TARGET_S).records_max == FIRST_RECORDS


def test_without_a_target_there_is_no_limit() -> None:
    size = EpochSize(0.0)
    assert under_backlog(size, 3, 0.1, 1.0, records_max=10) == [10, 10, 10]
    assert size.records_max == sys.maxsize


def test_empty_epochs_and_clocks_that_stand_still_are_ignored() -> None:
    size = EpochSize(TARGET_S)
    size.observe(0, 1.0)
    size.observe(100, 0.0)
    assert size.records_max == FIRST_RECORDS


class Backlog:
    """A feed with more records than any epoch takes, until it is empty."""

    def __init__(self, records: int) -> None:
        self.records = records
        self.limits: list[int] = []

    def next_ends(self, starts: Mapping[str, Any], records_max: int) -> dict[str, Any]:
        self.limits.append(records_max)
        return {"gateway-0": min(self.records, starts["gateway-0"] + records_max)}

    def places(self) -> Mapping[str, LogLocation]:
        return {}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def hold(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("interval_s", [0.0, 3.0])
def test_the_source_limits_epochs_by_their_own_time_without_the_wait_for_the_interval(interval_s: float) -> None:
    feed, clock = Backlog(10**8), Clock()
    pace = EpochPace(interval_s, TARGET_S)
    source = Ranges(None, feed, 1, pace, now=lambda: clock.now, hold=clock.hold)  # type: ignore[arg-type]
    start: dict[str, Any] = {"gateway-0": 0}
    while len(feed.limits) < 8:
        end = source.latestOffset(start, ReadAllAvailable())
        clock.now += 0.1 + (end["gateway-0"] - start["gateway-0"]) * 1e-6 if end != start else 0.01
        start = end
    assert 0.9 * TARGET_S < 0.1 + feed.limits[-1] * 1e-6 < 1.1 * TARGET_S


def test_the_source_does_not_take_the_time_without_records_for_that_of_an_epoch() -> None:
    feed, clock = Backlog(FIRST_RECORDS), Clock()
    source = Ranges(None, feed, 1, EpochPace(), now=lambda: clock.now, hold=clock.hold)  # type: ignore[arg-type]
    start = source.latestOffset({"gateway-0": 0}, ReadAllAvailable())
    clock.now += 0.1
    for _ in range(100):
        assert source.latestOffset(start, ReadAllAvailable()) == start
        clock.now += 1.0
    feed.records *= 2
    assert source.latestOffset(start, ReadAllAvailable()) != start
    assert feed.limits[-1] == feed.limits[1] > FIRST_RECORDS
