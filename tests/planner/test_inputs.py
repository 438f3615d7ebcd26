"""The inputs of a stage: which exist, when each begins and ends, and which the stage still waits for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from procession import Pipeline, aggregates, windows
from procession.operators.end_of_input import NO_STREAM, EndCondition, StreamChange
from procession.planner.inputs import InputChange, StageInputs, input_ids, number_of, unknown
from procession.planner.rules import make_plan
from procession.planner.source_streams import StreamFilter

SOURCE = number_of(0)
WHOLE = number_of(3)
ONE = EndCondition(("one",), streams=StreamFilter(frozenset({1, 2}), is_rest=False))


def change(sequence: int, stream: int, time: int = 0, *, is_end: bool = False) -> StreamChange:
    return StreamChange(sequence=sequence, stream=stream, time=time, is_end=is_end)


def follow(inputs: StageInputs, *changes: StreamChange, mark: dict[str, Any] | None = None) -> list[InputChange]:
    return inputs.follow(unknown() if mark is None else mark, changes)


def test_the_number_of_a_source_is_outside_of_stream_ids_and_is_converted_back() -> None:
    assert [number_of(number_of(index)) for index in (0, 7)] == [0, 7]
    assert number_of(0) == 2**64 - 1


def test_a_stream_replaces_its_source_as_input_when_it_begins() -> None:
    inputs = StageInputs({SOURCE: ONE}, {})
    mark = unknown()
    assert inputs.held(mark) == {SOURCE}
    (begun,) = follow(inputs, change(0, 1, 5), mark=mark)
    assert begun == InputChange(0, 1, 5, False, (1,), (SOURCE,))
    assert inputs.held(mark) == {1}
    assert follow(inputs, change(1, 1, 6), mark=mark) == [], "the stream is open already"
    (ended,) = follow(inputs, change(2, 1, is_end=True), mark=mark)
    assert (ended.begins, ended.ends, ended.time) == ((), (1, SOURCE), 6)
    assert inputs.held(mark) == set()


def test_an_awaited_stream_holds_the_watermark_before_it_begins_and_again_when_it_returns() -> None:
    inputs = StageInputs({SOURCE: EndCondition(("one",), frozenset({1, 2}), ONE.streams)}, {})
    mark = unknown()
    assert inputs.held(mark) == {1, 2}
    follow(inputs, change(0, 1, is_end=True), mark=mark)
    assert inputs.held(mark) == {2}
    follow(inputs, change(1, 1), mark=mark)
    assert inputs.held(mark) == {1, 2}


def test_a_stream_of_another_source_changes_nothing() -> None:
    inputs = StageInputs({SOURCE: ONE}, {})
    assert follow(inputs, change(0, 9), change(1, 9, is_end=True)) == []


def test_a_change_without_a_stream_only_advances_the_time() -> None:
    inputs = StageInputs({SOURCE: ONE}, {})
    (begun,) = follow(inputs, change(0, NO_STREAM, 8), change(1, 1, 3))
    assert (begun.sequence, begun.time) == (1, 8)
    assert follow(StageInputs({SOURCE: EndCondition(("one",))}, {}), change(0, NO_STREAM, 8)) == []


def test_a_preceding_stage_is_one_input_until_all_its_streams_have_ended_and_again_when_one_returns() -> None:
    inputs = StageInputs({}, {WHOLE: ONE, number_of(4): None})
    mark = unknown()
    assert inputs.held(mark) == {WHOLE, number_of(4)}
    changes = follow(
        inputs, change(0, 1), change(1, 2), change(2, 1, is_end=True), change(3, 2, is_end=True), mark=mark
    )
    assert [(turn.sequence, turn.begins, turn.ends) for turn in changes] == [(3, (), (WHOLE,))]
    assert inputs.held(mark) == {number_of(4)}, "the other one never ends"
    (back,) = follow(inputs, change(4, 2), mark=mark)
    assert back.begins == (WHOLE,)


@pytest.mark.parametrize(
    ("inputs", "is_one"),
    [
        (StageInputs({}, {}), True),
        (StageInputs({}, {WHOLE: None}), True),
        (StageInputs({}, {WHOLE: None, SOURCE: None}), False),
        (StageInputs({SOURCE: EndCondition(("a",), streams=StreamFilter(frozenset({1}), is_rest=False))}, {}), True),
        (StageInputs({SOURCE: ONE}, {}), False),
        (StageInputs({SOURCE: EndCondition(("a",))}, {}), False),
        (
            StageInputs(
                {SOURCE: EndCondition(("a",), streams=StreamFilter(frozenset({1}), is_rest=False))}, {WHOLE: None}
            ),
            False,
        ),
    ],
)
def test_a_minimum_is_computed_only_if_there_may_be_several_inputs(inputs: StageInputs, is_one: bool) -> None:
    assert inputs.is_one == is_one


def test_the_names_of_awaited_sources_are_those_that_end() -> None:
    assert StageInputs({SOURCE: ONE}, {WHOLE: None}).names == ("one",)


def counted(stage: Any) -> Any:
    return stage.window(windows.tumbling(1), aggregates.count(), key=len)


def test_a_source_that_never_ends_is_one_input_and_one_that_ends_has_an_input_for_each_stream() -> None:
    pipeline = Pipeline("p")
    ending = pipeline.source("ending", streams=[1, 2], ends=True)
    endless = pipeline.source("endless", streams=[3, 4])
    counted(ending.merge(endless)).sink("out", to="file:out", codec="json")
    graph = pipeline.graph()
    (inputs,) = make_plan(graph).inputs.values()
    assert set(inputs.sources) == {number_of(0)}
    assert inputs.wholes == {number_of(1): None}
    ids = input_ids(graph, np.array([1, 2, 3, 4], np.uint64))
    assert ids.tolist() == [1, 2, number_of(1), number_of(1)]


def test_a_stage_that_fires_is_one_input_of_the_next_and_ends_with_its_sources() -> None:
    pipeline = Pipeline("p")
    ending = pipeline.source("ending", streams=[1, 2], ends=True)
    counts = counted(ending)
    endless = pipeline.source("endless", streams=[3])
    counted(counts.merge(endless)).sink("out", to="file:out", codec="json")
    plan = make_plan(pipeline.graph())
    inputs = plan.inputs[max(plan.inputs)]
    assert inputs.sources == {}
    window, source = (plan.graph.nodes.index(stage._pipeline._nodes[stage._index]) for stage in (counts, endless))
    assert {number_of(number) for number in inputs.wholes} == {window, source}
    assert inputs.wholes[number_of(window)] is not None
    assert inputs.wholes[number_of(source)] is None
