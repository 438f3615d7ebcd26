"""Values of all documented types through exchanges and states: the output does not depend on epochs or tasks."""

from __future__ import annotations

import json
import tempfile
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession import Pipeline, PlanError
from procession.errors import ProcessionError
from procession.planner.rules import make_plan
from procession.spark.task_state import TaskStateStore
from procession.spark.tasks import Task
from tests.operators.random_pipelines import STREAMS
from tests.operators.reference import batch_of
from tests.operators.test_value_codec import Colour, Money, Order, Point, Rights, Span, all_types_of
from tests.slow_cases import examples
from tests.spark.cluster import Remembered, run_epoch, write_log
from tests.spark.test_plans import expected, ran

TYPES = [Colour, Rights, Point, Span, Order, Money]

VALUES: list[Any] = [
    date(2026, 11, 17),
    time(1, 2, 3, 4, tzinfo=UTC),
    datetime(2026, 3, 29, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Paris")),
    datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-3), "home")),
    timedelta(days=-1, microseconds=7),
    Decimal("1.50"),
    UUID(int=7),
    {1, 2, 3},
    frozenset({("a", 1)}),
    (1, "x", (None,)),
    Point(1, [2]),
    Span(1),
    Order("a", [Money(Decimal("0.10"), Colour.RED)]),
    Colour.BLUE,
    Rights.READ | Rights.WRITE,
    OrderedDict([("b", 1), ("a", 2)]),
    bytearray(b"bytes"),
    {"nested": [bytearray(b"x"), {2**70, 1}]},
    b"bytes",
    "text",
    None,
]


def value_of(payload: bytes) -> Any:
    return VALUES[int(payload) % len(VALUES)]


def shown(value: Any) -> bytes:
    return repr(all_types_of(value)).encode()


def remembered(seen: list[Any], value: Any) -> tuple[list[Any], list[Any]]:
    seen.append(value)
    return seen[-4:], seen


@given(
    numbers=st.lists(st.integers(0, 999), min_size=1, max_size=30),
    cuts=st.sets(st.integers(1, 30), max_size=5),
    slice_records=st.sampled_from([1, 5, 1000]),
    keys_max=st.sampled_from([1, 1000]),
)
@examples(40, deadline=None)
def test_i11_values_of_all_types_are_the_same_behind_exchanges_and_in_states_whatever_the_cuts(
    numbers: list[int], cuts: set[int], slice_records: int, keys_max: int
) -> None:
    pipeline = Pipeline("p", parallelism=3, types=TYPES)
    source = pipeline.source(ends=True)
    made = source.map(value_of)
    made.rebalance(parallelism=2).map(shown).sink("moved", to="file:out")
    held = made.map_stateful(remembered, key=lambda value: type(value).__name__[:1], initial=list)
    held.map(shown).sink("held", to="file:out")
    made.sort(lambda value: repr(all_types_of(value))).map(shown).sink("sorted", to="file:out")
    made.reduce(lambda before, value: (before, value)[-1:], key=lambda value: "all", ttl_s=5, time=lambda value: 1).map(
        shown
    ).sink("reduced", to="file:out")
    graph = pipeline.graph()
    payloads = [b"%d" % number for number in numbers]
    ends = [(len(payloads), stream) for stream in range(STREAMS)]
    got = ran(graph, payloads, cuts, len(payloads), slice_records, keys_max, ends=ends)
    assert got["moved"].splitlines() == [shown(value_of(payload)) for payload in payloads]
    whole = ran(graph, payloads, set(), 1, 1000, 1000, ends=ends)
    assert got == whole


class Foreign:
    def __repr__(self) -> str:
        return "<a foreign one>"


def test_a_state_that_cannot_be_stored_is_refused_by_stage_value_and_type() -> None:
    pipeline = Pipeline("p")
    stage = pipeline.source().map_stateful(lambda state, value: (Foreign(), value), key=bytes, name="odd")
    stage.sink("out", to="file:out")
    plan = make_plan(pipeline.graph())
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_log(work / "log", batch_of([b"a"]))
        (work / "state").mkdir()
        task = Task(plan, work / "log", work / "runs", TaskStateStore(work / "state", Remembered(), 1, 1000))
        failures = [
            manifest.failure for manifest in run_epoch(task, 0, 0, 1, Random(1)) if manifest.failure is not None
        ]
    error = ProcessionError.from_dict(failures[0])
    assert isinstance(error, PlanError)
    for text in ("'odd'", "<a foreign one>", "Foreign"):
        assert text in error.sentence


def test_a_first_state_that_cannot_be_stored_is_refused_where_the_stage_is_written() -> None:
    source = Pipeline("p").source()
    for initial in (Foreign(), [Colour.RED], {"a": Order("x")}):
        with pytest.raises(PlanError, match="the initial state of") as caught:
            source.map_stateful(remembered, key=bytes, initial=initial)
        assert type(initial).__name__ in caught.value.sentence or "types=[" in caught.value.sentence
    listed = Pipeline("p", types=[Colour]).source()
    listed.map_stateful(remembered, key=bytes, initial=[Colour.RED])


def ranks(value: bytes) -> Any:
    number = int(value)
    odd = {3: float("nan"), 5: Decimal("nan"), 7: {1}, 11: [1, (float("nan"),)], 13: Span(1, float("nan"))}
    return (number % 4, odd.get(number % 17, 0.5), Money(Decimal(1), float("nan")) if number % 19 == 1 else 1)


@given(
    numbers=st.lists(st.integers(0, 99), min_size=1, max_size=40),
    cuts=st.sets(st.integers(1, 40), max_size=5),
    slice_records=st.sampled_from([1, 7, 1000]),
)
@examples(40, deadline=None)
def test_i11_nan_anywhere_in_a_rank_sets_the_record_aside_and_the_rest_is_sorted_alike(
    numbers: list[int], cuts: set[int], slice_records: int
) -> None:
    pipeline = Pipeline("p", parallelism=2, dead_letter="file:dead", types=TYPES)
    pipeline.source(ends=True).sort(ranks, name="ranked").sink("out", to="file:out")
    payloads = [b"%d" % number for number in numbers]
    ends = [(len(payloads), stream) for stream in range(STREAMS)]
    got = ran(pipeline.graph(), payloads, cuts, 3, slice_records, 1, ends=ends)
    good = [number for number in numbers if number % 17 not in (3, 5, 7, 11, 13) and number % 19 != 1]
    assert list(map(int, got["out"].splitlines())) == sorted(good, key=lambda number: number % 4)
    letters = list(map(json.loads, got["dead-letter"].splitlines()))
    assert len(letters) == len(numbers) - len(good)
    assert all(letter["stage"] == "ranked" and "cannot be ordered" in letter["error"] for letter in letters)


def test_functions_of_batches_and_several_outputs_see_keys_as_plain_bytes() -> None:
    seen: list[Any] = []

    def observe(batch: Any) -> Any:
        seen.extend(batch.column("key").to_pylist())
        return batch.column("payload")

    pipeline = Pipeline("p", order="key", parallelism=2)
    keyed = pipeline.source().key_by(lambda value: [7, "7", b"7", (1, "a"), None][int(value) % 5])
    keyed.rebalance(parallelism=2).map_batches(observe).sink("out", to="file:out", connections=2)
    got = ran(pipeline.graph(), [b"%d" % number for number in range(10)], {4}, 1)
    assert sorted(seen) == sorted([b"7"] * 6 + [b"(1, 'a')"] * 2 + [b"None"] * 2)
    sevens = [name for name in ("out.0", "out.1") if b"0\n" in got[name] or b"1\n" in got[name]]
    assert len(sevens) == 1, "keys that are alike as bytes are in one output, as they were before keys had types"


def test_the_reference_knows_these_values_too() -> None:
    pipeline = Pipeline("p", parallelism=2, types=TYPES)
    pipeline.source().map(value_of).rebalance().map(shown).sink("out", to="file:out")
    payloads = [b"%d" % number for number in range(len(VALUES))]
    assert ran(pipeline.graph(), payloads, {3}, 1) == expected(pipeline.graph(), payloads)
