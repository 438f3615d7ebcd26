"""Windows: their records, when they fire, how late records are handled, and the arguments."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from procession import Aggregate, Pipeline, PlanError, aggregates, windows
from procession.operators.windows import Windows
from procession.planner.order_key import KEY_BYTES, PLACE, rank_of, rows_of_results
from tests.operators.random_pipelines import STREAMS
from tests.operators.timed_records import key, shown, time, timed_records
from tests.slow_cases import examples
from tests.spark.test_plans import expected, ran

KINDS = [
    windows.tumbling(5),
    windows.sliding(10, every_s=5),
    windows.sliding(4, every_s=1),
    windows.session(4),
    windows.counting(3),
]
RECORDS = timed_records(12, [0, 0, 0, 1, 3, 12], 60)


@given(
    kind=st.sampled_from(KINDS),
    payloads=RECORDS,
    cuts=st.sets(st.integers(1, 50), max_size=3),
    late=st.sampled_from(["drop", "fire", "oldest", "update", "update"]),
    updates=st.sampled_from([1, 7, 30]),
    lateness=st.sampled_from([0, 2]),
    early=st.sampled_from([0, 2]),
    is_keyed=st.booleans(),
    keys_max=st.sampled_from([1, 1000]),
    slice_records=st.sampled_from([1, 7, 1000]),
    ends=st.lists(st.tuples(st.integers(0, 60), st.integers(0, STREAMS - 1)), max_size=6),
    has_ends=st.booleans(),
)
@examples(120)
def test_i11_any_windows_fire_what_the_sequential_run_would_have_fired(
    kind: Windows,
    payloads: list[bytes],
    cuts: set[int],
    late: Any,
    updates: int,
    lateness: int,
    early: int,
    is_keyed: bool,
    keys_max: int,
    slice_records: int,
    ends: list[tuple[int, int]],
    has_ends: bool,
) -> None:
    if late == "update" and (kind.is_session or kind.count):
        late = "drop"
    pipeline = Pipeline("p", parallelism=2, dead_letter="file:dead")
    stage = pipeline.source(ends=has_ends).window(
        kind,
        aggregates.count() if kind.is_session else aggregates.collect(),
        key=key if is_keyed else None,
        time=time,
        late=late,
        updates_s=updates if late == "update" else None,
        lateness_s=lateness,
        early_records=early,
        parallelism=3 if is_keyed else None,
    )
    stage.map(shown).sink("out", to="file:out")
    graph = pipeline.graph()
    ends += [(len(payloads), stream) for stream in range(STREAMS)]
    got = ran(graph, payloads, cuts, len(payloads), slice_records, keys_max, ends=ends)
    assert got == expected(graph, payloads, ends)


def fired(records: list[bytes], kind: Windows, aggregate: Aggregate, **options: Any) -> list[Any]:
    pipeline = Pipeline("p", parallelism=2)
    stage = pipeline.source().window(kind, aggregate, key=key, time=time, **options)
    stage.sink("out", to="file:out", codec="json")
    return [json.loads(line) for line in ran(pipeline.graph(), records, {2}, 1)["out"].splitlines()]


def test_a_window_fires_when_any_key_passes_its_end_in_the_order_of_end_and_key() -> None:
    records = [b"b 1", b"a 2", b"a 7", b"c 16"]
    assert [
        (one["key"], one["end"], one["value"]) for one in fired(records, windows.tumbling(5), aggregates.count())
    ] == [
        ("a", 5, 1),
        ("b", 5, 1),
        ("a", 10, 1),
    ]


def test_records_between_two_sessions_merge_them() -> None:
    records = [b"a 10", b"a 16", b"a 13", b"b 40"]
    (one,) = fired(records, windows.session(5), aggregates.count(), lateness_s=10)
    assert (one["start"], one["end"], one["value"]) == (10, 21, 3)


def test_late_records_are_dropped_or_fired_or_added_to_the_oldest_open_window() -> None:
    records = [b"a 1", b"a 12", b"a 2", b"a 30"]
    fields = {
        late: [
            (one["end"], one["value"], one["fired"])
            for one in fired(records, windows.tumbling(5), aggregates.count(), late=late)
        ]
        for late in ("drop", "fire", "oldest")
    }
    assert fields == {
        "drop": [(5, 1, "end"), (15, 1, "end")],
        "fire": [(5, 1, "end"), (5, 1, "late"), (15, 1, "end")],
        "oldest": [(5, 1, "end"), (15, 2, "end")],
    }


def test_a_late_record_corrects_its_window_and_the_result_names_the_replaced_one() -> None:
    records = [b"a 1", b"a 12", b"a 2", b"b 3", b"a 22", b"a 12", b"a 30", b"a 4"]
    found = fired(records, windows.tumbling(5), aggregates.count(), late="update", updates_s=20)
    assert [
        (result["key"], result["end"], result["value"], result["fired"], result["replaces"]) for result in found
    ] == [
        ("a", 5, 1, "end", None),
        ("a", 5, 2, "update", {"count": 1, "value": 1}),
        ("b", 5, 1, "update", None),  # this window had no record before
        ("a", 15, 1, "end", None),
        ("a", 15, 2, "update", {"count": 1, "value": 1}),
        ("a", 25, 1, "end", None),
        # "a 4" comes more than 20 s after the end of its window: it is dropped.
    ]


def test_a_record_that_cannot_be_added_corrects_nothing() -> None:
    def add(total: int, value: bytes) -> int:
        return total + {b"a 1": 1, b"a 12": 1, b"a 3": 1}[value]

    pipeline = Pipeline("p", dead_letter="file:dead")
    stage = pipeline.source().window(
        windows.tumbling(5),
        Aggregate(lambda: 0, add, lambda total: total),
        key=key,
        time=time,
        late="update",
        updates_s=9,
    )
    stage.sink("out", to="file:out", codec="json")
    lines = ran(pipeline.graph(), [b"a 1", b"a 12", b"a 2", b"a 3"], {2}, 1)["out"].splitlines()
    assert [(one["value"], one["replaces"]) for one in map(json.loads, lines)] == [
        (1, None),
        (2, {"count": 1, "value": 1}),
    ]


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        (windows.tumbling(5), {"late": "update"}, "late='update' and updates_s=None, which belong together"),
        (windows.tumbling(5), {"updates_s": 5}, "late='drop' and updates_s=5, which belong together"),
        (windows.session(5), {"late": "update", "updates_s": 5}, "windows of sessions .* cannot be corrected"),
        (windows.counting(5), {"late": "update", "updates_s": 5}, "windows of 5 records cannot be corrected"),
        (windows.tumbling(5), {"late": "update", "updates_s": 0}, "updates_s=0 is not a duration"),
    ],
)
def test_invalid_options_of_corrections_are_refused(kind: Windows, options: Any, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        Pipeline("p").source().window(kind, aggregates.count(), time=time, **options)


@given(st.lists(st.binary(max_size=KEY_BYTES + 9), min_size=2, max_size=20, unique=True))
@example([b"", b"\0", b"\0\0", b"a", b"a\0", b"a\0\0b"])
@example([b"x" * KEY_BYTES, b"x" * KEY_BYTES + b"\0", b"x" * (KEY_BYTES - 1) + b"\0"])
def test_places_are_unique_and_in_the_order_of_keys(keys: list[bytes]) -> None:
    tail = rows_of_results([(0, (7, key, 0), key, None) for key in keys]).tail
    assert len(tail) == PLACE
    numbers = list(zip(*(column.tolist() for column in tail), strict=True))
    assert len(set(numbers)) == len(keys)
    by_numbers = [key for _, key in sorted(zip(numbers, keys, strict=True))]
    assert by_numbers == sorted(keys, key=rank_of)
    short = [key for key in by_numbers if len(key) <= KEY_BYTES]
    assert short == sorted(short)


def test_aggregates_equal_a_plain_computation() -> None:
    chance = random.Random(5)
    values = [chance.randint(0, 30) for _ in range(100)]
    assert aggregates.count().of(values) == 100
    assert aggregates.sum_of().of(values) == sum(values)
    assert aggregates.mean().of(values) == sum(values) / 100
    assert aggregates.mean().of([]) is None
    assert aggregates.min_by(lambda value: value % 7).of(values) == min(values, key=lambda value: value % 7)
    assert aggregates.max_by(lambda value: value % 7).of(values) == max(values, key=lambda value: value % 7)
    assert aggregates.top(4, lambda value: value % 7).of(values) == sorted(values, key=lambda v: -(v % 7))[:4]
    assert aggregates.collect().of(values) == values
    assert aggregates.all_of(n=aggregates.count(), last=aggregates.max_by()).of([1, 2]) == {"n": 2, "last": 2}


@pytest.mark.parametrize(
    "aggregate",
    [
        aggregates.count(),
        aggregates.sum_of(),
        aggregates.mean(),
        aggregates.min_by(),
        aggregates.max_by(),
        aggregates.top(3),
        aggregates.collect(),
        aggregates.all_of(n=aggregates.count(), all=aggregates.collect()),
    ],
)
def test_two_combined_halves_equal_the_whole(aggregate: Aggregate) -> None:
    values = [3, 1, 4, 1, 5, 9, 2, 6]
    for cut in range(len(values) + 1):
        held = []
        for part in (values[:cut], values[cut:]):
            one = aggregate.create()
            for value in part:
                one = aggregate.add(one, value)
            held.append(one)
        assert aggregate.combine is not None
        assert aggregate.finish(aggregate.combine(*held)) == aggregate.of(values)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda stage: stage.window(5, aggregates.count()),
        lambda stage: stage.window(windows.tumbling(5), len),
        lambda stage: stage.window(windows.tumbling(-5), aggregates.count()),
        lambda stage: stage.window(windows.sliding(5, every_s=2), aggregates.count()),
        lambda stage: stage.window(windows.counting(0), aggregates.count()),
        lambda stage: stage.window(windows.tumbling(5), aggregates.count(), late="never"),
        lambda stage: stage.window(windows.tumbling(5), aggregates.count(), key="host"),
        lambda stage: stage.window(windows.tumbling(5), aggregates.count(), lateness_s=-1),
        lambda stage: stage.window(windows.session(5), Aggregate(list, lambda held, value: held)),
        lambda stage: stage.rolling(len, key=bytes),
        lambda stage: stage.aggregate(len),
        lambda stage: stage.aggregate(aggregates.count(), key="host"),
        lambda stage: stage.map_stateful(None, key=bytes),
        lambda stage: stage.map_stateful(len, key=bytes, initial={1: {2j}}),
        lambda stage: stage.distinct("host"),
    ],
)
def test_a_mistake_is_reported_where_it_was_made_and_with_a_next_step(mistake: Any) -> None:
    with pytest.raises(PlanError) as caught:
        mistake(Pipeline("p").source())
    assert caught.value.next_step
