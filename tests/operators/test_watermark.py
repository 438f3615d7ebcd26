"""Watermarks of stages with several inputs: the minimum over those that have not ended, for any epochs."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Sequence, Set
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession import Pipeline, PlanError, aggregates, windows
from procession.api.stage import Stage
from procession.errors import ProcessionError
from procession.operators import chain as chain_module
from procession.operators.watermark import InputFrontier
from procession.planner.rules import make_plan
from procession.spark.task_state import TaskStateStore
from procession.spark.tasks import Task
from procession.storage.segment import INGRESS_SCHEMA, KIND_EOS
from tests.operators.reference import Sequential
from tests.operators.timed_records import key, shown, time
from tests.slow_cases import examples
from tests.spark.cluster import Remembered, run_epoch, write_log, written

Sent = Sequence[tuple[int, bytes | None]]
"""The input in order: the stream and the record, or None for the end of the stream."""


def batch_of(sent: Sent) -> pa.RecordBatch:
    rows = [
        (KIND_EOS, stream, number, 0, b"", b"") if payload is None else (0, stream, number, 1, b"", payload)
        for number, (stream, payload) in enumerate(sent)
    ]
    columns = zip(*rows, strict=True) if rows else [()] * 6
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, INGRESS_SCHEMA, strict=True)],
        schema=INGRESS_SCHEMA,
    )


def ran(
    pipeline: Pipeline,
    sent: Sent,
    cuts: Set[int] = frozenset(),
    slice_records: int = 1000,
    inputs: Set[int] = frozenset(),
) -> tuple[dict[str, bytes], int]:
    """Return the outputs and the number of late records, after a comparison with the sequential run."""
    graph = pipeline.graph().with_inputs(frozenset(inputs))
    plan = make_plan(graph)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain_module, "CHAIN_RECORDS_MAX", slice_records)
        work = Path(folder)
        write_log(work / "log", batch_of(sent))
        (work / "state").mkdir()
        committed = Remembered()
        task = Task(plan, work / "log", work / "runs", TaskStateStore(work / "state", committed, 1, 2))
        edges = [0, *sorted(cut for cut in cuts if cut < len(sent)), len(sent)]
        epochs = []
        for epoch, edge in enumerate(pairwise(edges)):
            epochs.append(run_epoch(task, epoch, *edge, random.Random(epoch)))
            committed.add(plan, epochs[-1])
        manifests = [manifest for epoch in epochs for manifest in epoch]
        for manifest in manifests:
            if manifest.failure is not None:
                raise ProcessionError.from_dict(manifest.failure)
        found = written(plan, work / "runs", epochs)
    assert found == Sequential(graph).run(batch_of(sent))
    return found, sum(manifest.late for manifest in manifests)


def together(left: bytes, right: bytes | None) -> bytes:
    return left + b" + " + (b"nobody" if right is None else right)


def two_files(pipeline: Pipeline, **more: Any) -> Stage:
    one, two = pipeline.source("one", streams=[1]), pipeline.source("two", streams=[2])
    return one.join(two, within_s=5, join=together, key=key, time=time, parallelism=2, **more)


RECORDS = 300
ONE_AFTER_THE_OTHER: Sent = [
    *((1, b"%d %d" % (number % 7, 10 * number)) for number in range(RECORDS)),
    (1, None),
    *((2, b"%d %d" % (number % 7, 10 * number + 3)) for number in range(RECORDS)),
    (2, None),
]


@pytest.mark.parametrize("cuts", [set(), {RECORDS - 1}, {RECORDS, RECORDS + 1, RECORDS + 2}, set(range(7, 600, 50))])
def test_a_join_of_two_files_loses_no_pair_if_one_file_is_read_first(cuts: set[int]) -> None:
    pipeline = Pipeline("p", parallelism=2)
    two_files(pipeline).sink("out", to="file:out")
    found, late = ran(pipeline, ONE_AFTER_THE_OTHER, cuts, inputs={1, 2})
    assert len(found["out"].splitlines()) == RECORDS
    assert late == 0


def test_files_of_one_source_hold_the_watermark_back_one_by_one() -> None:
    pipeline = Pipeline("p", parallelism=2)
    counts = pipeline.source("all").window(windows.tumbling(100), aggregates.count(), time=time)
    counts.sink("out", to="file:out", codec="json")
    found, late = ran(pipeline, ONE_AFTER_THE_OTHER, {100, 450}, inputs={1, 2})
    assert [json.loads(line)["count"] for line in found["out"].splitlines()] == [20] * 30
    assert late == 0


def test_a_source_that_has_sent_nothing_holds_the_watermark_back_and_one_that_has_ended_does_not() -> None:
    def merged(has_ends: bool) -> Pipeline:
        pipeline = Pipeline("p")
        one, two = pipeline.source("one", streams=[1]), pipeline.source("two", streams=[2], ends=has_ends)
        counts = one.merge(two).window(windows.tumbling(10), aggregates.count(), time=time)
        counts.sink("out", to="file:out", codec="json")
        return pipeline

    sent: Sent = [(1, b"a 1"), (1, b"a 11"), (1, b"a 21")]
    assert ran(merged(True), sent)[0]["out"] == b""
    found, late = ran(merged(True), [*sent, (2, None)], {2})
    assert [json.loads(line)["end"] for line in found["out"].splitlines()] == [10, 20]
    found, late = ran(merged(False), [*sent, (2, b"b 15"), (2, b"b 5"), (1, b"a 30")], {3})
    assert [json.loads(line)["end"] for line in found["out"].splitlines()] == [10]
    assert late == 1


def late_ones(pipeline: Pipeline, late: Any) -> Stage:
    return pipeline.source().window(windows.tumbling(10), aggregates.count(), time=time, late=late, name="w")


@pytest.mark.parametrize("late", ["drop", "fire", "oldest", "dead-letter"])
def test_late_records_of_windows_are_counted_under_every_rule(late: str) -> None:
    pipeline = Pipeline("p", dead_letter="file:dead")
    late_ones(pipeline, late).sink("out", to="file:out", codec="json")
    found, count = ran(pipeline, [(1, b"a 5"), (1, b"a 15"), (1, b"a 6"), (1, b"a 25"), (1, b"a 7")], {3})
    assert count == 2
    letters = [json.loads(line) for line in found["dead-letter"].splitlines()]
    assert [(letter["stage"], letter["message_id"]) for letter in letters] == [("w", 2), ("w", 4)] * (
        late == "dead-letter"
    )


@pytest.mark.parametrize(
    ("late", "pairs"),
    [("meet", [b"a 40 + a 40", b"a 38 + a 40"]), ("drop", [b"a 40 + a 40"]), ("dead-letter", [b"a 40 + a 40"])],
)
def test_late_records_of_a_join_are_counted_under_every_rule(late: Any, pairs: list[bytes]) -> None:
    pipeline = Pipeline("p", dead_letter="file:dead")
    one, two = pipeline.source("one", streams=[1]), pipeline.source("two", streams=[2])
    one.join(two, within_s=8, join=together, key=key, time=time, late=late, name="j").sink("out", to="file:out")
    sent: Sent = [(1, b"a 40"), (2, b"a 40"), (1, b"c 47"), (2, b"b 47"), (1, b"a 38")]
    found, count = ran(pipeline, sent, {3})
    assert found["out"].splitlines() == pairs
    assert count == 1
    assert len(found["dead-letter"].splitlines()) == (late == "dead-letter")


def test_late_records_cannot_be_dead_letters_in_a_pipeline_without_them() -> None:
    pipeline = Pipeline("p")
    late_ones(pipeline, "dead-letter").sink("out", to="file:out", codec="json")
    with pytest.raises(PlanError, match="stage 'w' makes dead letters of late records, but pipeline 'p' has no sink"):
        pipeline.graph()


def test_the_error_of_a_join_that_holds_too_much_names_the_input_it_waits_for() -> None:
    pipeline = Pipeline("p")
    two_files(pipeline, held_max=20).sink("out", to="file:out")
    with pytest.raises(PlanError, match=r"holds more than 20 records of key .* furthest behind in event time"):
        ran(pipeline, ONE_AFTER_THE_OTHER, inputs={1, 2})


# Any of them


def window(stage: Stage, **more: Any) -> Stage:
    counts = stage.window(windows.tumbling(4), aggregates.collect(), key=key, time=time, late="dead-letter", **more)
    return counts.map(lambda one: b"%s %d" % (one["key"].encode(), one["end"]))


def merged(one: Stage, two: Stage) -> Stage:
    return one.merge(two).window(windows.sliding(6, every_s=2), aggregates.collect(), key=key, time=time, late="fire")


def joined(one: Stage, two: Stage) -> Stage:
    return one.join(two, within_s=5, join=together, key=key, time=time, outer=True, late="dead-letter", parallelism=2)


def windows_joined(one: Stage, two: Stage) -> Stage:
    return joined(window(one, parallelism=3), two)


def behind_a_rebalance(one: Stage, two: Stage) -> Stage:
    return merged(one.rebalance(key, parallelism=3), two)


def mixed(one: Stage, two: Stage) -> Stage:
    return window(window(one).merge(two).rebalance(key))


def expiring(one: Stage, two: Stage) -> Stage:
    counted = one.merge(two).map_stateful(
        lambda state, value: (state + 1, b"%s %d" % (value, state)),
        key=key,
        initial=0,
        ttl_s=8,
        time=time,
        on_evict=lambda name, state: f"{name} {state}".encode(),
    )
    return counted.window(windows.session(3), aggregates.count(), time=time)


SHAPES = [merged, joined, windows_joined, behind_a_rebalance, mixed, expiring]


@given(
    shape=st.sampled_from(SHAPES),
    sent=st.lists(
        st.tuples(st.sampled_from([1, 2, 3]), st.one_of(st.none(), st.integers(0, 60)), st.sampled_from("abc")),
        max_size=40,
    ),
    cuts=st.sets(st.integers(1, 40), max_size=3),
    slice_records=st.sampled_from([1, 5, 1000]),
    ends=st.tuples(st.sampled_from([None, True, False]), st.sampled_from([None, True, False])),
    inputs=st.sets(st.sampled_from([1, 2, 3, 4])),
)
@examples(250, deadline=None)
def test_i11_any_watermark_over_several_inputs_is_that_of_the_sequential_run(
    shape: Callable[[Stage, Stage], Stage],
    sent: list[tuple[int, int | None, str]],
    cuts: set[int],
    slice_records: int,
    ends: tuple[Any, Any],
    inputs: set[int],
) -> None:
    pipeline = Pipeline("p", parallelism=2, dead_letter="file:dead")
    one, two = pipeline.source("one", ends=ends[0]), pipeline.source("two", streams=[2], ends=ends[1])
    shape(one, two).map(shown).sink("out", to="file:out")
    came = [(stream, None if at is None else f"{name} {at}".encode()) for stream, at, name in sent]
    ran(pipeline, came, cuts, slice_records, inputs)


@given(st.lists(st.tuples(st.sampled_from(["begin", "end", "move"]), st.integers(0, 4), st.integers(0, 9))))
def test_the_least_step_is_the_minimum_over_all_inputs(moves: list[tuple[str, int, int]]) -> None:
    slots, plain = InputFrontier({}), dict[int, int]()
    for what, number, step in moves:
        if what == "begin":
            slots.begin(number)
            plain.setdefault(number, -(2**62))
        elif what == "end":
            slots.end(number)
            plain.pop(number, None)
        else:
            slots.move(number, step)
            plain |= {number: step} if number in plain else {}
        assert slots.least == min(plain.values(), default=-(2**62))
