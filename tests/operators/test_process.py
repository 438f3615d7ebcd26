"""Stages with timers: when a timer fires and where its results are placed, compared with the sequential run and with
examples."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession import Pipeline, PlanError, ProcessContext, patterns
from procession.errors import ProcessionError
from procession.operators import process
from procession.testing import run
from tests.operators.random_pipelines import STREAMS, waited, waiting
from tests.operators.test_window_operator import RECORDS
from tests.operators.timed_records import key, time
from tests.slow_cases import examples
from tests.spark.test_plans import expected, ran


def last(value: bytes) -> bytes:
    return value[-1:]


@given(
    payloads=RECORDS,
    step_s=st.sampled_from([0.5, 1, 7]),
    lateness_s=st.sampled_from([0, 3]),
    cuts=st.sets(st.integers(1, 50), max_size=3),
    slice_records=st.sampled_from([1, 7, 1000]),
    keys_max=st.sampled_from([1, 1000]),
    ends=st.lists(st.tuples(st.integers(0, 60), st.integers(0, STREAMS - 1)), max_size=5),
)
@examples(60)
def test_i11_timers_fire_as_in_the_sequential_run(
    payloads: list[bytes],
    step_s: float,
    lateness_s: float,
    cuts: set[int],
    slice_records: int,
    keys_max: int,
    ends: list[tuple[int, int]],
) -> None:
    def later(state: int, value: bytes, context: ProcessContext) -> tuple[int, list[bytes]]:
        """Set timers in the past and in the future, and raise for some with the state changed."""
        context.timer_at(context.time + state * 5 % 13 - 4)
        if int(context.time) % 17 == 5:
            raise ValueError(value)
        context.cancel_timer(context.time + 2)
        return state + 1, [value]

    pipeline = Pipeline("p", parallelism=3, dead_letter="file:dead")
    source = pipeline.source(ends=True)
    options: Any = {"key": key, "initial": 0, "time": time, "step_s": step_s, "lateness_s": lateness_s}
    timed = source.process(later, on_timer=waited, **options)
    timed.sink("timed", to="file:out")
    source.process(waiting, on_timer=waited, **options | {"time": None}).sink("sent", to="file:out")
    timed.merge(source).rebalance(parallelism=2).process(later, on_timer=waited, key=last, initial=0, time=len).sink(
        "twice", to="file:out"
    )
    graph = pipeline.graph()
    ends = [*ends, *((len(payloads), stream) for stream in range(STREAMS))]
    got = ran(graph, payloads, cuts, len(payloads), slice_records, keys_max, ends=ends)
    assert got == expected(graph, payloads, ends)


Event = tuple[str, int]


def out(events: list[Event], function: Any, on_timer: Any, *, ends: bool = True, **options: Any) -> list[Any]:
    """Return the output for records of these keys at these times, after checking that it is the same for any epochs and
    parallelism."""
    pipeline = Pipeline("p")
    source = pipeline.source("events", codec="json")
    stage = source.process(
        function, on_timer=on_timer, key=lambda event: event[0], time=lambda event: event[1], **options
    )
    stage.sink("out", to="file:out")
    records = {"events": [list(event) for event in events]}
    found = run(pipeline, records, ends=ends)["out"]
    for epochs, tasks in ((None, 1), (1, 1), (2, 3)):
        assert run(pipeline, records, epochs=epochs, parallelism=tasks, ends=ends)["out"] == found
    return found


def after_five(state: Any, event: Any, context: ProcessContext) -> tuple[Any, list[str]]:
    context.timer_at(context.time + 5)
    return event[1], [f"{event[0]}{event[1]}"]


def fired(state: Any, context: ProcessContext) -> tuple[Any, list[str]]:
    return None, [f"{context.key}@{context.time} {state}"]


def test_an_idle_key_fires_by_the_time_of_other_keys_before_the_record_with_that_time() -> None:
    got = out([("a", 1), ("b", 2), ("c", 6), ("c", 9)], after_five, fired, ends=False)
    assert got == ["a1", "b2", "a@6 1", "c6", "b@7 2", "c9"]


def test_at_the_end_all_timers_fire_in_the_order_of_times_and_then_of_keys() -> None:
    got = out([("b", 2), ("a", 2), ("c", 1)], after_five, fired)
    assert got == ["b2", "a2", "c1", "c@6 1", "a@7 2", "b@7 2"]


def test_a_timer_for_a_time_that_has_passed_fires_right_after_the_record_that_set_it() -> None:
    got = out([("a", 100), ("b", 3), ("c", 101)], after_five, fired, ends=False)
    assert got == ["a100", "b3", "b@8 3", "c101"]


def test_on_timer_sets_the_next_timer_which_fires_in_the_same_step_if_it_is_due() -> None:
    def every_two(state: Any, context: ProcessContext) -> tuple[Any, list[float]]:
        context.timer_at(context.time + 2)
        return state, [context.time]

    assert out([("a", 0), ("b", 11)], after_five, every_two, ends=False) == ["a0", 5, 7, 9, 11, "b11"]


def test_at_the_end_a_timer_that_sets_itself_again_fires_once() -> None:
    def for_ever(state: Any, context: ProcessContext) -> tuple[Any, list[float]]:
        context.timer_at(context.time + 2)
        return state, [context.time]

    assert out([("a", 0)], after_five, for_ever) == ["a0", 5]


def test_a_timer_that_was_cancelled_does_not_fire() -> None:
    def unless_another(state: Any, event: Any, context: ProcessContext) -> tuple[Any, list[str]]:
        if state is not None:
            context.cancel_timer(state)
        context.timer_at(context.time + 5)
        return context.time + 5, []

    assert out([("a", 0), ("a", 3), ("b", 6), ("b", 9)], unless_another, fired) == ["a@8 8", "b@14 14"]


def test_a_function_that_raises_sets_no_timer() -> None:
    pipeline = Pipeline("p", dead_letter="file:dead")

    def fails(state: Any, event: str, context: ProcessContext) -> tuple[Any, list[str]]:
        context.timer_at(1)
        raise ValueError(event)

    pipeline.source("in", codec="text").process(fails, on_timer=fired, key=str).sink("out", to="file:out")
    found = run(pipeline, {"in": ["x"]})
    assert found["out"] == []
    assert [letter["error"] for letter in found["dead-letter"]] == ["ValueError: x"]


def test_timers_stay_when_the_state_is_removed_and_on_timer_then_gets_a_new_one() -> None:
    def stateless(state: Any, event: Any, context: ProcessContext) -> tuple[Any, list[str]]:
        context.timer_at(context.time + 1)
        return None, []

    assert out([("a", 1)], stateless, fired, initial="new") == ["a@2 new"]


def test_a_result_that_is_part_of_the_state_is_not_changed_by_later_records() -> None:
    def gathers(state: list[int], event: Any, context: ProcessContext) -> tuple[list[int], list[list[int]]]:
        state.append(event[1])
        context.timer_at(99)
        return state, [state]

    def gathered(state: list[int], context: ProcessContext) -> tuple[None, list[list[int]]]:
        return None, [state]

    assert out([("a", 1), ("a", 2)], gathers, gathered, initial=list) == [[1], [1, 2], [1, 2]]


@pytest.mark.parametrize("to", [-1, 0])
def test_on_timer_that_sets_a_timer_that_is_not_later_stops_the_pipeline_with_a_sentence(to: int) -> None:
    def again(state: Any, context: ProcessContext) -> tuple[Any, list[str]]:
        context.timer_at(context.time + to)
        return state, []

    with pytest.raises(PlanError, match=r"the `on_timer` of key 'a' raised ValueError: .* not later"):
        out([("a", 1)], after_five, again)


def test_more_timers_of_a_key_than_the_limit_stop_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "TIMERS_MAX", 2)
    with pytest.raises(PlanError, match="key 'a' has more than 2 timers") as caught:
        out([("a", 1), ("a", 2), ("a", 3)], after_five, fired)
    assert caught.value.next_step


def test_stages_without_a_key_use_the_key_of_key_by_and_process_passes_it_on() -> None:
    def built(*, is_given: bool) -> Pipeline:
        pipeline = Pipeline("p", parallelism=3)
        source = pipeline.source("events", codec="json")
        start = source.key_by(lambda event: event[0]) if is_given else source
        own: Any = {} if is_given else {"key": lambda event: event[0]}
        timed: Any = {"time": lambda event: event[1]}
        waited = start.map(list).process(lambda state, event, context: (1, [event]), on_timer=fired, **own, **timed)
        waited.map_stateful(lambda seen, event: (seen + 1, [event, seen]), initial=0, **own).sink("seen", to="file:out")
        pattern = patterns.begin("first", bool).then("second", bool)
        start.rebalance().match(pattern, within_s=9, **own, **timed).sink("matched", to="file:out")
        start.as_of(start.map(list), join=lambda one, two: [one, two], valid_from=timed["time"], **own, **timed).sink(
            "versions", to="file:out"
        )
        return pipeline

    events = {"events": [["a", 1], ["b", 2], ["a", 3], ["a", 3], ["b", 9]]}
    wanted = run(built(is_given=False), events)
    assert all(wanted.values())
    assert run(built(is_given=True), events) == wanted
    assert run(built(is_given=True), events, epochs=1) == wanted


@pytest.mark.parametrize(
    "mistake",
    [
        lambda stage: stage.process(after_five, on_timer=fired),
        lambda stage: stage.process("after_five", on_timer=fired, key=str),
        lambda stage: stage.process(lambda state, record: (state, []), on_timer=fired, key=str),
        lambda stage: stage.process(after_five, on_timer=after_five, key=str),
        lambda stage: stage.process(after_five, on_timer=None, key=str),
        lambda stage: stage.process(after_five, on_timer=fired, key="k"),
        lambda stage: stage.process(after_five, on_timer=fired, key=str, time="at"),
        lambda stage: stage.process(after_five, on_timer=fired, key=str, step_s=0),
        lambda stage: stage.process(after_five, on_timer=fired, key=str, lateness_s=-1),
        lambda stage: stage.process(after_five, on_timer=fired, key=str, unit="h"),
        lambda stage: stage.process(after_five, on_timer=fired, key=str, initial=object()),
    ],
)
def test_a_mistake_is_reported_where_it_was_made_and_with_a_next_step(mistake: Any) -> None:
    with pytest.raises(PlanError) as caught:
        mistake(Pipeline("p").source())
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (None, "did not return a pair"),
        ([1], "did not return a pair"),
        ((1, [], 2), "did not return a pair"),
        ((1, None), "returned None as its results"),
    ],
)
@pytest.mark.parametrize("word", ["process", "on_timer", "flat_map_stateful"])
def test_a_function_that_returns_something_else_is_an_error(returned: Any, sentence: str, word: str) -> None:
    def on_record(state: Any, at: int, context: ProcessContext) -> Any:
        context.timer_at(at + 1)
        return returned if word == "process" else (state, [])

    pipeline = Pipeline("p")
    source = pipeline.source("s", codec="json")
    if word == "flat_map_stateful":
        stage = source.flat_map_stateful(lambda state, at: returned, key=str, initial=0)
    else:
        stage = source.process(on_record, on_timer=lambda state, context: returned, key=str, time=int)
    stage.sink("out", to="file:out")
    with pytest.raises(ProcessionError, match=sentence):
        run(pipeline, {"s": [1]})


def test_all_timers_of_a_key_can_be_cancelled() -> None:
    def one_left(state: Any, event: Any, context: ProcessContext) -> tuple[Any, list[str]]:
        context.timer_at(context.time + 1)
        context.cancel_timers()
        context.timer_at(context.time + 5)
        return event[1], []

    assert out([("a", 1), ("a", 2), ("b", 3)], one_left, fired) == ["a@7 2", "b@8 3"]
