"""Ends of streams: their positions in the sequence, what they fire, and which stages are refused because their source
never ends."""

from __future__ import annotations

import io
import json
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession import Aggregate, Pipeline, PlanError, aggregates, windows
from procession.operators.end_of_input import EndCondition, StreamChange, StreamChanges, find_endings, new_mark
from procession.planner.rules import make_plan
from tests.operators.random_pipelines import FIRST_STREAM, STREAMS
from tests.operators.reference import Ends, batch_of
from tests.operators.timed_records import key, shown, time
from tests.slow_cases import examples
from tests.spark.test_plans import expected, ran

MARKS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, STREAMS - 1)), max_size=8)
RECORDS = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"dd"]), st.integers(0, 9)), max_size=40)


def payloads_of(records: list[tuple[bytes, int]]) -> list[bytes]:
    return [b"%s %d" % (name, number + later) for number, (name, later) in enumerate(records)]


def picky(value: Any) -> Any:
    if value["count"] == 2:
        raise ValueError("two")
    return value


def not_commutative() -> Aggregate:
    def add(held: bytes, value: bytes) -> bytes:
        if value.endswith(b"13"):
            raise ValueError(value)
        return held + value[-1:]

    return Aggregate(bytes, add, len)


def every_way(pipeline: Pipeline) -> None:
    """Return a pipeline of stages that fire at an end: parallel, consecutive, with one source and with two."""
    some = pipeline.source("some", streams=[FIRST_STREAM], ends=True)
    rest = pipeline.source("rest", ends=True)
    both = some.merge(rest)
    by_key = both.window(windows.tumbling(5), aggregates.count(), key=key, time=time, parallelism=3)
    threes = both.window(windows.counting(3), aggregates.collect(), key=key, parallelism=2)
    # Consecutive, and by the event time of the record that fired the first.
    nested = by_key.map(picky).window(windows.counting(2), aggregates.collect(), key=lambda one: one["key"])
    timed = threes.window(windows.tumbling(7), aggregates.count())
    by_key.merge(threes).map(shown).sink("merged", to="file:out")
    nested.merge(by_key, timed).rebalance(parallelism=3).map(shown).sink("nested", to="file:out")
    # In the order of the records; and totals of totals.
    pairs = both.aggregate(not_commutative(), key=key, parallelism=3)
    pairs.merge(both.aggregate(not_commutative())).map(shown).sink("totals", to="file:out")
    pairs.map(picky).aggregate(aggregates.collect()).merge(by_key).map(shown).sink("all", to="file:out")
    some.window(windows.session(3), aggregates.count(), time=time).map(shown).sink("some-out", to="file:out")
    rest.window(windows.session(3), aggregates.count(), key=key, time=time).map(shown).sink("rest-out", to="file:out")


@given(
    records=RECORDS,
    ends=MARKS,
    cuts=st.sets(st.integers(1, 50), max_size=4),
    slice_records=st.sampled_from([1, 7, 1000]),
    keys_max=st.sampled_from([1, 1000]),
)
@examples(40)
def test_i11_an_end_fires_what_the_sequential_run_would_have_fired(
    records: list[tuple[bytes, int]],
    ends: list[tuple[int, int]],
    cuts: set[int],
    slice_records: int,
    keys_max: int,
) -> None:
    pipeline = Pipeline("p", parallelism=2, dead_letter="file:dead")
    every_way(pipeline)
    payloads = payloads_of(records)
    ends = [*ends, *((len(payloads), stream) for stream in range(STREAMS))]
    got = ran(pipeline.graph(), payloads, cuts, len(payloads), slice_records, keys_max, ends=ends)
    assert got == expected(pipeline.graph(), payloads, ends)


def fired(stops: Ends, payloads: list[bytes], **options: Any) -> list[Any]:
    pipeline = Pipeline("p", parallelism=2)
    stage = pipeline.source(**options).window(windows.counting(100), aggregates.count(), key=key)
    stage.sink("out", to="file:out", codec="json")
    out = ran(pipeline.graph(), payloads, {2}, 1, ends=stops)["out"]
    return [(line["key"], line["value"]) for line in map(json.loads, out.splitlines())]


ALL = [(4, 0), (4, 1), (4, 2)]
FOUR = [b"a", b"b", b"a", b"c"]


def test_windows_that_are_open_when_all_streams_have_ended_fire_by_key() -> None:
    assert fired(ALL, FOUR, ends=True) == [("a", 2), ("b", 1), ("c", 1)]


def test_nothing_fires_while_a_stream_is_open_or_an_awaited_one_has_not_begun() -> None:
    assert fired(ALL[:2], FOUR, ends=True) == []
    assert fired([(1, 0)], FOUR[:1], ends=True, streams=range(FIRST_STREAM, FIRST_STREAM + 2)) == []
    assert fired([(1, 0)], FOUR[:1], ends=True) == [("a", 1)]


def test_a_source_that_is_not_declared_to_end_does_not_end() -> None:
    assert fired(ALL, FOUR) == []
    assert fired(ALL, FOUR, ends=False) == []


def test_a_repeated_end_fires_nothing_twice_and_a_stream_that_returns_starts_again() -> None:
    assert fired([*ALL, (4, 1), (5, 1)], [*FOUR, b"a"], ends=True) == [("a", 2), ("b", 1), ("c", 1), ("a", 1)]


def totals(stops: Ends, payloads: list[bytes], **options: Any) -> list[Any]:
    pipeline = Pipeline("p", parallelism=3)
    source = pipeline.source(ends=True)
    source.aggregate(aggregates.collect(), **options).sink("out", to="file:out", codec="msgpack", framing="raw")
    out = ran(pipeline.graph(), payloads, {2}, 1, ends=stops)["out"]
    return list(msgpack.Unpacker(io.BytesIO(out)))


def test_totals_are_of_all_records_in_their_order_and_of_those_since_the_last_end() -> None:
    assert totals([*ALL, (5, 1)], [*FOUR, b"a"]) == [
        {"count": 4, "value": FOUR},
        {"count": 1, "value": [b"a"]},
    ]
    assert totals(ALL, FOUR, key=key) == [
        {"key": b"a", "count": 2, "value": [b"a", b"a"]},
        {"key": b"b", "count": 1, "value": [b"b"]},
        {"key": b"c", "count": 1, "value": [b"c"]},
    ]


def test_without_records_there_is_one_total_without_keys_and_none_with_keys() -> None:
    assert totals([(0, 0)], []) == [{"count": 0, "value": []}]
    assert totals([(0, 0)], [], key=key) == []


@pytest.mark.parametrize(
    "word",
    [lambda stage: stage.aggregate(aggregates.count()), lambda stage: stage.aggregate(aggregates.count(), key=key)],
)
def test_a_total_of_a_source_that_never_ends_is_refused_with_two_ways_out(word: Any) -> None:
    pipeline = Pipeline("p")
    word(pipeline.source("endless").merge(pipeline.source("ended", streams=[1], ends=True))).sink("out", to="file:out")
    with pytest.raises(PlanError) as caught:
        pipeline.explain()
    assert "source 'endless' never ends" in caught.value.sentence
    assert "ends=True" in caught.value.next_step
    assert "window(…)" in caught.value.next_step
    make_plan(pipeline.graph().with_inputs(frozenset({7})))


def test_each_stream_is_reported_once_until_it_ends() -> None:
    batch = batch_of([b"x"] * 6, 10, 2, [(3, 0), (6, 1)])
    listening = StreamChanges()
    numbers = np.arange(100, 100 + batch.num_rows)
    is_end = batch.column("kind").to_numpy() == 1
    listening.add(batch.slice(0, 2), numbers[:2], is_end[:2])
    listening.add(batch.slice(2), numbers[2:], is_end[2:])
    results = [(change.sequence, change.stream, change.is_end) for change in listening.changes]
    assert results == [
        (100, 10, False),
        (101, 11, False),
        (103, 10, True),
        (105, 10, False),
        (107, 11, True),
        (107, -1, False),
    ]


def test_the_stored_streams_are_bounded_by_those_that_are_open_or_awaited() -> None:
    mark, ending = new_mark(), EndCondition(("s",), frozenset({5}))
    for stream in range(1000):
        ending.follow(mark, [StreamChange(stream, stream, False, 0), StreamChange(stream, stream, True, 0)])
    assert mark["open"] == {}
    assert list(mark["ended"]) == [5]


def test_with_inputs_every_source_ends_unless_it_is_declared_not_to() -> None:
    pipeline = Pipeline("p")
    for name, options in (("one", {}), ("two", {"streams": [2, 3]}), ("never", {"streams": [4], "ends": False})):
        stage = pipeline.source(name, **options)  # type: ignore[arg-type]
        stage.window(windows.counting(3), aggregates.count()).sink(f"{name}-out", to="file:out", codec="json")
    graph = pipeline.graph()
    assert find_endings(graph) == {}
    endings = list(find_endings(graph.with_inputs(frozenset({1, 2, 4}))).values())
    assert [ending.sources for ending in endings] == [("one",), ("two",)]
    assert [ending.awaited for ending in endings] == [{1}, {2}]
    assert endings[0].takes(1)
    assert not endings[0].takes(3)
    assert endings[1].takes(3)


@pytest.mark.parametrize("value", ["yes", 3])
def test_whether_a_source_ends_is_true_or_false(value: Any) -> None:
    with pytest.raises(PlanError):
        Pipeline("p").source(ends=value)
