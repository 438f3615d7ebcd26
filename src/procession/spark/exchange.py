"""Spark's part of an exchange: shuffles manifests by slot, then each slot's task runs its chain.

Invariant: Spark decides where and when a task runs, but not its input. An envelope's slot is its partition number,
without hashing, so every partition has exactly one task's work. `spark/log_source` runs the first chain;
`spark/query` collects the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]
from pyspark.util import PythonEvalType

from procession.spark.data_source import SCHEMA
from procession.spark.epoch_tasks import run_slot
from procession.spark.log_source import attempt_of, freeze_once
from procession.spark.manifest_routing import RoutedManifest, as_rows, from_rows, slot_count
from procession.spark.tasks import Task


def with_exchanges(
    rows: DataFrame, task: Task, first: int, end: int, shared: Sequence[RoutedManifest] = ()
) -> DataFrame:
    """Send envelopes through the chains of the levels in [first, end). Each task of the first level also gets `shared`,
    the envelopes that are for many tasks."""
    for level in range(first, end):
        function = ExchangeLevel(task, level, shared if level == first else ())
        rows = map_in_arrow(rows.repartitionById(slot_count(task.plan, level), "at"), function, SCHEMA)
    return rows


def map_in_arrow(rows: DataFrame, function: Callable[..., Any], schema: str) -> DataFrame:
    """Call `DataFrame.mapInArrow` without its check for pandas, which it does not use."""
    wrapped = vectorized_udf(function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = wrapped(*(rows[name] for name in rows.columns))
    return DataFrame(rows._jdf.mapInArrow(column._jc, False, None), rows.sparkSession)


def physical_plan(rows: DataFrame) -> str:
    """Return the physical plan that Spark is about to run for these rows."""
    return str(rows._jdf.queryExecution().executedPlan().toString())


class ExchangeLevel:
    """Runs one level of the plan in Spark's workers: reads envelopes, returns envelopes."""

    def __init__(self, task: Task, level: int, shared: Sequence[RoutedManifest] = ()) -> None:
        self._task = task
        self._level = level
        self._shared = shared

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield from self.run(context, (envelope for batch in batches for envelope in from_rows(batch)))
        freeze_once()

    def run(self, context: TaskContext, envelopes: Iterable[RoutedManifest]) -> Iterator[pa.RecordBatch]:
        slot = context.partitionId()
        known = (envelope for envelope in self._shared if envelope.slot <= slot < envelope.slot + envelope.width)
        made = run_slot(self._task, attempt_of(context, self._task, slot), self._level, slot, chain(known, envelopes))
        yield from as_rows(self._task.plan, self._level + 1, made)
