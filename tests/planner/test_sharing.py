"""Values that several stages could change: the output is as if each stage got its own copy of its input."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from procession import Pipeline, Stage, aggregates, tables, windows
from procession.planner.graph import Exchange, Graph
from procession.planner.rules import make_plan
from tests.spark.test_plans import expected, ran

Value = dict[str, Any]
RECORDS = [json.dumps({"n": number, "deep": {"seen": []}}).encode() for number in range(24)]
ENDS = [(24, 0), (24, 1), (24, 2)]


def marked(value: Value) -> Value:
    """Change the argument and return it."""
    value["marks"] = value.get("marks", 0) + 1
    value["deep"]["seen"].append(value["marks"])
    return value


def of_key(value: Value) -> int:
    return int(value["n"]) % 3


def when(value: Value) -> float:
    return float(value["n"])


def json_pipeline(**options: Any) -> tuple[Pipeline, Stage]:
    pipeline = Pipeline("p", **options)
    return pipeline, pipeline.source("events", codec="json", ends=True)


def sink(stage: Stage, name: str = "out") -> None:
    stage.sink(name, to="file:out", codec="json")


def lines(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


def check(pipeline: Pipeline) -> dict[str, list[Any]]:
    """Return the output by sink, after checking that it is the same for any epochs, tasks and slices."""
    graph = pipeline.graph()
    wanted = expected(graph, RECORDS, ENDS)
    for cuts, keys_max, slice_records, exchange in (
        (set(), 1000, 1000, Exchange.RUNS),
        ({5, 6, 17}, 1000, 4, Exchange.SPARK),
        (set(range(1, 24)), 1, 1, Exchange.RUNS),
    ):
        got = ran(graph, RECORDS, cuts, 3, slice_records, keys_max, exchange, ends=ENDS)
        assert {name: lines(data) for name, data in got.items()} == {name: lines(data) for name, data in wanted.items()}
    return {name: lines(data) for name, data in wanted.items()}


def test_a_sink_gets_unchanged_records_when_another_branch_changes_them() -> None:
    pipeline, events = json_pipeline()
    sink(events, "raw")
    sink(events.map(marked), "enriched")
    found = check(pipeline)
    assert all("marks" not in result and result["deep"]["seen"] == [] for result in found["raw"])
    assert all(value["marks"] == 1 for value in found["enriched"])


@pytest.mark.parametrize("is_first", [False, True])
def test_branches_do_not_see_each_others_changes(is_first: bool) -> None:
    pipeline, events = json_pipeline()
    first = events.map(marked).map(marked)
    middle = events.filter(lambda value: bool(value.pop("deep")))
    last = events.peek(marked)
    sink(first.merge(middle, last) if is_first else last.merge(middle, first))
    found = check(pipeline)["out"]
    assert sorted({result.get("marks", 0) for result in found}) == [0, 1, 2]


def test_branches_that_meet_again_do_not_see_each_others_changes() -> None:
    pipeline, events = json_pipeline()
    sink(events.merge(events.map(marked), events.filter(marked)).map(marked))
    assert sorted({value["marks"] for value in check(pipeline)["out"]}) == [1, 2]


def three_times(value: Value) -> Iterator[Value]:
    yield from [value] * 3


def three_in_a_list(value: Value) -> list[Value]:
    return [value] * 3


def three_parts(value: Value) -> list[Value]:
    return [{"n": value["n"], "deep": value["deep"], "part": part} for part in range(3)]


@pytest.mark.parametrize("function", [three_times, three_in_a_list, three_parts])
@pytest.mark.parametrize("way", ["fused", "called", "rebalance", "async", "flat_map_stateful"])
def test_an_object_that_is_returned_three_times_is_three_values(function: Callable[[Value], Any], way: str) -> None:
    async def asked(value: Value) -> Value:
        return marked(value)

    pipeline, events = json_pipeline()
    three = events.flat_map(function)
    match way:
        case "fused":
            three = three.map(marked)
        case "called":
            three = three.peek(len).key_by(lambda value: marked(value)["n"])
        case "rebalance":
            three = three.rebalance(parallelism=3).map(marked)
        case "async":
            three = three.map_async(asked)
        case "flat_map_stateful":
            stateful = events.flat_map_stateful(lambda state, value: (state, function(value)), key=of_key, initial=0)
            three = stateful.map(marked)
    sink(three)
    assert [one["marks"] for one in check(pipeline)["out"]] == [1] * 72


def test_a_generator_may_change_a_yielded_object_and_yield_it_again() -> None:
    def counted(value: Value) -> Iterator[Value]:
        for number in range(3):
            value["deep"]["number"] = number
            yield value

    pipeline, events = json_pipeline()
    sink(events.flat_map(counted))
    assert [one["deep"]["number"] for one in check(pipeline)["out"]] == [0, 1, 2] * 24


@pytest.mark.parametrize("kind", ["map", "filter", "flat_map"])
@pytest.mark.parametrize("ttl_s", [None, 1000.0])
def test_a_state_shares_no_object_with_its_results(kind: str, ttl_s: float | None) -> None:
    def kept(state: Any, value: Value) -> Any:
        marks = sum(one.get("marks", 0) for one in state)
        state.append(value)
        value["before"] = [marks, len(state)]
        return state, {"map": value, "filter": True, "flat_map": [value, value]}[kind]

    pipeline, events = json_pipeline(parallelism=3)
    expiry: dict[str, Any] = {} if ttl_s is None else {"ttl_s": ttl_s, "time": when}
    stage = getattr(events, f"{kind}_stateful")(kept, key=of_key, initial=list, **expiry)
    sink(stage.map(marked))
    assert all(one["before"][0] == 0 for one in check(pipeline)["out"])


def test_a_function_of_initial_states_may_return_the_same_object_each_time() -> None:
    first: dict[str, int] = {"count": 0}

    def counted(state: dict[str, int], value: Value) -> Any:
        state["count"] += 1
        return state, state

    pipeline, events = json_pipeline()
    sink(events.map_stateful(counted, key=of_key, initial=lambda: first))
    assert max(one["count"] for one in check(pipeline)["out"]) == 8
    assert first == {"count": 0}


@pytest.mark.parametrize("is_in_join", [False, True])
def test_a_row_of_a_table_is_the_same_for_every_record(is_in_join: bool) -> None:
    def changed(row: Any) -> Any:
        row["count"] += 1
        row["deep"].append(row["count"])
        return row

    def joined(value: Value, row: Any) -> Any:
        value["joins"] = value.get("joins", 0) + 1
        return {"value": value, "row": changed(row) if is_in_join else row}

    table = tables.of_rows([{"id": number % 3, "count": 0, "deep": []} for number in range(6)], by="id")
    pipeline, events = json_pipeline(parallelism=2)
    stage = events.hash_join(table, key=of_key, join=joined)
    sink(stage if is_in_join else stage.peek(lambda value: changed(value["row"])))
    found = check(pipeline)["out"]
    assert [(result["row"]["count"], result["row"]["deep"], result["value"]["joins"]) for result in found] == [
        (1, [1], 1)
    ] * 48


def test_records_that_wait_for_a_partner_are_not_changed_through_earlier_pairs() -> None:
    def joined(left: Value, right: Value) -> list[Value]:
        return [marked(left), marked(right)]

    pipeline, events = json_pipeline(parallelism=2)
    pairs = events.join(events.map(marked), within_s=7, join=joined, key=of_key, time=when)
    sink(pairs.peek(lambda pair: marked(pair[0])))
    assert {(value[0]["marks"], value[1]["marks"]) for value in check(pipeline)["out"]} == {(2, 2)}


@pytest.mark.parametrize("late", ["drop", "fire"])
def test_overlapping_windows_each_hold_their_own_copy_of_a_record(late: Any) -> None:
    def added(held: list[Value], value: Value) -> list[Value]:
        for one in held:
            one["later"] = one.get("later", 0) + 1
        held.append(value)
        return held

    pipeline, events = json_pipeline()
    aggregate = aggregates.Aggregate(list, added, list)
    sink(events.window(windows.sliding(6, every_s=2), aggregate, time=when, late=late))
    for window in check(pipeline)["out"]:
        assert [one.get("later", 0) for one in window["value"]] == list(reversed(range(window["count"])))


def test_parallel_aggregates_each_hold_their_own_copy_of_a_record() -> None:
    def added(held: list[Value], value: Value) -> list[Value]:
        for one in held:
            one["later"] = 1
        return [*held, value]

    beside = aggregates.all_of(n=aggregates.count(), a=aggregates.collect(), b=aggregates.Aggregate(list, added, list))
    pipeline, events = json_pipeline()
    sink(events.rolling(beside, key=of_key))
    assert not any("later" in value for one in check(pipeline)["out"] for value in one["a"])


SHARED: dict[str, Any] = {"deep": {"seen": []}}


@functools.lru_cache
def cached(number: int) -> Value:
    return {"n": number, "deep": {"seen": []}}


def constant(value: Value) -> Value:
    return {"n": value["n"], **SHARED}


class Enriching:
    def __init__(self) -> None:
        self.row: Value = {"n": 0, "deep": {"seen": []}}

    def enriched(self, value: Value) -> Value:
        return self.row


async def asked_constant(value: Value) -> Value:
    return constant(value)


BORROWING: dict[str, Callable[[Stage], Stage]] = {
    "global": lambda stage: stage.map(constant),
    "cache": lambda stage: stage.map(lambda value: cached(value["n"] % 5)),
    "bound method": lambda stage: stage.map(Enriching().enriched),
    "default": lambda stage: stage.map(lambda value, _row=dict(SHARED): {"n": value["n"], **_row}),
    "flat_map": lambda stage: stage.flat_map(lambda value: [constant(value)]),
    "map_async": lambda stage: stage.map_async(asked_constant),
    "stateful": lambda stage: stage.map_stateful(
        lambda state, value: (state + 1, constant(value)), key=of_key, initial=0
    ),
}


@pytest.mark.parametrize("how", BORROWING)
def test_an_object_that_a_function_holds_is_not_changed_by_a_later_stage(how: str) -> None:
    pipeline, events = json_pipeline()
    sink(BORROWING[how](events).map(marked))
    assert all(value["deep"]["seen"] == [1] for value in check(pipeline)["out"])
    assert SHARED == {"deep": {"seen": []}}
    cached.cache_clear()


def test_a_value_that_cannot_be_copied_is_the_error_of_the_stage_that_made_it() -> None:
    pipeline, events = json_pipeline(dead_letter="file:dead")
    made = events.map(lambda value: {**value, "each": (one for one in value)}, name="maker").filter(bool)
    sink(made.map(lambda value: value.pop("each") and value), "first")
    sink(made.map(lambda value: value.pop("each") and value), "second")
    graph = pipeline.graph()
    letters = lines(ran(graph, RECORDS, {7}, 1, ends=ENDS)["dead-letter"])
    assert [letter["stage"] for letter in letters] == ["maker"] * 24


# A value is not copied if it has one holder, or if no stage changes it


def is_copying(graph: Graph) -> bool:
    sharing = make_plan(graph).sharing
    return bool(sharing.copied or sharing.borrowing)


def test_consecutive_stages_copy_nothing() -> None:
    pipeline, events = json_pipeline()
    sink(events.map(marked).filter(of_key).map(marked).rebalance(parallelism=2).map(marked))
    assert not is_copying(pipeline.graph())


def test_branches_that_change_nothing_copy_nothing() -> None:
    pipeline, events = json_pipeline()
    sink(events, "raw")
    sink(events.filter(lambda value: value["n"] > 3), "some")
    sink(events.map(lambda value: {**value, "more": value["n"] + 1}), "more")
    sink(events.map_stateful(lambda state, value: (state, marked(value)), key=of_key, initial=0), "keyed")
    assert not is_copying(pipeline.graph())


def test_if_all_branches_change_a_value_the_last_one_gets_the_original() -> None:
    pipeline, events = json_pipeline()
    sink(events.map(marked), "one")
    sink(events.rebalance(lambda value: marked(value)["n"], parallelism=2), "two")
    sink(events.map(marked), "three")
    graph = pipeline.graph()
    assert make_plan(graph).sharing.copied == {(0, 1), (0, 5)}
    check(pipeline)


# Random pipelines


def pop_deep(value: Value) -> bool:
    value["deep"]["seen"].append("filter")
    return len(value["deep"]["seen"]) % 4 != 3


def same_again(value: Value) -> list[Value]:
    value["deep"]["seen"].append("twice")
    return [value, {"n": value["n"], "deep": value["deep"]}]


def growing(value: Value) -> Iterator[Value]:
    for number in range(2):
        value["deep"]["seen"].append(number)
        yield value


def last_two(state: list[Value], value: Value) -> tuple[list[Value], Value]:
    for one in state:
        one["deep"]["seen"].append("state")
    state.append(value)
    return state[-2:], state[0]


def is_kept(state: list[Value], value: Value) -> tuple[list[Value], bool]:
    for one in state:
        one["deep"]["seen"].append("kept")
    return [*state[-1:], value], len(state) != 1


async def marked_later(value: Value) -> Value:
    return marked(value)


TABLE = tables.of_rows([{"id": number, "rows": [number]} for number in range(3)], by="id")


def with_row(value: Value, row: Any) -> Value:
    row["rows"].append(len(value["deep"]["seen"]))
    value["deep"]["seen"].append(row["rows"])
    return value


STAGES: dict[str, Callable[[Stage], Stage]] = {
    "map": lambda stage: stage.map(marked),
    "constant": lambda stage: stage.map(constant),
    "filter": lambda stage: stage.filter(pop_deep),
    "peek": lambda stage: stage.peek(marked),
    "list": lambda stage: stage.flat_map(same_again),
    "generator": lambda stage: stage.flat_map(growing),
    "async": lambda stage: stage.map_async(marked_later),
    "table": lambda stage: stage.hash_join(TABLE, key=of_key, join=with_row),
    "rebalance": lambda stage: stage.rebalance(parallelism=2),
    "by_key": lambda stage: stage.rebalance(of_key, parallelism=3),
    "map_stateful": lambda stage: stage.map_stateful(last_two, key=of_key, initial=list),
    "filter_stateful": lambda stage: stage.filter_stateful(is_kept, key=of_key, initial=list, ttl_s=99, time=when),
}


@st.composite
def changing_pipelines(draw: st.DrawFn) -> Pipeline:
    pipeline, source = json_pipeline(parallelism=draw(st.integers(1, 3)))
    places = [source]
    exchanges = doublings = 0
    for _ in range(draw(st.integers(1, 6))):
        place = places[-1] if draw(st.booleans()) else draw(st.sampled_from(places))
        what = draw(st.sampled_from([*STAGES, "merge"]))
        exchanges += what in ("rebalance", "by_key", "map_stateful", "filter_stateful")
        doublings += what in ("list", "generator", "merge")
        others = [other for other in places if other is not place]
        if exchanges > 3 or doublings > 3 or (what == "merge" and not others):
            continue
        places.append(place.merge(draw(st.sampled_from(others))) if what == "merge" else STAGES[what](place))
    for number in sorted({len(places) - 1, *draw(st.sets(st.integers(0, len(places) - 1), max_size=2))}):
        sink(places[number], f"out-{number}")
    return pipeline


@given(
    pipeline=changing_pipelines(),
    count=st.integers(0, 24),
    cuts=st.sets(st.integers(1, 23), max_size=3),
    seed=st.integers(0, 99),
    slice_records=st.sampled_from([1, 3, 1000]),
    keys_max=st.sampled_from([1, 1000]),
    exchange=st.sampled_from(Exchange),
)
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_i11_stages_that_change_their_values_write_the_same_as_a_run_that_copies_everything(
    pipeline: Pipeline,
    count: int,
    cuts: set[int],
    seed: int,
    slice_records: int,
    keys_max: int,
    exchange: Exchange,
) -> None:
    graph, records = pipeline.graph(), RECORDS[:count]
    got = ran(graph, records, cuts, seed, slice_records, keys_max, exchange)
    assert got == expected(graph, records), pipeline.explain()
