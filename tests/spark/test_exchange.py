"""Order on real Spark: every row of the planner's table, compared byte for byte with the sequential run.

Four tasks overtake one another, and epochs have one, few and many records; on threads and on two executors, with
exchanges through the run store and through Spark's shuffle. Invariant: all rows are in one query, each with its own
sink, and Spark starts once for each kind of master.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from procession import Pipeline
from procession.operators.codecs import ENCODE
from procession.planner.graph import Exchange, Kind, PayloadCodec
from procession.planner.rules import check_runnable, make_plan
from procession.planner.strategies import TABLE
from tests.operators.reference import Sequential, batch_of
from tests.spark.cluster import written
from tests.spark.spark import Session, failures, patient, run_on_spark, session

pytestmark = patient

RECORDS = [b"%05d" % number for number in range(4_000)]
FIRST_STREAM, STREAMS = 1, 3
ENDS = [(2_000, 0), (2_000, 1), (4_000, 0), (4_000, 1), (4_000, 2)]
CUTS = [1, 3, 1_500, 2_000, 2_002, 4_002]
"""Epochs of one record, of two, and of many; and of none, in the middle and at last, for those have only ends of
streams. Spark's first one is empty, too."""


def skewed(value: bytes) -> bytes:
    """Sleep for some records, so that other tasks overtake the task that has them."""
    number = int(value[:5])
    if number % 401 == 0:
        time.sleep(0.02)
    if number == 2:
        time.sleep(0.3)
    return quick(value)


def quick(value: bytes) -> bytes:
    return value + b"s"


def is_kept(value: bytes) -> bool:
    return int(value[:5]) % 7 != 0


def is_rare(value: bytes) -> bool:
    return value[:5] in (b"00002", b"01733", b"03999")


def several(value: bytes) -> list[bytes]:
    return [value + b"-%d" % number for number in range(int(value[:5]) % 4)]


def last_digits(value: bytes) -> bytes:
    return value[3:5]


def capitals(batch: pa.RecordBatch) -> pa.Array:
    return pc.utf8_upper(batch.column("payload").cast(pa.string()))


def capital(payload: bytes) -> bytes:
    return payload.upper()


def seconds_of(value: bytes) -> float:
    return int(value[:5]) / 4


def stamped(batch: pa.RecordBatch) -> pa.Array:
    rows = batch.select(["payload", "event_time"]).to_pylist()
    return pa.array([b"%s@%d" % (row["payload"], row["event_time"]) for row in rows])


def stamped_row(payload: bytes) -> bytes:
    return b"%s@%d" % (payload, seconds_of(payload) * 10**9)


async def answered(value: bytes) -> bytes:
    await asyncio.sleep(0.001 * (3 - int(value[4:5]) % 3))
    return value + b"a"


def picky(value: bytes) -> bytes:
    if value[3:5] == b"13":
        raise ValueError("unlucky")
    return value


def every_row() -> Pipeline:
    """Return a pipeline with a branch for each row of the table, and for cases that are easily implemented wrong."""
    pipeline = Pipeline("rows", parallelism=4, dead_letter="file:dead")
    source = pipeline.source("most")
    other = pipeline.source("other", streams=[FIRST_STREAM + 1])
    # map, filter, flat_map, map_batches, map_async, key_by, peek: narrow
    narrow = source.map(skewed).filter(is_kept).flat_map(several).map_batches(capitals)
    narrow.peek(len, parallelism=8).key_by(last_digits, parallelism=4).map_async(answered, concurrency=16).sink(
        "narrow", to="file:out"
    )
    # add_timestamps: narrow, and the times are carried along
    source.add_timestamps(seconds_of).rebalance(parallelism=4).map(skewed).map_batches(stamped).sink(
        "stamped", to="file:out"
    )
    # rebalance: merge
    even = source.filter(is_kept).rebalance(parallelism=4).map(skewed)
    even.sink("even", to="file:out")
    # rebalance by key: partition, and back into the order
    keyed = source.rebalance(last_digits, parallelism=4).map(skewed)
    keyed.sink("keyed", to="file:out")
    # one-to-many, then exchanges of both kinds
    many = source.flat_map(several).rebalance(parallelism=4).map(skewed)
    many.rebalance(last_digits, parallelism=3).flat_map(several).sink("many", to="file:out")
    # merges of merges, of sources, of branches and of chains of different depth
    both = source.merge(other)
    both.rebalance(parallelism=3).map(skewed).merge(both).merge(keyed).sink("merged", to="file:out")
    # filters that drop nearly everything
    source.filter(is_rare).rebalance(parallelism=4).map(skewed).sink("rare", to="file:out")
    # dead letters from after an exchange
    other.rebalance(last_digits, parallelism=4).map(picky).sink("picky", to="file:out")
    # weaker order requested
    even.sink("any", to="file:out", order="none")
    keyed.sink("by-key", to="file:out", order="key")
    even.sink("by-stream", to="file:out", order="stream")
    # one connection for each share of the keys or streams
    source.key_by(last_digits).sink("key-ranges", to="file:out", order="key", connections=3)
    keyed.sink("key-tasks", to="file:out", order="key", connections=2)
    many.sink("stream-shares", to="file:out", order="stream", connections=3)
    even.sink("anywhere", to="file:out", order="none", connections=3)
    return pipeline


def single() -> Pipeline:
    """Return a pipeline of one source, one exchange into more tasks, and one into a single task."""
    pipeline = Pipeline("single", parallelism=4)
    stage = pipeline.source().filter(is_kept).map(skewed).rebalance().map(skewed, parallelism=5)
    stage.rebalance(parallelism=1).map(skewed).sink("out", to="file:out")
    return pipeline


def mixed_json(value: Any) -> dict[str, Any]:
    return {"value": value, "and": [1.5, None, True, "é", 2**60]}


def of_table(table: pa.Table) -> pa.Table:
    return table.append_column("twice", pc.multiply(table.column("number"), 2))


CODECS: list[Literal["text", "json", "msgpack", "arrow"]] = ["text", "json", "msgpack", "arrow"]


def every_codec() -> Pipeline:
    """Return a pipeline with a source and a sink for each codec, and an exchange in between that carries the values."""
    pipeline = Pipeline("codecs", parallelism=4)
    for number, codec in enumerate(CODECS):
        stage = pipeline.source(f"{codec}-in", codec=codec, streams=[FIRST_STREAM + number])
        change: Any = {"text": str.upper, "arrow": of_table}.get(codec, mixed_json)
        stage.rebalance(repr, parallelism=4).map(change).rebalance(parallelism=3).sink(
            codec, to="file:out", codec=codec
        )
    return pipeline


def of_every_codec(count: int) -> list[bytes]:
    makers: list[Callable[[int], Any]] = [
        lambda number: f"wört {number}",
        lambda number: {"number": number},
        lambda number: [number, b"bytes", {"n": number}],
        lambda number: pa.table({"number": [number, number + 1]}),
    ]
    return [ENCODE[PayloadCodec(CODECS[number % 4])](makers[number % 4](number)) for number in range(count)]


@dataclass
class Ran:
    """One kind of master and one kind of exchange: every query in one session."""

    spark: Session
    exchange: Exchange
    work: Path

    def outputs(self, pipeline: Pipeline, batch: pa.RecordBatch, cuts: list[int]) -> dict[str, bytes]:
        plan = make_plan(replace(pipeline.graph(), exchange=self.exchange))
        check_runnable(plan)
        work = self.work / pipeline.name
        epochs = run_on_spark(self.spark, plan, batch, cuts, work, __name__)
        assert failures(epochs) == []
        assert len(epochs) >= len(cuts) + 1
        # Through Spark's shuffle no task has left anything in a directory for another to find.
        assert bool(list(work.glob("runs/*/*.manifest"))) == (self.exchange is Exchange.RUNS)
        return written(plan, work / "runs", epochs)


MASTERS = ["local[4,2]", pytest.param("local-cluster[2,2,1024]", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=MASTERS)
def spark(request: pytest.FixtureRequest) -> Iterator[Session]:
    with session(request.param) as spark:
        yield spark


@pytest.fixture(scope="module", params=list(Exchange))
def ran(request: pytest.FixtureRequest, spark: Session, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(spark, request.param, tmp_path_factory.mktemp("rows"))


BATCH = batch_of(RECORDS, FIRST_STREAM, STREAMS, ENDS)


@pytest.fixture(scope="module")
def outputs(ran: Ran) -> dict[str, bytes]:
    return ran.outputs(every_row(), BATCH, CUTS)


@pytest.fixture(scope="module")
def sequential() -> dict[str, bytes]:
    return in_turn(every_row(), BATCH)


def in_turn(pipeline: Pipeline, batch: pa.RecordBatch) -> dict[str, bytes]:
    """Return what processing one record after the other would have written, without the delays."""
    graph = pipeline.graph()
    nodes = tuple(replace(node, function=quick) if node.function is skewed else node for node in graph.nodes)
    of_many: dict[Any, Any] = {capitals: capital, stamped: stamped_row}
    by_row = {node.name: of_many[node.function] for node in graph.nodes if node.kind is Kind.MAP_BATCHES}
    return Sequential(replace(graph, nodes=nodes), by_row).run(batch)


ROWS = ["narrow", "stamped", "even", "keyed", "many", "merged", "rare", "picky", "dead-letter"]


@pytest.mark.parametrize("sink", ROWS)
def test_a_row_of_the_table_writes_what_the_sequential_run_would_have_written(
    outputs: dict[str, bytes], sequential: dict[str, bytes], sink: str
) -> None:
    assert sequential[sink], "a row that writes nothing shows nothing"
    assert outputs[sink] == sequential[sink]


def test_without_a_promise_nothing_is_lost_or_doubled(outputs: dict[str, bytes], sequential: dict[str, bytes]) -> None:
    assert sorted(outputs["any"].splitlines()) == sorted(sequential["any"].splitlines())


def test_with_an_order_per_key_each_key_is_in_order_and_tasks_are_seen_in_the_output(
    outputs: dict[str, bytes], sequential: dict[str, bytes]
) -> None:
    lines, wanted = outputs["by-key"].splitlines(), sequential["by-key"].splitlines()
    for key in {last_digits(line) for line in wanted}:
        assert [line for line in lines if last_digits(line) == key] == [
            line for line in wanted if last_digits(line) == key
        ]
    assert sorted(lines) == sorted(wanted)
    assert lines != wanted


def test_with_an_order_per_stream_each_stream_is_in_order(
    outputs: dict[str, bytes], sequential: dict[str, bytes]
) -> None:
    lines, wanted = outputs["by-stream"].splitlines(), sequential["by-stream"].splitlines()
    for stream in range(STREAMS):
        assert [line for line in lines if int(line[:5]) % STREAMS == stream] == [
            line for line in wanted if int(line[:5]) % STREAMS == stream
        ]
    assert sorted(lines) == sorted(wanted)


def test_each_connection_of_a_sink_gets_its_share_of_the_keys_or_streams_in_order(
    outputs: dict[str, bytes], sequential: dict[str, bytes]
) -> None:
    for output in ("key-ranges.0", "key-ranges.1", "key-ranges.2", "stream-shares.0", "stream-shares.1"):
        assert sequential[output], "a share without records shows nothing"
        assert outputs[output] == sequential[output]
    for output in ("key-tasks.0", "key-tasks.1"):
        lines, wanted = outputs[output].splitlines(), sequential[output].splitlines()
        assert sorted(lines) == sorted(wanted)
        for key in {last_digits(line) for line in wanted}:
            own = [line for line in wanted if last_digits(line) == key]
            assert [line for line in lines if last_digits(line) == key] == own
    anywhere = [outputs[f"anywhere.{number}"].splitlines() for number in range(3)]
    assert sorted(line for lines in anywhere for line in lines) == sorted(sequential["even"].splitlines())
    assert all(len(lines) > 500 for lines in anywhere)


@pytest.mark.parametrize("count", [1, 900])
def test_a_single_source_of_one_record_or_many_is_in_order_behind_exchanges_into_many_tasks_and_into_one(
    ran: Ran, count: int
) -> None:
    batch = batch_of(RECORDS[1 : 1 + count], ends=[(count, 0)])
    pipeline = single()
    pipeline.name = f"single-{count}"
    assert ran.outputs(pipeline, batch, [*[1, 300][: count // 2], count]) == in_turn(single(), batch)


def wide() -> Pipeline:
    """Return a wide exchange, then a narrow one; and one that skips the wide level, through which its envelopes
    pass."""
    pipeline = Pipeline("wide", parallelism=32)
    source = pipeline.source()
    many = source.rebalance(last_digits, parallelism=32).map(quick)
    many.rebalance(parallelism=2).map(quick).sink("out", to="file:out")
    source.rebalance(parallelism=2).map(quick).sink("beside", to="file:out")
    return pipeline


def test_the_driver_routes_the_manifests_of_a_wide_exchange_and_the_order_is_kept(
    spark: Session, tmp_path: Path
) -> None:
    assert [make_plan(wide().graph()).is_wide(level) for level in (1, 2)] == [True, False]
    batch = batch_of(RECORDS[1:901], ends=[(900, 0)])
    assert Ran(spark, Exchange.RUNS, tmp_path).outputs(wide(), batch, []) == in_turn(wide(), batch)


def test_values_of_every_codec_go_over_exchanges_and_come_out_in_order(ran: Ran) -> None:
    batch = batch_of(of_every_codec(400), FIRST_STREAM, len(CODECS))
    wanted = in_turn(every_codec(), batch)
    assert all(wanted.values())
    assert ran.outputs(every_codec(), batch, [2, 100]) == wanted


def test_every_kind_of_stage_that_can_be_run_is_in_the_query() -> None:
    kinds = {node.kind for node in every_row().graph().nodes}
    # Spark SQL has a query of its own, in test_sql. Joins, splits and the stages that keep states are in test_keyed.
    own = {Kind.TRANSFORM, Kind.HASH_JOIN, Kind.SPLIT, Kind.OUTPUT} | {
        kind for kind, row in TABLE.items() if row.has_state
    }
    assert kinds | own == {kind for kind, row in TABLE.items() if not row.comes_with or row.has_state}
