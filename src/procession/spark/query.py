"""The query: one streaming query whose micro-batches are our epochs.

The one rule: `on_epoch` gets the manifests of an epoch, of every task of every chain, in order, and returns only when
its round record is on disk; Spark then writes the commit. Before it `spark/log_source` and `spark/exchange`; after it
`commit/performer`, which the driver puts into `on_epoch`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from procession import faults
from procession.errors import ProcessionError
from procession.spark.exchange import physical_plan, with_exchanges
from procession.spark.log_source import FORMAT, Feed, IngressSource
from procession.spark.manifest_routing import SCHEMA, Parcel, addressed, manifests
from procession.spark.plan_check import check_paths
from procession.spark.sql import sql_levels, through_sql
from procession.spark.tasks import FIRST_CHAIN, Task
from procession.storage.run_store import Manifest, RunStore

OnEpoch = Callable[[int, list[Manifest]], None]


def start_query(
    spark: SparkSession,
    task: Task,
    feed: Feed,
    *,
    checkpoint: Path,
    interval_s: float,
    on_epoch: OnEpoch,
) -> StreamingQuery:
    """Start the query on this checkpoint; it runs until it is stopped or `on_epoch` raises."""

    # One job takes an epoch through all levels; only where records go through Spark SQL another begins.
    edges = [*sql_levels(task.plan), task.plan.levels]
    is_checked = False

    def each(rows: DataFrame, epoch: int) -> None:
        nonlocal is_checked
        faults.point("driver:after-offsets")
        try:
            # A transform has Spark's settings in its hands, and may have changed them since.
            if not is_checked or len(edges) > 1:
                check_paths(task.plan, executed_plan(spark), range(1, edges[0]))
                is_checked = True
            parcels = collected(rows)
            for level, following in pairwise(edges):
                parcels = through_sql(rows.sparkSession, task, level, parcels)
                batch = [(addressed(task.plan, level, one), one.to_json(), one.cell) for one in parcels]
                hops = with_exchanges(rows.sparkSession.createDataFrame(batch, SCHEMA), task, level, following)
                check_paths(task.plan, physical_plan(hops), range(level, following))
                parcels = collected(hops)
            told = manifests(task.plan, parcels, RunStore(task.runs_directory))
        except ProcessionError as error:
            # The way of every failure that somebody must act on; Spark would tell it as an exception of Java's.
            told = [Manifest(epoch, FIRST_CHAIN, 0, 0, 0, failure=error.as_dict())]
        on_epoch(epoch, told)

    spark.dataSource.register(IngressSource.bound(task, feed, task.plan.chains[0].tasks, interval_s))
    return (
        with_exchanges(spark.readStream.format(FORMAT).load(), task, 1, edges[0])
        .writeStream.foreachBatch(each)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="0 seconds")  # the reader keeps the pace (`spark/trigger` says why)
        .start()
    )


def collected(rows: DataFrame) -> list[Parcel]:
    found = ((row["parcel"], row["cell"]) for row in rows.collect())
    return [Parcel.from_json(text, None if cell is None else bytes(cell)) for text, cell in found]


def executed_plan(spark: SparkSession) -> str:
    """The physical plan of the epoch that Spark is about to run, of the one query that there is."""
    (query,) = spark.streams.active
    return str(query._jsq.streamingQuery().lastExecution().executedPlan().toString())


def ship_by_value(module: ModuleType) -> None:
    """Let workers get the user's functions inside the plan: they cannot import the user's file."""
    sys.modules.setdefault(module.__name__, module)
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
