"""Order on real Spark: every row of the planner's table that can be run, with four tasks, delays that make tasks
overtake one another, and epochs of one, few and many records, against the sequential run, byte for byte.

The one rule: all rows go through one query, each to a sink of its own, so that Spark starts once for a kind of master.
"""

from __future__ import annotations

import asyncio
import time

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from procession import Pipeline, PlanError
from procession.errors import ProcessionError
from procession.plan.blueprint import Plan
from procession.plan.graph import Kind
from procession.plan.planner import check_runnable, make_plan
from procession.plan.strategies import TABLE
from procession.spark.paths import check_paths

from ..plan.reference import Sequential, batch_of
from .cluster import written
from .spark import run_on_spark

RECORDS = [b"%05d" % number for number in range(4_000)]
FIRST_STREAM, STREAMS = 1, 3
CUTS = [1, 3, 1_500]
"""Epochs of one record, of two, and of many; Spark's first one is empty."""


def skewed(value: bytes) -> bytes:
    """Slow on some, so that a task that has many of them is overtaken by the others."""
    number = int(value[:5])
    if number % 401 == 0:
        time.sleep(0.02)
    if number == 2:
        time.sleep(0.3)
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


async def answered(value: bytes) -> bytes:
    await asyncio.sleep(0.001 * (3 - int(value[4:5]) % 3))
    return value + b"a"


def picky(value: bytes) -> bytes:
    if value[3:5] == b"13":
        raise ValueError("unlucky")
    return value


def every_row() -> Pipeline:
    """A branch for each row of the table, and for what is easily got wrong."""
    pipeline = Pipeline("rows", parallelism=4, dead_letter="file:dead")
    source = pipeline.source("most")
    other = pipeline.source("other", streams=[FIRST_STREAM + 1])
    # map, filter, flat_map, map_batches, map_async, key_by, peek: narrow
    narrow = source.map(skewed).filter(is_kept).flat_map(several).map_batches(capitals)
    narrow.peek(len).key_by(last_digits).map_async(answered, concurrency=16).sink("narrow", to="file:out")
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
    # letters from behind an exchange
    other.rebalance(last_digits, parallelism=4).map(picky).sink("picky", to="file:out")
    # less asked for
    even.sink("any", to="file:out", order="none")
    keyed.sink("by-key", to="file:out", order="key")
    return pipeline


@pytest.fixture(scope="module", params=["local[4,2]", pytest.param("local-cluster[2,2,1024]", marks=pytest.mark.slow)])
def outputs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    plan = make_plan(every_row().graph())
    check_runnable(plan)
    work = tmp_path_factory.mktemp("rows")
    batch = batch_of(RECORDS, FIRST_STREAM, STREAMS)
    epochs = run_on_spark(request.param, plan, batch, CUTS, work, __name__)
    failures = [manifest.failure for told in epochs for manifest in told if manifest.failure]
    assert failures == []
    assert len(epochs) >= len(CUTS) + 1
    return written(plan, work / "runs", epochs)


@pytest.fixture(scope="module")
def sequential() -> dict[str, bytes]:
    graph = every_row().graph()
    by_row = {node.name: capital for node in graph.nodes if node.function is capitals}
    return Sequential(graph, by_row).run(batch_of(RECORDS, FIRST_STREAM, STREAMS))


ROWS = ["narrow", "even", "keyed", "many", "merged", "rare", "picky", "dead-letter"]


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


def test_every_kind_of_stage_that_can_be_run_is_in_the_query() -> None:
    kinds = {node.kind for node in every_row().graph().nodes}
    # Spark SQL has a query of its own, in test_sql.
    assert kinds | {Kind.TRANSFORM} == {kind for kind, row in TABLE.items() if not row.comes_with}


# What Spark really runs


PHYSICAL = """\
MapInArrow Hop(at#3, parcel#4)#5, [at#6, parcel#7], false
+- Exchange shufflepartitionidpassthrough(direct_shuffle_partition_id(at#3), 3), REPARTITION_BY_NUM, [plan_id=152]
   +- MapInArrow Hop(at#0, parcel#1)#2, [at#3, parcel#4], false
      +- Exchange shufflepartitionidpassthrough(direct_shuffle_partition_id(at#0), 4), REPARTITION_BY_NUM, [plan_id=1]
         +- *(1) Project [at#0, parcel#1]
            +- MicroBatchScan[at#0, parcel#1] (Python)
"""


def two_exchanges() -> Plan:
    pipeline = Pipeline("p")
    stage = pipeline.source().filter(is_kept).rebalance(name="spread", parallelism=4)
    stage.rebalance(last_digits, parallelism=3).sink("out", to="file:out")
    return make_plan(pipeline.graph())


def test_the_exchanges_of_the_plan_and_no_others_are_accepted() -> None:
    check_paths(two_exchanges(), PHYSICAL, 3)


@pytest.mark.parametrize(
    "planted",
    [
        PHYSICAL.replace("at#3), 3)", "at#3), 2)"),
        PHYSICAL.replace(
            "shufflepartitionidpassthrough(direct_shuffle_partition_id(at#0), 4)", "hashpartitioning(at#0, 4)"
        ),
        PHYSICAL.replace("*(1) Project [at#0, parcel#1]", "Exchange RoundRobinPartitioning(4), REPARTITION_BY_NUM"),
        PHYSICAL.replace("*(1) Project [at#0, parcel#1]", "AQEShuffleRead coalesced"),
        PHYSICAL.replace("*(1) Project [at#0, parcel#1]", "Coalesce 1"),
        "\n".join(PHYSICAL.splitlines()[2:]),
        "+- ReusedExchange [at#0], Exchange SinglePartition",
        "something that is not understood",
    ],
)
def test_an_exchange_that_the_plan_does_not_know_is_refused(planted: str) -> None:
    with pytest.raises(PlanError) as caught:
        check_paths(two_exchanges(), planted, 3)
    assert caught.value.next_step
    assert isinstance(ProcessionError.from_dict(caught.value.as_dict()), PlanError)
