"""Pipelines of expressions on Spark write what the same pipelines of functions write in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from procession import Pipeline, aggregates, col, windows
from procession.operators.column_stages import column_stages
from procession.planner.rules import make_plan
from procession.storage.segment import INGRESS_SCHEMA
from procession.testing.in_process import HostedPlan, scratch_directory
from tests.operators.reference import batch_of
from tests.operators.test_column_stages import Form, as_expression, as_function
from tests.spark.cluster import written
from tests.spark.spark import failures, patient, run_on_spark, session

pytestmark = patient

SCHEMA = pa.schema([("who", pa.string()), ("at", pa.int64()), ("x", pa.float64())])
RECORDS = [
    f'{{"who":"w{number * 7 % 31}","at":{number // 10},"x":{number * 0.1!r}}}'.encode() for number in range(2_000)
]


def pipeline_of(form: Form) -> Pipeline:
    pipeline = Pipeline("p", parallelism=3)
    source = pipeline.source("s", codec="json", schema=SCHEMA).filter(form(col("at") > 3))
    options: Any = {"key": form(col("who")), "time": form(col("at"))}
    source.window(windows.tumbling(20), aggregates.count(), **options).sink("counts", to="file:o")
    source.window(windows.tumbling(20), aggregates.sum_of(form(col("x"))), **options).sink("sums", to="file:o")
    source.aggregate(aggregates.last(form(col("x"))), key=options["key"]).sink("lasts", to="file:o")
    source.rolling(aggregates.count(), key=options["key"]).sink("rolling", to="file:o")
    source.distinct(form(col("at"))).filter(form(col("x") > 9)).sink("distinct", to="file:o")
    return pipeline


def test_expressions_on_spark_write_what_functions_write_in_one_process(tmp_path: Path) -> None:
    batch = batch_of(RECORDS, ends=[(len(RECORDS), 0)])
    assert batch.schema == INGRESS_SCHEMA
    streams = frozenset(batch.column("stream_id").to_pylist())
    by_function, by_expression = (
        make_plan(pipeline_of(form).graph().with_inputs(streams)) for form in (as_function, as_expression)
    )
    assert len(column_stages(by_expression.graph).arriving) == 3
    with scratch_directory(batch.nbytes) as directory:
        hosted = HostedPlan(by_function, batch, directory)
        hosted.run_epoch(batch.num_rows)
        expected = hosted.outputs().bytes
    with session("local[2,2]") as spark:
        epochs = run_on_spark(spark, by_expression, batch, [100, 101, 1_200], tmp_path, __name__)
    assert failures(epochs) == []
    assert written(by_expression, tmp_path / "runs", epochs) == expected
