"""Whole plans without Spark: any pipeline, any epochs, any number of tasks, compared with the sequential run."""

from __future__ import annotations

import json
import random
import tempfile
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from procession import Context, Pipeline, aggregates, windows
from procession.operators import chain as chain_module
from procession.planner.graph import Exchange, Graph
from procession.planner.rules import check_runnable, make_plan
from procession.planner.strategies import Strategy
from procession.spark.task_state import TaskStateStore
from procession.spark.tasks import Task
from tests.operators.random_pipelines import FIRST_STREAM, PAYLOADS, STREAMS, pipelines, reversed_row, reversed_rows
from tests.operators.reference import Ends, Sequential, batch_of
from tests.slow_cases import examples
from tests.spark.cluster import Remembered, run_epoch, write_log, written


def ran(
    graph: Graph,
    payloads: list[bytes],
    cuts: set[int],
    seed: int,
    slice_records: int = 1000,
    keys_max: int = 1000,
    exchange: Exchange = Exchange.RUNS,
    ends: Ends = (),
) -> dict[str, bytes]:
    """Return what the plan of this graph writes, in the given epochs."""
    plan = make_plan(replace(graph, exchange=exchange))
    check_runnable(plan)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain_module, "CHAIN_RECORDS_MAX", slice_records)
        patch.setattr(chain_module, "BLOCK_RECORDS", 1 + slice_records // 3)
        work = Path(folder)
        batch = batch_of(payloads, FIRST_STREAM, STREAMS, ends)
        write_log(work / "log", batch)
        (work / "state").mkdir()
        committed = Remembered()
        keeping = TaskStateStore(work / "state", committed, 1, keys_max)
        task = Task(plan, work / "log", work / "runs", keeping)
        chance = random.Random(seed)
        edges = [0, *sorted(cut for cut in cuts if cut < batch.num_rows), batch.num_rows]
        epochs = []
        for epoch, edge in enumerate(pairwise(edges)):
            epochs.append(run_epoch(task, epoch, *edge, chance))
            committed.add(plan, epochs[-1])
        assert [manifest.failure for reported in epochs for manifest in reported if manifest.failure] == []
        return written(plan, work / "runs", epochs)


def expected(graph: Graph, payloads: list[bytes], ends: Ends = ()) -> dict[str, bytes]:
    by_row = {node.name: reversed_row for node in graph.nodes if node.function is reversed_rows}
    return Sequential(graph, by_row).run(batch_of(payloads, FIRST_STREAM, STREAMS, ends))


@given(
    pipeline=pipelines(),
    payloads=PAYLOADS,
    cuts=st.sets(st.integers(1, 30), max_size=2),
    seed=st.integers(0, 99),
    slice_records=st.sampled_from([1, 3, 1000]),
    keys_max=st.sampled_from([1, 1000]),
    exchange=st.sampled_from(Exchange),
)
@examples(100, deadline=None, suppress_health_check=list(HealthCheck))
def test_i6_any_plan_writes_what_the_sequential_run_would_have_written(
    pipeline: Pipeline,
    payloads: list[bytes],
    cuts: set[int],
    seed: int,
    slice_records: int,
    keys_max: int,
    exchange: Exchange,
) -> None:
    graph = pipeline.graph()
    got = ran(graph, payloads, cuts, seed, slice_records, keys_max, exchange)
    assert got == expected(graph, payloads), pipeline.explain()


@pytest.mark.parametrize("order", ["stream", "key"])
@given(
    data=st.data(),
    payloads=PAYLOADS,
    cuts=st.sets(st.integers(1, 30), max_size=2),
    seed=st.integers(0, 99),
    slice_records=st.sampled_from([3, 1000]),
    exchange=st.sampled_from(Exchange),
)
@examples(40, deadline=None, suppress_health_check=list(HealthCheck))
def test_i6_any_plan_writes_to_each_connection_what_the_sequential_run_would_have_written_there(
    order: str, data: Any, payloads: list[bytes], cuts: set[int], seed: int, slice_records: int, exchange: Exchange
) -> None:
    pipeline = data.draw(pipelines(order=order))
    graph = pipeline.graph()
    got, wanted = ran(graph, payloads, cuts, seed, slice_records, exchange=exchange), expected(graph, payloads)
    free = {edge.after for edge in make_plan(graph).edges if edge.strategy is Strategy.PARTITION}
    by_task = {participant.name for participant in graph.participants if graph.nodes.index(participant.sink) in free}
    assert {name: got[name] for name in got if name not in by_task} == {
        name: wanted[name] for name in wanted if name not in by_task
    }, pipeline.explain()
    for name in by_task:  # of each key in order, which is shown below
        assert sorted(got[name].split(b"\n")) == sorted(wanted[name].split(b"\n")), pipeline.explain()


# Cases that random pipelines find rarely or never


def check(pipeline: Pipeline, payloads: list[bytes], **options: int) -> dict[str, bytes]:
    graph = pipeline.graph()
    wanted = expected(graph, payloads)
    for seed in range(4):
        exchange = list(Exchange)[seed % 2]
        assert ran(graph, payloads, {17, 40}, seed, exchange=exchange, **options) == wanted, pipeline.explain()
    return wanted


def errs(value: bytes) -> bytes:
    raise ValueError(value.decode())


RECORDS = [b"%d" % number for number in range(60)]


def test_letters_of_one_records_children_that_err_in_different_tasks_keep_their_order() -> None:
    pipeline = Pipeline("p", dead_letter="file:dead", parallelism=3)
    children = pipeline.source().flat_map(lambda value: [value + b"-%d" % number for number in range(5)])
    children.rebalance(parallelism=4).map(errs).sink("out", to="file:out")
    wanted = check(pipeline, RECORDS, slice_records=7)
    assert wanted["dead-letter"].count(b"\n") == 300


def test_a_stage_that_two_chains_run_tells_its_letters_in_the_order_of_the_records() -> None:
    pipeline = Pipeline("p", dead_letter="file:dead")
    source = pipeline.source()
    spread = source.filter(lambda value: len(value) == 2).rebalance(parallelism=3)
    source.merge(spread).map(errs).sink("out", to="file:out")
    assert check(pipeline, RECORDS)["dead-letter"].count(b"\n") == 110


def test_merges_of_merges_over_exchanges_of_different_depth_are_in_order() -> None:
    pipeline = Pipeline("p", parallelism=4)
    source = pipeline.source()
    once = source.rebalance(lambda value: value[-1:], parallelism=3).map(lambda value: b"1:" + value)
    twice = once.rebalance(parallelism=2).flat_map(lambda value: [b"2:" + value] * 2)
    first = once.merge(twice)
    both = source.merge(first).merge(twice.map(lambda value: b"3:" + value))
    both.rebalance(parallelism=4).sink("out", to="file:out")
    first.sink("first", to="file:out")
    assert check(pipeline, RECORDS)["out"].count(b"\n") == 60 * 6


def test_filters_that_drop_nearly_everything_leave_no_gap_to_wait_for() -> None:
    pipeline = Pipeline("p", parallelism=4)
    stage = pipeline.source().filter(lambda value: value in (b"7", b"41")).rebalance(parallelism=4)
    stage.map(lambda value: value + b"!").rebalance(parallelism=3).sink("out", to="file:out")
    assert check(pipeline, RECORDS)["out"] == b"7!\n41!\n"


def test_one_record_and_none_go_through_any_number_of_tasks() -> None:
    for payloads in ([], [b"one"]):
        pipeline = Pipeline("p", parallelism=4)
        pipeline.source().filter(bool).rebalance().rebalance(bytes).sink("out", to="file:out")
        check(pipeline, payloads)


def values(value: Any) -> Any:
    """Return a value of every kind that can be exchanged."""
    number = int(value)
    kinds: list[Any] = [
        number,
        float(number) / 3,
        str(number),
        b"%d" % number,
        None,
        number % 2 == 0,
        [number, str(number), b"x"],
        (number, (number, "deep")),
        {"a": number, 1: ["b", (2,)]},
        2**80 + number,
        -(2**63) - number,
    ]
    return kinds[number % len(kinds)]


def test_values_of_every_kind_come_over_an_exchange_as_they_were() -> None:
    pipeline = Pipeline("p")
    stage = pipeline.source().map(values).rebalance(parallelism=3).rebalance(repr, parallelism=2)
    stage.map(repr).sink("out", to="file:out")
    assert check(pipeline, RECORDS)["out"].count(b"\n") == 60


def test_a_value_that_cannot_go_over_an_exchange_is_the_error_of_the_stage_that_made_it() -> None:
    pipeline = Pipeline("p", dead_letter="file:dead")
    stage = pipeline.source().map(lambda value: complex(5) if value == b"5" else value, name="mine")
    stage.filter(bool).rebalance().map(repr).sink("out", to="file:out")
    got = ran(pipeline.graph(), RECORDS, set(), 0)
    (letter,) = map(json.loads, got["dead-letter"].splitlines())
    assert (letter["stage"], letter["message_id"]) == ("mine", 50)
    assert "(5+0j) is a builtins.complex, which can be neither exchanged nor stored" in letter["error"]
    assert got["out"].count(b"\n") == 59


def test_an_error_behind_an_exchange_names_its_record() -> None:
    pipeline = Pipeline("p")
    stage = pipeline.source().filter(bool).rebalance(parallelism=3)
    stage.map(lambda value: 1 // (int(value) - 41), name="mine").map(str).sink("out", to="file:out")
    plan = make_plan(pipeline.graph())
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_log(work / "log", batch_of(RECORDS, FIRST_STREAM, STREAMS))
        task = Task(plan, work / "log", work / "runs")
        manifests = run_epoch(task, 0, 0, 60, random.Random(1))
    (failure,) = [manifest.failure for manifest in manifests if manifest.failure]
    assert f"'mine' raised on message 410 of stream {FIRST_STREAM + 41 % STREAMS}" in failure["sentence"]


def test_when_a_task_fails_those_behind_it_do_nothing() -> None:
    called: list[bytes] = []
    pipeline = Pipeline("p")
    stage = pipeline.source().map(lambda value: 1 // (int(value) - 41)).filter(lambda value: value is not None)
    stage.rebalance().peek(called.append).map(str).sink("out", to="file:out")
    plan = make_plan(pipeline.graph())
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_log(work / "log", batch_of(RECORDS, FIRST_STREAM, STREAMS))
        manifests = run_epoch(Task(plan, work / "log", work / "runs"), 0, 0, 60, random.Random(1))
    assert called == []
    assert len([manifest.failure for manifest in manifests if manifest.failure]) == 1


@pytest.mark.parametrize("order", ["key", "stream", "none"])
def test_with_less_asked_for_each_key_or_stream_is_still_in_order_and_nothing_is_lost(order: str) -> None:
    pipeline = Pipeline("p", order=order, parallelism=3)  # type: ignore[arg-type]
    stage = pipeline.source().filter(bool).rebalance(lambda value: value[-1:], parallelism=4)
    stage.map(lambda value: value).sink("out", to="file:out")
    payloads = [b"%04d" % number for number in range(500)]
    lines = ran(pipeline.graph(), payloads, set(), 3, 50)["out"].splitlines()
    assert sorted(lines) == payloads
    parts = {"key": lambda line: line[-1:], "stream": lambda line: int(line) % STREAMS, "none": None}[order]
    if parts is not None:
        for part in {parts(line) for line in lines}:
            own = [line for line in lines if parts(line) == part]
            assert own == sorted(own)
    assert (lines == payloads) == (order == "stream")


def key_of(value: bytes) -> bytes:
    return value[-1:]


@pytest.mark.parametrize("parallelism", [1, 4])
def test_a_key_goes_to_the_connection_of_its_share_in_order_whatever_the_parallelism(parallelism: int) -> None:
    pipeline = Pipeline("p", order="key", parallelism=parallelism)
    source = pipeline.source()
    source.key_by(key_of).sink("narrow", to="file:out", connections=3)
    keyed = source.rebalance(key_of, parallelism=parallelism)
    keyed.sink("keyed", to="file:out", connections=3)
    keyed.rebalance(parallelism=parallelism).map_batches(lambda batch: batch).sink(
        "again", to="file:out", connections=3
    )
    keyed.merge(source.key_by(key_of)).sink("merged", to="file:out", connections=3)
    got = ran(pipeline.graph(), RECORDS, {17, 40}, 5)
    shares = {b"%d" % digit: zlib.crc32(b"%d" % digit) % 4096 % 3 for digit in range(10)}
    assert set(shares.values()) == {0, 1, 2}
    for sink, times in {"narrow": 1, "keyed": 1, "again": 1, "merged": 2}.items():
        for number in range(3):
            lines = got[f"{sink}.{number}"].splitlines()
            for key in shares:
                own = [record for record in RECORDS for _ in range(times) if key_of(record) == key]
                assert [line for line in lines if key_of(line) == key] == (own if shares[key] == number else [])


def test_with_no_order_asked_for_the_connections_share_the_work_evenly() -> None:
    pipeline = Pipeline("p", order="none", parallelism=2)
    pipeline.source().sink("out", to="file:out", connections=3)
    got = ran(pipeline.graph(), RECORDS, set(), 5)
    assert sorted(b"".join(got.values()).splitlines()) == sorted(RECORDS)
    assert [output.count(b"\n") for output in got.values()] == [20, 20, 20]


def test_windows_go_by_the_times_that_records_were_given_whatever_comes_between() -> None:
    """The output is as if the windows had computed the times themselves, and branches do not see one another's
    times."""

    def built(*, is_given: bool) -> Pipeline:
        pipeline = Pipeline("p", parallelism=3, dead_letter="file:dead")
        source = pipeline.source()
        stamped = source.add_timestamps(number_of) if is_given else source
        others = source.add_timestamps(lambda value: 1000 - number_of(value)) if is_given else source
        of: Any = {} if is_given else {"time": number_of}
        ways = {
            "narrow": stamped.flat_map(lambda value: [value, value]),
            "spread": stamped.rebalance(parallelism=4).filter(is_odd),
            "merged": stamped.filter(is_odd).merge(stamped.rebalance(parallelism=2)),
        }
        for name, way in ways.items():
            way.window(windows.tumbling(7), aggregates.collect(), **of).map(repr).sink(name, to="file:out")
            way.window(windows.sliding(9, every_s=3), aggregates.count(), key=key_of, **of).map(repr).sink(
                f"{name}-keyed", to="file:out"
            )
        others.peek(len).sink("others", to="file:out")
        return pipeline

    outputs = check(built(is_given=False), RECORDS)
    assert all(outputs[name] for name in outputs if name != "dead-letter")
    assert check(built(is_given=True), RECORDS) == outputs


def number_of(value: bytes) -> int:
    return int(value) // 2


def is_odd(value: bytes) -> bool:
    return int(value) % 2 == 1


def test_a_merge_keeps_the_time_that_each_branch_has_given() -> None:
    seen: dict[bytes, set[int]] = {}

    def observe(batch: pa.RecordBatch) -> pa.RecordBatch:
        for row in batch.to_pylist():
            seen.setdefault(row["payload"], set()).add(row["event_time"])
        return batch

    pipeline = Pipeline("p", parallelism=2)
    source = pipeline.source()
    early, late = source.add_timestamps(number_of), source.add_timestamps(lambda value: 0.5)
    early.merge(source, late).rebalance(parallelism=2).map_batches(observe).sink("out", to="file:out")
    ran(pipeline.graph(), RECORDS[:30], {11}, 1, 4)
    assert seen == {record: {10**9 * number_of(record), 1, 500_000_000} for record in RECORDS[:30]}


def test_a_time_that_is_none_is_the_error_of_its_record() -> None:
    pipeline = Pipeline("p", dead_letter="file:dead")
    stage = pipeline.source().add_timestamps(lambda value: "noon" if value == b"3" else 12, name="mine")
    stage.sink("out", to="file:out")
    got = ran(pipeline.graph(), RECORDS[:5], set(), 1)
    letter = json.loads(got["dead-letter"])
    assert (letter["stage"], letter["error"]) == ("mine", "TypeError: the time is a str: use a number or a datetime")
    assert got["out"] == b"0\n1\n2\n4\n"


def test_map_batches_gets_keys_ids_and_times_of_records_after_an_exchange() -> None:
    seen: list[dict[str, Any]] = []

    def observe(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.extend(batch.to_pylist())
        return batch.filter(pc.not_equal(batch.column("payload"), b"3"))

    pipeline = Pipeline("p", parallelism=2)
    stage = pipeline.source().filter(bool).rebalance(lambda value: b"key of " + value, parallelism=2)
    stage.map_batches(observe).sink("out", to="file:out")
    got = ran(pipeline.graph(), RECORDS[:6], set(), 1)
    assert got["out"] == b"0\n1\n2\n4\n5\n"
    for row in seen:
        number = int(row["payload"])
        assert (row["key"], row["message_id"], row["stream_id"], row["event_time"]) == (
            b"key of %d" % number,
            10 * number,
            FIRST_STREAM + number % STREAMS,
            1,
        )


def test_map_batches_that_loses_row_numbers_where_order_matters_is_refused_with_a_next_step() -> None:
    pipeline = Pipeline("p", dead_letter="file:dead")
    stage = pipeline.source().filter(bool).rebalance(parallelism=2)
    stage.map_batches(lambda batch: batch.column("payload")[1:]).sink("out", to="file:out")
    got = ran(pipeline.graph(), RECORDS[:6], set(), 1)
    assert "return a RecordBatch with the column 'row'" in json.loads(got["dead-letter"].splitlines()[0])["error"]


def test_letters_of_branches_that_end_in_no_sink_keep_their_order() -> None:
    async def marked(value: bytes) -> bytes:
        return b"marked " + value

    pipeline = Pipeline("p", dead_letter="file:dead", parallelism=3)
    source = pipeline.source()
    source.merge(source.map_async(marked)).map(errs)
    source.map(errs).sink("out", to="file:out")
    assert check(pipeline, RECORDS, slice_records=7)["dead-letter"].count(b"\n") == 180


def test_letters_of_branches_that_end_in_no_sink_and_meet_over_an_exchange_keep_their_order() -> None:
    pipeline = Pipeline("p", dead_letter="file:dead", parallelism=3)
    source = pipeline.source()
    spread = source.rebalance(parallelism=2)
    spread.map(lambda value: b"spread " + value).merge(source, spread).map(errs)
    source.sink("out", to="file:out")
    assert check(pipeline, RECORDS)["dead-letter"].count(b"\n") == 180


@pytest.mark.parametrize(("order", "order_of_sink"), [("none", None), ("total", "none")])
def test_letters_are_all_there_where_a_sink_takes_records_as_they_come(order: Any, order_of_sink: Any) -> None:
    pipeline = Pipeline("p", order=order, dead_letter="file:dead", parallelism=3)
    children = pipeline.source().flat_map(lambda value: [value, value + b"x"])
    children.rebalance(parallelism=4).map(errs).sink("out", to="file:out", order=order_of_sink)
    graph = pipeline.graph()
    letters, wanted = (outputs_of(graph, RECORDS)["dead-letter"].splitlines() for outputs_of in (written_by, expected))
    assert (letters if order == "total" else sorted(letters)) == (wanted if order == "total" else sorted(wanted))


def written_by(graph: Graph, payloads: list[bytes]) -> dict[str, bytes]:
    return ran(graph, payloads, {17}, seed=0)


@pytest.mark.parametrize("is_timed", [False, True])
def test_keyed_stages_go_by_the_key_that_records_were_given_whatever_comes_between(is_timed: bool) -> None:
    """The output is as if each stage had computed the key itself from the value at `key_by`.

    Stages with a watermark exchange all fields of records, other stages only the key.
    """

    def of_both(value: bytes) -> bytes:
        return key_of(value.partition(b"|")[0])

    def built(*, is_given: bool) -> Pipeline:
        pipeline = Pipeline("p", parallelism=3, dead_letter="file:dead")
        own: Any = {} if is_given else {"key": of_both}
        source = pipeline.source(ends=True)
        start = source.key_by(key_of) if is_given else source
        loud = start.map(lambda value: value + b"|louder")
        ways = {
            "near": loud,
            "dealt": loud.rebalance(parallelism=4).flat_map(lambda value: [value, value]),
            "merged": loud.merge(start.filter(lambda value: value[-1:] > b"4")),
            "twice": loud.reduce(max, **own).rebalance(parallelism=2).map(bytes),
        }
        late = source.rebalance(parallelism=4).map(bytes)
        late = late.key_by(key_of).merge(late.key_by(key_of).filter(len)) if is_given else late.merge(late.filter(len))
        ways["late"] = late.rebalance(parallelism=3)
        for name, way in ways.items():
            last = way.map_stateful(lambda seen, value: (seen + 1, b"%b %d" % (value, seen)), initial=0, **own)
            last.sink(f"{name}-counted", to="file:out")
            if is_timed:
                threes = way.window(windows.counting(3), aggregates.collect(), time=len, **own)
                threes.map(repr).sink(f"{name}-threes", to="file:out")
            way.aggregate(aggregates.count(), **own).map(repr).sink(f"{name}-totals", to="file:out")
            way.distinct(**own).sink(f"{name}-first", to="file:out")
        if is_timed:
            other = start.map(lambda value: value + b"|other")
            pairs = loud.join(other, within_s=5, join=lambda one, two: one + two, time=len, **own)
            pairs.sink("pairs", to="file:out")
        return pipeline

    ends = [(len(RECORDS), stream) for stream in range(STREAMS)]
    wanted = expected(built(is_given=False).graph(), RECORDS, ends)
    assert all(wanted[name] for name in wanted if name != "dead-letter")
    given = built(is_given=True)
    assert expected(given.graph(), RECORDS, ends) == wanted
    for seed, exchange in enumerate(Exchange):
        assert ran(given.graph(), RECORDS, {17, 40}, seed, exchange=exchange, ends=ends) == wanted, given.explain()


def told_all(value: bytes, context: Context) -> bytes:
    return b"%b %r %d %d" % (value, str(context.key).encode(), context.event_time, context.stream)


def test_functions_that_ask_are_given_key_event_time_and_stream_of_their_record() -> None:
    def is_even(value: bytes, context: Context) -> bool:
        if value == b"9":
            raise ValueError("nine")
        return context.stream % 2 == 0

    def twice(value: bytes, context: Context) -> list[bytes]:
        return [value, b"%d" % context.event_time]

    pipeline = Pipeline("p", parallelism=3, dead_letter="file:dead")
    source = pipeline.source()
    source.map(told_all).sink("came-with", to="file:out")
    given = source.key_by(int).add_timestamps(int, unit="ns")
    given.filter(len).map(bytes).rebalance(parallelism=4).map(told_all).sink("given", to="file:out")
    source.map(bytes).filter(is_even).sink("even", to="file:out")
    given.flat_map(twice).sink("twice", to="file:out")

    streams = [FIRST_STREAM + number % STREAMS for number in range(len(RECORDS))]
    for seed in range(3):
        got = ran(pipeline.graph(), RECORDS, {17, 40}, seed, slice_records=(1000, 3, 1)[seed])
        lines = {name: output.splitlines() for name, output in got.items()}
        assert lines["came-with"] == [
            told_all(value, Context(b"k", 1, stream)) for value, stream in zip(RECORDS, streams, strict=True)
        ]
        assert lines["given"] == [
            told_all(value, Context(int(value), int(value), stream))
            for value, stream in zip(RECORDS, streams, strict=True)
        ]
        assert lines["even"] == [
            value for value, stream in zip(RECORDS, streams, strict=True) if stream % 2 == 0 and value != b"9"
        ]
        assert lines["twice"] == [value for value in RECORDS for _ in range(2)]
        assert [json.loads(letter)["error"] for letter in lines["dead-letter"]] == ["ValueError: nine"]
