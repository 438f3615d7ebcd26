"""Timers: the nodes that `process` adds, by event time and by a clock, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from procession import Pipeline, PlanError
from procession.api.stage import Stage
from procession.operators.clock_process import ClockProcess
from procession.operators.process import ProcessOperator
from procession.planner.graph import Kind
from procession.planner.keys import RecordKey


def on_record(state: Any, record: Any, context: Any) -> Any: ...


def on_timer(state: Any, context: Any) -> Any: ...


def process(stage: Stage, **options: Any) -> Stage:
    return stage.process(options.pop("function", on_record), **({"on_timer": on_timer} | options))


def with_clock() -> tuple[Pipeline, Stage, Stage]:
    pipeline = Pipeline("p")
    return pipeline, pipeline.source("in", streams=["in"]), pipeline.clock()


def test_timers_in_event_time_are_one_node_with_its_step_and_lateness_in_nanoseconds() -> None:
    pipeline = Pipeline("p")
    process(pipeline.source(), key=len, time=len, unit="ms", step_s=0.5, lateness_s=2, name="timers")
    node = pipeline._nodes[-1]
    assert (node.kind, node.name, node.key, node.time, node.unit) == (Kind.PROCESS, "timers", len, len, "ms")
    assert isinstance(node.operator, ProcessOperator)
    assert not node.operator.state.is_by_clock
    assert node.operator.step_ns == 5 * 10**8


def test_a_stage_without_a_key_uses_that_of_key_by() -> None:
    pipeline = Pipeline("p")
    process(pipeline.source().key_by(len))
    assert pipeline._nodes[-1].key == RecordKey((len,))
    with pytest.raises(PlanError, match="no key"):
        process(Pipeline("p").source())


def test_a_clock_is_merged_with_the_records_and_moves_the_timers() -> None:
    pipeline, records, clock = with_clock()
    process(records, key=len, clock=clock, name="timers")
    node = pipeline._nodes[-1]
    assert (node.kind, node.name, node.is_named) == (Kind.PROCESS, "timers", True)
    assert isinstance(node.operator, ClockProcess)
    assert node.operator.state.is_by_clock
    merged = pipeline._nodes[node.parents[0]]
    assert merged.kind is Kind.MERGE
    process(records, key=len, clock=clock)
    assert not pipeline._nodes[-1].is_named


@pytest.mark.parametrize("word", ["time", "unit", "step_s", "lateness_s"])
def test_a_clock_and_an_option_of_event_time_contradict_each_other(word: str) -> None:
    _, records, clock = with_clock()
    value: Any = {"time": len, "unit": "ms", "step_s": 2, "lateness_s": 1}[word]
    with pytest.raises(PlanError, match=rf"has clock= and {word}=") as caught:
        process(records, key=len, clock=clock, **{word: value})
    assert f"omit {word}" in caught.value.next_step


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"function": lambda state, record: None}, r"cannot be called with \(state, record, context\)"),
        ({"on_timer": lambda state: None}, r"on_timer=.* cannot be called with \(state, context\)"),
        ({"step_s": 0}, "step_s"),
        ({"lateness_s": -1}, "lateness_s"),
        ({"unit": "h"}, "unit='h' is not known"),
        ({"time": 7}, "time=7"),
        ({"initial": object()}, "initial"),
    ],
)
def test_an_invalid_argument_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        process(Pipeline("p").source(), **({"key": len} | options))


def test_a_clock_needs_a_key_and_must_be_of_the_same_pipeline() -> None:
    _, records, clock = with_clock()
    with pytest.raises(PlanError, match="with a clock has no key"):
        process(records, clock=clock)
    with pytest.raises(PlanError, match="key=7"):
        process(records, key=7, clock=clock)
    _, _, other = with_clock()
    with pytest.raises(PlanError, match="clock"):
        process(records, key=len, clock=other)
