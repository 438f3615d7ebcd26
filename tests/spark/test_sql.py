"""Spark SQL on records, on real Spark: rows that come back in any order, more or fewer, are put in their places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls it)

from procession import Pipeline
from procession.plan.planner import make_plan
from procession.spark.sql import placed

from ..plan.reference import Sequential, batch_of
from .cluster import written
from .spark import run_on_spark

RECORDS = [b"%04d" % number for number in range(1_200)]
FIRST_STREAM, STREAMS = 2**63 + 5, 2
"""Ids that Spark's numbers have no room for."""


def odd_ones(records: DataFrame) -> DataFrame:
    """Fewer, dealt anew, and sorted the wrong way round."""
    text = records.withColumn("payload", F.concat(F.col("payload").cast("string"), F.lit("!")))
    return text.where("cast(substring(payload, 1, 4) as int) % 2 = 1").repartition(3).orderBy(F.desc("payload"))


def odd_one(payload: bytes) -> list[str]:
    return [payload.decode() + "!"] if int(payload[:4]) % 2 else []


def exploded(records: DataFrame) -> DataFrame:
    """Three of each, with numbers that say in which order."""
    three = F.array(*(F.lit(suffix) for suffix in ("c", "a", "b")))
    told = records.select("*", F.posexplode(three).alias("child", "suffix"))
    return told.withColumn("payload", F.concat("payload", F.col("suffix").cast("binary"))).drop("suffix")


def three_of(payload: bytes) -> list[bytes]:
    return [payload + suffix for suffix in (b"c", b"a", b"b")]


def without_key(records: DataFrame) -> DataFrame:
    return records.select("payload")


def first_four(value: Any) -> Any:
    return value[:4]


def with_id(batch: pa.RecordBatch) -> pa.Array:
    ids = batch.column("message_id").cast(pa.string()).cast(pa.binary())
    return pc.binary_join_element_wise(batch.column("payload"), ids, pa.scalar(b":", pa.binary()))


def sql() -> Pipeline:
    pipeline = Pipeline("sql", parallelism=3)
    source = pipeline.source()
    # Straight from the source; and from behind an exchange into another one.
    odd = source.transform(odd_ones, name="odd")
    odd.map(lambda text: f"<{text}>").sink("odd-out", to="file:out")
    spread = source.flat_map(lambda value: [value, value]).rebalance(parallelism=2)
    many = spread.transform(exploded, name="three", parallelism=4)
    many.rebalance(first_four, parallelism=2).sink("many-out", to="file:out")
    # With a branch that took no part in it; and with a stage behind that is shown what records have.
    source.filter(lambda value: value.endswith(b"7")).merge(odd).sink("merged", to="file:out")
    many.map_batches(with_id).filter(lambda value: b"00" in value).sink("shown", to="file:out")
    return pipeline


def test_rows_of_spark_sql_are_put_where_the_sequential_run_has_them(tmp_path: Path) -> None:
    plan = make_plan(sql().graph())
    batch = batch_of(RECORDS, FIRST_STREAM, STREAMS)
    epochs = run_on_spark("local[4,2]", plan, batch, [1, 700], tmp_path, __name__)
    assert [manifest.failure for told in epochs for manifest in told if manifest.failure] == []
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


def test_a_transform_that_loses_the_key_is_told_to_carry_it(tmp_path: Path) -> None:
    pipeline = Pipeline("lost")
    pipeline.source().transform(without_key, name="mine").sink("out", to="file:out")
    plan = make_plan(pipeline.graph())
    epochs = run_on_spark("local[4,2]", plan, batch_of(RECORDS[:10]), [], tmp_path, __name__)
    (failure,) = [manifest.failure for told in epochs for manifest in told if manifest.failure]
    assert failure["kind"] == "PlanError"
    assert "'mine' gave back a DataFrame without order_0" in failure["sentence"]
    assert failure["next_step"]


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
