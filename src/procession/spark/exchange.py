"""Spark's part of an exchange: shuffles manifests by slot, then each slot's task runs its chain.

Invariant: Spark decides where and when a task runs, never what it reads. An envelope's slot is its partition number,
without hashing, so every partition has exactly one task's work. `spark/log_source` runs the first chain;
`spark/query` collects the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]
from pyspark.util import PythonEvalType

from procession.spark.epoch_tasks import run_slot
from procession.spark.log_source import attempt_of, freeze_once
from procession.spark.manifest_routing import SCHEMA, RoutedManifest, as_rows, from_rows, slots
from procession.spark.tasks import Task


def with_exchanges(rows: DataFrame, task: Task, first: int, end: int) -> DataFrame:
    """Send envelopes through the chains of the levels in [first, end)."""
    for level in range(first, end):
        rows = map_in_arrow(
            rows.repartitionById(len(slots(task.plan, level)), "at"), ExchangeLevel(task, level), SCHEMA
        )
    return rows


def map_in_arrow(rows: DataFrame, function: Callable[..., Any], schema: str) -> DataFrame:
    """`DataFrame.mapInArrow` without its check that pandas is installed, which it does not need."""
    wrapped = vectorized_udf(function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = wrapped(*(rows[name] for name in rows.columns))
    return DataFrame(rows._jdf.mapInArrow(column._jc, False, None), rows.sparkSession)


def physical_plan(rows: DataFrame) -> str:
    """Return the physical plan that Spark is about to run for these rows."""
    return str(rows._jdf.queryExecution().executedPlan().toString())


class ExchangeLevel:
    """Runs one level of the plan in Spark's workers: reads envelopes, returns envelopes."""

    def __init__(self, task: Task, level: int) -> None:
        self._task = task
        self._level = level

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield from self.run(context, (envelope for batch in batches for envelope in from_rows(batch)))
        freeze_once()

    def run(self, context: TaskContext, envelopes: Iterable[RoutedManifest]) -> Iterator[pa.RecordBatch]:
        slot = context.partitionId()
        made = run_slot(self._task, attempt_of(context, slot), self._level, slot, envelopes)
        yield from as_rows(self._task.plan, self._level + 1, made)
