"""Schedules must not change the output; if they do, that is reported."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from procession import Pipeline, aggregates
from procession.testing import Schedule, run, run_everywhere
from procession.testing.hypothesis_schedules import schedules

pytest_plugins = ("pytester",)

NUMBERS = {"numbers": [3, 1, 4, 1, 5, 9, 2, 6]}


def totals() -> Pipeline:
    pipeline = Pipeline("totals")
    numbers = pipeline.source("numbers", codec="json").key_by(lambda number: number % 3)
    numbers.rolling(aggregates.sum_of()).sink("totals", to="file:out", codec="json")
    return pipeline


def counting_calls() -> tuple[Pipeline, list[int]]:
    """Return a function that stores data outside of its state."""
    calls: list[int] = []
    pipeline = Pipeline("calls")
    pipeline.source("numbers", codec="json").map(lambda number: calls.append(number) or len(calls)).sink(
        "calls", to="file:out", codec="json"
    )
    return pipeline, calls


@settings(max_examples=20, deadline=None)
@given(schedules())
def test_the_strategy_draws_schedules_that_do_not_change_the_output(schedule: Schedule) -> None:
    assert schedule.run(totals(), NUMBERS) == {"totals": [3, 1, 5, 6, 5, 12, 7, 18]}


def test_an_epoch_that_is_lost_is_run_again_with_the_states_of_the_last_commit() -> None:
    pipeline, calls = counting_calls()
    assert run(pipeline, NUMBERS, epochs=4, crashes=[1], parallelism=1) == {"calls": [1, 2, 3, 4, 9, 10, 11, 12]}
    assert len(calls) == 12, "the second epoch was run twice"
    assert run(totals(), NUMBERS, epochs=2, crashes=range(10)) == run(totals(), NUMBERS)


def test_a_function_that_keeps_data_outside_of_its_state_is_found() -> None:
    pipeline, _ = counting_calls()
    with pytest.raises(AssertionError) as caught:
        run_everywhere(pipeline, NUMBERS)
    assert "The output of sink 'calls' differs with Schedule(epochs=1, parallelism=1" in str(caught.value)
    assert "Record 0 is 9; in one epoch it is 1." in str(caught.value)


def test_one_schedule_that_is_given_is_the_one_that_is_run() -> None:
    pipeline, calls = counting_calls()
    with pytest.raises(AssertionError, match=r"Schedule\(epochs=None, parallelism=None, crashes=\(0,\)\)"):
        run_everywhere(pipeline, NUMBERS, schedules=[Schedule(crashes=(0,))])
    assert len(calls) == 3 * 8


def test_the_fixture_runs_a_pipeline_with_several_schedules(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from procession import Pipeline

        def test_it(run_pipeline):
            pipeline = Pipeline("doubled")
            pipeline.source("numbers", codec="json").map(lambda n: 2 * n).sink("doubled", to="file:out")
            assert run_pipeline(pipeline, {"numbers": [1, 2]}) == {"doubled": [2, 4]}
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
