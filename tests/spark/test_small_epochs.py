"""The choice of epochs that run without a Spark job."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from procession.spark.small_epochs import JOB_S, RECENT, SmallEpochLimit


def limit(*observed: tuple[int, float], records_max: int = 1000) -> SmallEpochLimit:
    found = SmallEpochLimit(records_max)
    for records, seconds in observed:
        found.observe(records, seconds)
    return found


def test_nothing_is_small_before_an_epoch_has_shown_what_the_functions_cost() -> None:
    assert not limit().fits(1)
    assert not limit((0, 0.001)).fits(1)


def test_an_epoch_without_records_runs_on_spark_and_starts_its_workers() -> None:
    assert not limit((10, 0.001)).fits(0)


def test_an_epoch_is_small_up_to_the_limit_of_records() -> None:
    assert limit((1000, 0.001)).fits(1000)
    assert not limit((1000, 0.001)).fits(1001)
    assert not limit((1000, 0.001), records_max=0).fits(1)


def test_records_that_take_longer_than_a_job_are_not_small() -> None:
    slow = limit((10, 10 * JOB_S))
    assert not slow.fits(10)
    assert not slow.fits(1), "the ten records may have taken a fixed time: nothing says that one takes less"


def test_the_cost_of_a_job_is_measured_and_is_higher_on_a_busy_machine() -> None:
    busy = limit()
    busy.observe(100, 0.2, job_s=0.9)
    assert busy.fits(100)
    busy.observe(100, 0.2, job_s=0.25)
    assert not busy.fits(100)


def test_a_job_that_ran_its_tasks_in_parallel_says_nothing_good_of_one_process() -> None:
    parallel = limit()
    parallel.observe(100, 2.0, job_s=1.1)
    assert not parallel.fits(100)


def test_a_function_that_became_slow_sends_its_epochs_to_spark_and_one_that_became_fast_brings_them_back() -> None:
    found = limit((100, 0.001), (100, 1.0))
    assert not found.fits(100)
    for _ in range(RECENT):
        found.observe(100, 0.001)
    assert found.fits(100)


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 10)), min_size=1, max_size=20),
    st.integers(1, 5000),
)
def test_fewer_records_are_never_less_likely_to_be_small(observed: list[tuple[int, float]], records: int) -> None:
    found = limit(*observed)
    assert found.fits(records) <= found.fits(max(1, records // 2))
