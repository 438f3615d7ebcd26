"""Spark SQL on records, on real Spark: rows that come back in any order, more or fewer, are put in their places."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls it)

from procession import Pipeline, PlanError
from procession.errors import ProcessionError
from procession.planner.graph import Exchange
from procession.planner.rules import make_plan
from procession.spark.log_source import BATCH_PROPERTY
from procession.spark.manifest_routing import RoutedManifest, sent
from procession.spark.pickled_program import ship_by_value
from procession.spark.sql import placed, through_sql
from procession.spark.tasks import Attempt, Task
from tests.operators.reference import Sequential, batch_of
from tests.spark.cluster import write_log, written
from tests.spark.spark import Session, failures, run_on_spark, session

RECORDS = [b"%04d" % number for number in range(1_200)]
FIRST_STREAM, STREAMS = 2**63 + 5, 2
"""Ids that do not fit into Spark's numbers."""


def odd_ones(records: DataFrame) -> DataFrame:
    """Return fewer rows, redistributed and sorted in reverse."""
    text = records.withColumn("payload", F.concat(F.col("payload").cast("string"), F.lit("!")))
    return text.where("cast(substring(payload, 1, 4) as int) % 2 = 1").repartition(3).orderBy(F.desc("payload"))


def odd_one(payload: bytes) -> list[str]:
    return [payload.decode() + "!"] if int(payload[:4]) % 2 else []


def exploded(records: DataFrame) -> DataFrame:
    """Return three rows for each, with numbers that define their order."""
    three = F.array(*(F.lit(suffix) for suffix in ("c", "a", "b")))
    rows = records.select("*", F.posexplode(three).alias("child", "suffix"))
    return rows.withColumn("payload", F.concat("payload", F.col("suffix").cast("binary"))).drop("suffix")


def three_of(payload: bytes) -> list[bytes]:
    return [payload + suffix for suffix in (b"c", b"a", b"b")]


def first_four(value: Any) -> Any:
    return value[:4]


def with_id(batch: pa.RecordBatch) -> pa.Array:
    ids = batch.column("message_id").cast(pa.string()).cast(pa.binary())
    return pc.binary_join_element_wise(batch.column("payload"), ids, pa.scalar(b":", pa.binary()))


def sql() -> Pipeline:
    pipeline = Pipeline("sql", parallelism=3)
    source = pipeline.source()
    # Straight from the source; and from after an exchange into another one.
    odd = source.transform(odd_ones, name="odd")
    odd.map(lambda text: f"<{text}>").sink("odd-out", to="file:out")
    spread = source.flat_map(lambda value: [value, value]).rebalance(parallelism=2)
    many = spread.transform(exploded, name="three", parallelism=4)
    many.rebalance(first_four, parallelism=2).sink("many-out", to="file:out")
    # With a branch that bypasses it, and with a later stage that gets the fields of records.
    source.filter(lambda value: value.endswith(b"7")).merge(odd).sink("merged", to="file:out")
    many.map_batches(with_id).filter(lambda value: b"00" in value).sink("shown", to="file:out")
    return pipeline


@pytest.fixture(scope="module")
def spark() -> Iterator[Session]:
    with session("local[4,2]") as spark:
        yield spark


@pytest.fixture(
    scope="module",
    params=[
        ("local[4,2]", Exchange.RUNS),
        ("local[4,2]", Exchange.SPARK),
        pytest.param(("local-cluster[2,2,1024]", Exchange.RUNS), marks=pytest.mark.slow),
        pytest.param(("local-cluster[2,2,1024]", Exchange.SPARK), marks=pytest.mark.slow),
    ],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def ways(request: pytest.FixtureRequest) -> Iterator[tuple[Session, Exchange]]:
    master, exchange = request.param
    with session(master) as spark:
        yield spark, exchange


def test_rows_of_spark_sql_are_put_where_the_sequential_run_has_them(
    ways: tuple[Session, Exchange], tmp_path: Path
) -> None:
    spark, exchange = ways
    plan = make_plan(replace(sql().graph(), exchange=exchange))
    batch = batch_of(RECORDS, FIRST_STREAM, STREAMS)
    epochs = run_on_spark(spark, plan, batch, [1, 700], tmp_path, __name__)
    assert failures(epochs) == []
    got = written(plan, tmp_path / "runs", epochs)
    graph = plan.graph
    (shown,) = (node.name for node in graph.nodes if node.function is with_id)
    by_row: dict[str, Callable[[bytes], Any]] = {
        "odd": odd_one,
        "three": three_of,
        shown: lambda payload: payload + b":%d" % (10 * int(payload[:4])),
    }
    wanted = Sequential(graph, by_row).run(batch)
    assert all(wanted.values())
    assert got == wanted


# Functions that are refused before a record has left the driver


def without_key(records: DataFrame) -> DataFrame:
    return records.select("payload")


def counted(records: DataFrame) -> DataFrame:
    return records.groupBy("payload").agg(F.min("order_0").alias("order_0"))


def with_rank(records: DataFrame) -> DataFrame:
    rank = F.row_number().over(Window.orderBy("order_0")).cast("string")
    return records.withColumn("payload", rank)


def first_few(records: DataFrame) -> DataFrame:
    return records.limit(3)


def with_one_another(records: DataFrame) -> DataFrame:
    others = records.select(F.col("payload").alias("other"))
    return records.join(others, F.col("other") > F.col("payload"))


def with_largest(records: DataFrame) -> DataFrame:
    records.createOrReplaceTempView("records")
    return records.sparkSession.sql("select *, (select max(payload) from records) as largest from records").withColumn(
        "payload", F.concat("payload", "largest")
    )


def from_elsewhere(records: DataFrame) -> DataFrame:
    return records.sparkSession.sql("select 'x' as payload, cast(0 as bigint) as order_0")


def as_number(records: DataFrame) -> DataFrame:
    return records.withColumn("payload", F.length("payload"))


def adaptive(records: DataFrame) -> DataFrame:
    records.sparkSession.conf.set("spark.sql.adaptive.enabled", "true")
    return records.repartition(3)


def outer(records: DataFrame) -> DataFrame:
    others = records.sparkSession.createDataFrame([("0001",), ("none",)], "name string")
    both = records.join(others, F.col("name") == F.col("payload").cast("string"), "right")
    return both.withColumn("payload", F.coalesce("payload", F.lit(b"nobody")))


def strange_cast(records: DataFrame) -> DataFrame:
    return records.withColumn("payload", F.concat("payload", F.lit("x")).cast("int").cast("string"))


def misspelt(records: DataFrame) -> DataFrame:
    return records.select("paylaod")


def none_at_all(records: DataFrame) -> Any:
    return None


REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (without_key, "returned a DataFrame without order_0"),
    (counted, "combines several records (`HashAggregate`)"),
    (with_rank, "combines several records (`Window`)"),
    (first_few, "combines several records (`GlobalLimit`)"),
    (with_one_another, "(`CartesianProduct`)"),
    (with_largest, "Aggregate`)"),
    (from_elsewhere, "rows that do not come from its records"),
    (as_number, "returned the column payload as int"),
    (adaptive, "(AdaptiveSparkPlan)"),
    (outer, "returned a row whose order_0 is null"),
    (strange_cast, "failed: NumberFormatException"),
    (misspelt, "failed: AnalysisException"),
    (none_at_all, "returned NoneType"),
]


def through(
    spark: Session, work: Path, function: Callable[[Any], Any], *, strict: bool = False
) -> list[RoutedManifest]:
    """Run a transform alone, on the records of one epoch."""
    pipeline = Pipeline("alone", strict=strict)
    pipeline.source().transform(function, name="mine").sink("out", to="file:out")
    ship_by_value(sys.modules[__name__])
    write_log(work / "log", batch_of(RECORDS[:10]))
    task = Task(make_plan(pipeline.graph()), work / "log", work / "runs")
    manifest = task.run_range(Attempt(0, 0, 1), 0, 10)
    spark.sparkContext.setLocalProperty(BATCH_PROPERTY, "0")
    return through_sql(spark, task, 1, sent(task.plan, manifest, 1))


@pytest.mark.parametrize(("function", "why"), REFUSED, ids=lambda one: getattr(one, "__name__", ""))
def test_a_transform_whose_rows_would_lose_their_places_is_refused_by_name_with_a_way_out(
    spark: Session, tmp_path: Path, function: Callable[[Any], Any], why: str
) -> None:
    with pytest.raises(PlanError) as caught:
        through(spark, tmp_path, function)
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    assert "transform 'mine'" in caught.value.sentence
    assert why in caught.value.sentence
    assert caught.value.next_step
    assert isinstance(ProcessionError.from_dict(caught.value.as_dict()), PlanError)


# Shuffles inside a function: rows are sorted after them, and with `strict` they are refused


def dealt_anew(records: DataFrame) -> DataFrame:
    return records.repartition(3)


def turned_round(records: DataFrame) -> DataFrame:
    return records.orderBy(F.desc("payload"))


def named(records: DataFrame) -> DataFrame:
    return records.sparkSession.createDataFrame(
        [(number, f"n{number}") for number in range(10)], "digit int, name string"
    )


def joined(records: DataFrame) -> DataFrame:
    """Join by sorting both sides, without a broadcast."""
    digit = F.substring(F.col("payload").cast("string"), 4, 1).cast("int")
    both = records.withColumn("digit", digit).join(named(records).hint("merge"), "digit")
    return both.withColumn("payload", F.concat(F.col("payload").cast("string"), F.lit("\n+- "), "name"))


def sent_to_all(records: DataFrame) -> DataFrame:
    digit = F.substring(F.col("payload").cast("string"), 4, 1).cast("int")
    return records.withColumn("digit", digit).join(F.broadcast(named(records).where("digit % 2 = 0")), "digit")


def in_one(records: DataFrame) -> DataFrame:
    return records.coalesce(1)


SMUGGLED: dict[Callable[[Any], Any], Callable[[bytes], list[bytes]]] = {
    dealt_anew: lambda payload: [payload],
    turned_round: lambda payload: [payload],
    joined: lambda payload: [payload + b"\n+- n" + payload[3:4]],
    sent_to_all: lambda payload: [payload] if int(payload) % 2 == 0 else [],
    in_one: lambda payload: [payload],
}


def test_whatever_a_transform_does_with_its_rows_they_come_out_in_order(spark: Session, tmp_path: Path) -> None:
    pipeline = Pipeline("smuggled", parallelism=4)
    source = pipeline.source()
    for function in SMUGGLED:
        source.transform(function, name=function.__name__).sink(f"{function.__name__}-out", to="file:out")
    plan = make_plan(pipeline.graph())
    batch = batch_of(RECORDS[:400])
    epochs = run_on_spark(spark, plan, batch, [1, 250], tmp_path, __name__)
    assert failures(epochs) == []
    by_row = {function.__name__: reason for function, reason in SMUGGLED.items()}
    assert written(plan, tmp_path / "runs", epochs) == Sequential(plan.graph, by_row).run(batch)


@pytest.mark.parametrize("function", [dealt_anew, turned_round, joined, in_one])
def test_with_strict_a_transform_that_adds_a_shuffle_is_refused(
    spark: Session, tmp_path: Path, function: Callable[[Any], Any]
) -> None:
    with pytest.raises(PlanError, match="'mine' lets Spark repartition its records") as caught:
        through(spark, tmp_path, function, strict=True)
    assert "remove strict=True" in caught.value.next_step


def test_a_refusal_comes_before_a_record_leaves_the_driver(spark: Session, tmp_path: Path) -> None:
    pipeline = Pipeline("strict", strict=True)
    pipeline.source().transform(turned_round, name="mine").sink("out", to="file:out")
    epochs = run_on_spark(spark, make_plan(pipeline.graph()), batch_of(RECORDS[:10]), [], tmp_path, __name__)
    (failure,) = failures(epochs)
    assert failure["kind"] == "PlanError"
    assert len(epochs) == 1, "the first, which is empty"


def rows(*places: tuple[int, bytes, int]) -> pa.RecordBatch:
    keys, payloads, children = zip(*places, strict=True) if places else ((), (), ())
    return pa.record_batch(
        {
            "payload": pa.array(payloads, pa.binary()),
            "order_0": pa.array(keys, pa.int64()),
            "child": pa.array(children, pa.int32()),
            "form": pa.array([0] * len(keys), pa.int32()),
        }
    )


def test_rows_of_one_record_come_by_their_child_and_else_by_their_payload() -> None:
    given = rows((2, b"z", 0), (1, b"b", 1), (1, b"c", 0), (2, b"y", 0))
    out = placed(given, 1)
    assert out.column("payload").to_pylist() == [b"c", b"b", b"y", b"z"]
    assert out.column("order_1").to_pylist() == [0, 1, 0, 1]
    out = placed(given.drop_columns("child"), 1)
    assert out.column("payload").to_pylist() == [b"b", b"c", b"y", b"z"]
    assert placed(rows(), 1).num_rows == 0
