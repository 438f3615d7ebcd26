"""Functions that take the context of a record, and how they are recognized."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import procession
from procession import Context, Pipeline, PlanError, ProcessContext
from procession import Context as Beside
from procession.commit import epoch_totals
from procession.errors import RecordError
from procession.operators import context as context_module
from procession.operators.context import is_asking
from procession.planner.rules import make_plan
from procession.testing import run

if TYPE_CHECKING:
    from collections import Counter as Unknown


def plain(value: Any) -> Any:
    return value


def asking(value: Any, context: Context) -> Any:
    return context.key


def asking_by_another_name(value: Any, more: Beside) -> Any:
    return more.key


def asking_in_full(value: Any, context: procession.Context | Any = None) -> Any:
    return value


def asking_beside_what_is_not_there(value: Unknown[str], context: Context) -> Any:
    return value


def of_two(value: Any, other: int) -> Any:
    return value


class Told:
    def __call__(self, value: Any, context: Context) -> Any:
        return value


def test_the_example_in_the_docstring_runs() -> None:
    assert doctest.testmod(context_module).attempted > 0
    assert doctest.testmod(context_module).failed == 0


@pytest.mark.parametrize("function", [asking, asking_by_another_name, asking_beside_what_is_not_there, Told()])
def test_a_second_parameter_annotated_as_a_context_requests_it(function: Any) -> None:
    assert is_asking(function)


@pytest.mark.parametrize("function", [plain, of_two, asking_in_full, len, max, partial(asking, context=None)])
def test_no_other_parameter_requests_a_context(function: Any) -> None:
    assert not is_asking(function)


@pytest.mark.parametrize("word", ["map", "filter", "flat_map"])
def test_records_carry_their_origin_over_exchanges_only_for_stages_with_a_context(word: str) -> None:
    def carried(function: Callable[..., Any]) -> bool:
        pipeline = Pipeline("p")
        stage = pipeline.source().rebalance(parallelism=3)
        getattr(stage, word)(function).sink("out", to="file:out")
        return bool(make_plan(pipeline.graph()).carrying)

    assert carried(asking)
    assert not carried(plain)


def test_a_function_of_two_parameters_is_refused_with_the_way_to_get_a_context() -> None:
    source = Pipeline("p").source()
    with pytest.raises(PlanError, match="cannot be called with one argument") as caught:
        source.map(of_two)
    assert "context: procession.Context" in caught.value.next_step
    with pytest.raises(PlanError, match="cannot be called with one argument"):
        source.key_by(asking)  # type: ignore[arg-type]


def test_counters_count_each_committed_record_once_whatever_the_epochs_and_tasks() -> None:
    def picky(value: int, context: Context) -> int:
        context.counter("seen")
        if value % 5 == 0:
            context.counter("fives", value)
            raise ValueError("five")
        return value

    def is_even(value: int, context: Context) -> bool:
        context.counter("seen", 1000)
        return value % 2 == 0

    pipeline = Pipeline("counting", dead_letter="file:dead")
    numbers = pipeline.source("numbers", codec="json").map(picky)
    numbers.rebalance(key=lambda value: value).filter(is_even).sink("even", to="file:out")
    for epochs, tasks in ((None, 1), (1, 3), (4, 2)):
        found = run(pipeline, {"numbers": list(range(1, 12))}, epochs=epochs, parallelism=tasks)
        assert {name: count for name, count in found.counters.items() if name.startswith("counter ")} == {
            "counter seen": 11 + 9 * 1000,
            "counter fives": 15,
        }


def test_the_functions_of_process_count_too_also_by_a_timer_and_at_the_end() -> None:
    def waiting(state: Any, value: int, context: ProcessContext) -> tuple[int, list[int]]:
        context.counter("records")
        context.timer_at(context.time + 2)
        if value == 5:
            raise ValueError("what was counted before stays counted")
        return value, []

    def over(state: int, context: ProcessContext) -> tuple[None, list[int]]:
        context.counter("sum", state)
        return None, []

    pipeline = Pipeline("p", dead_letter="file:dead")
    numbers = pipeline.source("numbers", codec="json")
    numbers.process(waiting, on_timer=over, key=lambda value: value % 4, time=lambda value: value).sink(
        "out", to="file:out"
    )
    expected = {"counter records": 11, "counter sum": 10 + 9 + 8 + 7 + 6 + 4 + 3 + 2 + 1 + 0}
    for options in ({}, {"epochs": 2, "crashes": [1, 3]}, {"epochs": 1, "parallelism": 3}):
        found = run(pipeline, {"numbers": list(range(11))}, **options).counters  # type: ignore[arg-type]
        assert {name: count for name, count in found.items() if name.startswith("counter ")} == expected


def test_a_counter_has_a_plain_name_and_adds_whole_numbers() -> None:
    context = Context(b"", 0, 0)
    context.counter("net", -2)
    with pytest.raises(ValueError, match=r"cannot add 0\.5"):
        context.counter("net", 0.5)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="cannot name a counter"):
        context.counter("user 7")


def test_counters_that_are_named_after_records_stop_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(value: int, context: Context) -> int:
        context.counter(f"value-{value}")
        return value

    pipeline = Pipeline("naming")
    pipeline.source("numbers", codec="json").map(named).sink("out", to="file:out")
    monkeypatch.setattr(epoch_totals, "COUNTERS_MAX", 3)
    with pytest.raises(PlanError, match=r"the app has 4 counters, such as 'value-4'"):
        run(pipeline, {"numbers": list(range(1, 9))}, epochs=2)
    monkeypatch.undo()
    monkeypatch.setattr(context_module, "COUNTERS_MAX", 3)
    with pytest.raises(RecordError, match="more than 3 counters"):
        run(pipeline, {"numbers": list(range(1, 9))})
