"""Timers by the clock, compared with a sequential run at any epoch size and parallelism, and with examples."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession import Pipeline, PlanError, ProcessContext
from procession.errors import RecordError
from procession.operators import process
from procession.planner.compatibility import keyed_stages
from procession.planner.rules import make_plan
from procession.testing import run

Event = tuple[str, Any]


def after(state: Any, event: Any, context: ProcessContext) -> tuple[Any, list[Any]]:
    """Set a timer for an event [key, delay]; a delay of 0 cancels the timers of the key."""
    if event[1] == 0:
        context.cancel_timers()
    else:
        context.timer_after_s(event[1])
    return (state or 0) + 1, [[context.key, "seen", context.time]]


def fired(state: Any, context: ProcessContext) -> tuple[Any, list[Any]]:
    if state == 3:
        context.timer_after_s(4)
        return 4, [[context.key, context.time, "again"]]
    return state, [[context.key, context.time, state]]


def app(function: Any = after, on_timer: Any = fired, **options: Any) -> Pipeline:
    pipeline = Pipeline("p", **options)
    events = pipeline.source("events", codec="json")
    stage = events.process(function, on_timer=on_timer, key=lambda event: event[0], clock=pipeline.clock())
    stage.sink("out", to="file:out")
    return pipeline


def sequential(events: list[Event]) -> list[Any]:
    """Compute the output slowly and plainly."""
    found, now = [], 0
    states: dict[str, Any] = {}
    waiting: list[tuple[str, int]] = []
    timers: set[tuple[int, str]] = set()
    for source, value in events:
        if source == "clock":
            now = value
            timers |= {(now + delay, key) for key, delay in waiting}
            waiting = []
            while timers and min(timers)[0] <= now:
                at, key = min(timers)
                timers.discard((at, key))
                if states[key] == 3:
                    timers.add((now + 4, key))
                    states[key] = 4
                    found.append([key, at, "again"])
                else:
                    found.append([key, at, states[key]])
            continue
        key, delay = value
        if delay == 0:
            waiting = [pair for pair in waiting if pair[0] != key]
            timers = {pair for pair in timers if pair[1] != key}
        else:
            waiting.append((key, delay))
        states[key] = states.get(key, 0) + 1
        found.append([key, "seen", now])
    return found


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("tick"), st.integers(1, 6)),
        st.tuples(st.just("events"), st.tuples(st.sampled_from("abc"), st.sampled_from([0, 1, 2, 5, 9]))),
    ),
    max_size=25,
)


@given(EVENTS, st.sampled_from([None, 1, 2, 5]), st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_i11_timers_fire_as_in_the_sequential_run(drawn: list[Event], epochs: int | None, tasks: int) -> None:
    now, events = 0, []
    for source, value in drawn:
        now += value if source == "tick" else 0
        events.append(("clock", now) if source == "tick" else (source, list(value)))
    assert run(app(), events, epochs=epochs, parallelism=tasks)["out"] == sequential(events)


def test_a_timer_counts_from_the_next_tick_and_a_quiet_key_fires() -> None:
    events: list[Event] = [
        ("events", ["a", 5]),
        ("clock", 1000.5),
        ("events", ["b", 5]),
        ("clock", 1005.4),
        ("clock", 1005.5),
        ("clock", 1010.4),
    ]
    got = run(app(), events)["out"]
    assert got == [["a", "seen", 0], ["b", "seen", 1000.5], ["a", 1005.5, 1], ["b", 1010.4, 1]]


def test_a_timer_does_not_fire_early_after_the_clock_was_silent() -> None:
    events: list[Event] = [("clock", 10), ("events", ["a", 5]), ("clock", 500), ("clock", 504), ("clock", 505)]
    assert run(app(), events)["out"][-1] == ["a", 505, 1]
    assert len(run(app(), events[:-1])["out"]) == 1


def test_records_do_not_advance_the_clock_and_the_end_of_the_stream_fires_nothing() -> None:
    assert run(app(), {"events": [["a", 1], ["b", 2]], "clock": []})["out"] == [["a", "seen", 0], ["b", "seen", 0]]


def test_timers_may_be_set_for_a_time_and_a_length_may_be_a_timedelta() -> None:
    def function(state: Any, event: Any, context: ProcessContext) -> tuple[Any, list[Any]]:
        context.timer_at(context.time + 3)
        context.timer_after_s(timedelta(seconds=1))
        return state, []

    events: list[Event] = [("clock", 10), ("events", ["a", 0]), ("clock", 11), ("clock", 12), ("clock", 20)]
    assert run(app(function), events)["out"] == [["a", 12, None], ["a", 13, None]]


@pytest.mark.parametrize("delay", [0, -1, "5", None, True])
def test_an_invalid_length_is_an_error_of_the_record(delay: Any) -> None:
    def function(state: Any, event: Any, context: ProcessContext) -> tuple[Any, list[Any]]:
        context.timer_after_s(delay)
        return state, []

    with pytest.raises(RecordError, match="is not a positive number of seconds"):
        run(app(function), {"events": [["a", 1]]})


def test_a_clock_timer_at_a_stage_without_a_clock_is_an_error() -> None:
    pipeline = Pipeline("p")
    events = pipeline.source("events", codec="json")
    events.process(after, on_timer=fired, key=lambda event: event[0]).sink("out", to="file:out")
    with pytest.raises(PlanError, match="timer_after_s\\(\\) needs a clock") as caught:
        run(pipeline, {"events": [["a", 1]]})
    assert "clock=pipeline.clock()" in caught.value.next_step


def test_more_timers_than_a_key_may_have_stop_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "TIMERS_MAX", 3)
    with pytest.raises(PlanError, match="key 'a' has more than 3 timers"):
        run(app(), {"events": [["a", 1]] * 4})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "with a clock has no key"),
        ({"key": len, "time": len}, "has clock= and time="),
        ({"key": len, "step_s": 2}, "has clock= and step_s="),
        ({"key": 7}, "was given key=7"),
    ],
)
def test_options_that_a_clock_does_not_take_are_refused(options: dict[str, Any], sentence: str) -> None:
    pipeline = Pipeline("p")
    with pytest.raises(PlanError, match=sentence):
        pipeline.source("events").process(after, on_timer=fired, clock=pipeline.clock(), **options)


@pytest.mark.parametrize("interval", [0, -1, 3601, "soon", float("nan")])
def test_an_invalid_interval_of_a_clock_is_refused(interval: Any) -> None:
    with pytest.raises(PlanError, match="is not a clock"):
        Pipeline("p").clock(interval)


def test_explain_says_that_two_runs_may_differ_and_a_checkpoint_knows_the_clock() -> None:
    assert "by the clock: process-5: two runs may differ" in app().explain()
    ((_, kind),) = keyed_stages(make_plan(app().graph())).values()
    assert kind.endswith("with timers by the clock")
