"""Joins of two streams: which records are paired, where a pair is placed, how long a record waits, and the
arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession import Pipeline, PlanError
from procession.api.stage import Stage
from tests.operators.random_pipelines import FIRST_STREAM, STREAMS
from tests.operators.timed_records import key, time, timed_records
from tests.slow_cases import examples
from tests.spark.test_plans import expected, ran


def together(left: bytes, right: bytes | None) -> bytes:
    return left + b" + " + (b"nobody" if right is None else right)


def in_dicts(left: bytes, right: bytes | None) -> dict[str, Any]:
    return {"left": left.decode(), "right": [None if right is None else right.decode()]}


def is_even(value: bytes) -> bool:
    return time(value) % 2 == 0


def two_sources(pipeline: Pipeline) -> tuple[Stage, Stage]:
    return pipeline.source("one", ends=True), pipeline.source("two", streams=[FIRST_STREAM + 1], ends=True)


def two_branches(pipeline: Pipeline) -> tuple[Stage, Stage]:
    source = pipeline.source(ends=True)
    return source.map(bytes.upper, name="upper"), source.filter(is_even)


def one_stage(pipeline: Pipeline) -> tuple[Stage, Stage]:
    source = pipeline.source(ends=True)
    return source, source


def behind_exchanges(pipeline: Pipeline) -> tuple[Stage, Stage]:
    """Return a join whose two streams come from different chains."""
    source = pipeline.source(ends=True)
    return source.rebalance(key, parallelism=3), source.flat_map(lambda value: [value, value.lower()])


INPUTS = [two_sources, two_branches, one_stage, behind_exchanges]
RECORDS = timed_records(9, [0, 0, 0, 1, 3, 25], 50)


@given(
    inputs=st.sampled_from(INPUTS),
    payloads=RECORDS,
    cuts=st.sets(st.integers(1, 40), max_size=3),
    within=st.sampled_from([1, 5, 16]),
    lateness=st.sampled_from([0, 2]),
    is_outer=st.booleans(),
    join=st.sampled_from([together, in_dicts]),
    keys_max=st.sampled_from([1, 1000]),
    slice_records=st.sampled_from([1, 7, 1000]),
    ends=st.lists(st.tuples(st.integers(0, 50), st.integers(0, STREAMS - 1)), max_size=8),
)
@examples(150, deadline=None)
def test_i11_any_join_gives_the_pairs_that_the_sequential_run_would_have_given(
    inputs: Any,
    payloads: list[bytes],
    cuts: set[int],
    within: int,
    lateness: int,
    is_outer: bool,
    join: Any,
    keys_max: int,
    slice_records: int,
    ends: list[tuple[int, int]],
) -> None:
    pipeline = Pipeline("p", parallelism=2, dead_letter="file:dead")
    left, right = inputs(pipeline)
    pairs = left.join(
        right, within_s=within, join=join, key=key, time=time, lateness_s=lateness, outer=is_outer, parallelism=3
    )
    pairs.sink("pairs", to="file:out", codec="json" if join is in_dicts else "bytes")
    # Merged in order again with records that bypassed the join.
    left.merge(pairs.map(lambda pair: repr(pair).encode())).sink("all", to="file:out")
    graph = pipeline.graph()
    found = ran(graph, payloads, cuts, len(payloads), slice_records, keys_max, ends=ends)
    assert found == expected(graph, payloads, ends)


def small_and_capital(pipeline: Pipeline) -> tuple[Stage, Stage]:
    source = pipeline.source()
    return source.filter(bytes.islower), source.filter(bytes.isupper)


def paired(records: list[bytes], join: Any = together, **options: Any) -> dict[str, bytes]:
    """Join small letters, the left side, with capitals, the right side."""
    pipeline = Pipeline("p", parallelism=2, dead_letter="file:dead")
    left, right = small_and_capital(pipeline)
    by = {"key": lambda value: key(value).lower(), "time": time}
    left.join(right, within_s=10, join=join, **by, **options, name="pairs").sink("out", to="file:out")
    found = ran(pipeline.graph(), records, {2}, 1)
    assert found == expected(pipeline.graph(), records)
    return found


def lines(found: dict[str, bytes]) -> list[bytes]:
    return found["out"].splitlines()


def test_a_pair_is_at_the_position_of_its_later_record_in_the_order_of_the_partners() -> None:
    records = [b"a 1", b"B 2", b"a 3", b"A 4", b"b 5", b"A 6"]
    assert lines(paired(records)) == [b"a 1 + A 4", b"a 3 + A 4", b"b 5 + B 2", b"a 1 + A 6", b"a 3 + A 6"]


def test_an_unmatched_record_is_emitted_alone_when_any_key_is_past_its_bound() -> None:
    records = [b"b 1", b"X 1", b"a 1", b"c 5", b"C 6", b"X 20", b"a 20"]
    assert lines(paired(records)) == [b"c 5 + C 6"]
    assert lines(paired(records, outer=True)) == [b"c 5 + C 6", b"a 1 + nobody", b"b 1 + nobody"]


def test_a_late_record_is_paired_with_held_records_and_is_not_held_itself() -> None:
    records = [b"x 0", b"A 30", b"X 40", b"a 1", b"A 2", b"a 21", b"A 22", b"a 38"]
    # The right one of 30 is held until 40 is passed, so 21, which is late, still finds it; the late one of 1 finds
    # nobody, and nobody finds a late one: not 21 and 22 each other.
    assert lines(paired(records, outer=True)) == [
        b"x 0 + nobody",
        b"a 1 + nobody",
        b"a 21 + A 30",
        b"a 38 + A 30",
    ]


def test_a_join_that_raises_drops_the_record_that_completed_the_pair() -> None:
    def picky(left: bytes, right: bytes) -> bytes:
        if right == b"A 2":
            raise ValueError("not this one")
        return together(left, right)

    found = paired([b"a 1", b"A 2", b"a 3", b"A 4"], picky)
    assert lines(found) == [b"a 1 + A 4", b"a 3 + A 4"]
    assert b'"stage": "pairs", "error": "ValueError: not this one"' in found["dead-letter"]


def test_the_results_of_a_join_share_no_object_with_held_records() -> None:
    pipeline = Pipeline("p", parallelism=1)
    source = pipeline.source("source", codec="json")

    def changed(value: dict[str, Any]) -> dict[str, Any]:
        value["seen"].append(len(value["seen"]))
        return value

    pairs = source.join(source, within_s=10, join=lambda left, right: left, key=lambda v: v["k"], time=lambda v: v["t"])
    pairs.map(changed).sink("out", to="file:out", codec="json")
    records = [b'{"k": 1, "t": %d, "seen": []}' % number for number in range(3)]
    found = lines(ran(pipeline.graph(), records, set(), 1))
    assert {json.loads(line)["seen"][-1] for line in found} == {0}


def test_more_held_records_of_a_key_than_the_limit_are_reported() -> None:
    with pytest.raises(AssertionError, match="holds more than 3 records of key b'a'"):
        paired([b"a %d" % number for number in range(6)], held_max=3)


@pytest.mark.parametrize(
    "mistake",
    [
        {"key": None},
        {"key": None, "left_key": key},
        {"left_key": key},
        {"time": None, "right_time": time},
        {"key": "id"},
        {"join": None},
        {"within_s": 0},
        {"within_s": "1"},
        {"lateness_s": -1},
        {"held_max": 0},
        {"outer": "left"},
        {"name": "-"},
    ],
)
def test_a_mistake_is_reported_where_it_was_made_and_with_a_next_step(mistake: dict[str, Any]) -> None:
    left, right = two_sources(Pipeline("p"))
    options: dict[str, Any] = {"within_s": 1, "join": together, "key": key, "time": time, **mistake}
    with pytest.raises(PlanError) as caught:
        left.join(right, **options)
    assert caught.value.next_step


def test_stages_of_other_pipelines_and_tables_are_refused_by_join() -> None:
    left, _ = two_sources(Pipeline("p"))
    for other in (Pipeline("q").source(), {}):
        with pytest.raises(PlanError, match="not a stage of pipeline 'p'"):
            left.join(other, within_s=1, join=together, key=key)  # type: ignore[arg-type]
