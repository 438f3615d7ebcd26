"""The query: one streaming query whose micro-batches are our epochs.

Invariant: `on_epoch` gets the manifests of every task of every chain of an epoch, in order. It returns only when the
epoch's round record is on disk; Spark then writes the commit. `spark/log_source` and `spark/exchange` create the
manifests; the driver passes `commit/performer` as `on_epoch`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from procession import faults
from procession.errors import ProcessionError
from procession.spark.data_source import FORMAT, SCHEMA, IngressSource
from procession.spark.epoch_size import EpochPace
from procession.spark.exchange import physical_plan, with_exchanges
from procession.spark.log_source import EpochFeed, Ranges
from procession.spark.manifest_routing import RoutedManifest, addressed, is_shared, manifests, slot_count
from procession.spark.plan_check import check_paths
from procession.spark.session import local_url
from procession.spark.small_epochs import SmallEpochs
from procession.spark.spark_conf import FAILURES_PROPERTY, task_failures_max
from procession.spark.sql import sql_levels, through_sql
from procession.spark.tasks import FIRST_CHAIN, Task
from procession.storage.epoch_runs import EpochRuns
from procession.storage.run_store import Manifest, RunStore

OnEpoch = Callable[[int, list[Manifest]], None]


def start_query(
    spark: SparkSession,
    task: Task,
    feed: EpochFeed,
    *,
    checkpoint: Path,
    pace: EpochPace,
    on_epoch: OnEpoch,
    small: SmallEpochs | None = None,
    runs: EpochRuns | None = None,
) -> StreamingQuery:
    """Start the query on this checkpoint. It runs until it is stopped or `on_epoch` raises. `small` runs the epochs
    that need no Spark job: Spark also commits an epoch whose rows are not read. `runs` fetches the runs that the driver
    sends."""

    context = spark.sparkContext
    failures_max = task_failures_max(context.master or "", context.getConf().get(FAILURES_PROPERTY))
    task = replace(task, failures_max=failures_max)
    # One job runs all levels of an epoch. A wide level, or one with a Spark SQL transform, starts another job.
    with_sql = sql_levels(task.plan)
    small = None if with_sql or task.hosts is not None else small
    edges = [*sorted({*with_sql, *filter(task.plan.is_wide, range(1, task.plan.levels))}), task.plan.levels]
    is_checked = False
    gathering = runs or EpochRuns(RunStore(task.runs_directory), task.hosts)

    def run_job(rows: DataFrame) -> list[RoutedManifest]:
        nonlocal is_checked
        # A transform can change Spark's settings, so its plan is checked in every epoch.
        if not is_checked or len(edges) > 1:
            check_paths(task.plan, executed_plan(spark), range(1, edges[0]))
            is_checked = True
        envelopes = collected(rows)
        for level, following in pairwise(edges):
            here = [item for item in envelopes if item.level >= following]  # they do not go through the job
            moving = [item for item in envelopes if item.level < following]
            if level in with_sql:
                moving = through_sql(rows.sparkSession, task, level, moving)
            hops = _job(rows.sparkSession, task, level, following, moving)
            check_paths(task.plan, physical_plan(hops), range(level, following))
            envelopes = here + collected(hops)
        return envelopes

    def run_epoch(rows: DataFrame, epoch: int) -> None:
        faults.point("driver:after-offsets")
        try:
            envelopes, job_s = None if small is None else small.run(epoch), None
            if envelopes is None:
                began = time.perf_counter()
                envelopes = run_job(rows)
                job_s = time.perf_counter() - began
            reported = manifests(task.plan, envelopes, gathering.store)
            if small is not None:
                small.observe(reported, job_s)
            reported = gathering.gathered(epoch, reported)
        except ProcessionError as error:
            # A manifest carries the failure to `on_epoch`; Spark would wrap it into a Java exception.
            reported = [Manifest(epoch, FIRST_CHAIN, 0, 0, 0, failure=error.as_dict())]
        on_epoch(epoch, reported)

    spark.dataSource.register(IngressSource.bound(Ranges(task, feed, task.plan.chains[0].tasks, pace)))
    return (
        with_exchanges(spark.readStream.format(FORMAT).load(), task, 1, edges[0])
        .writeStream.foreachBatch(run_epoch)
        .option("checkpointLocation", local_url(checkpoint))
        .trigger(processingTime="0 seconds")  # the reader applies the interval (see `spark/log_source`)
        .start()
    )


def _job(spark: SparkSession, task: Task, level: int, following: int, envelopes: Sequence[RoutedManifest]) -> DataFrame:
    """Return the job that runs the levels [level, following) on these envelopes. Envelopes for many tasks are part of
    the job's function, which Spark sends once to each executor. The others are rows."""
    plan = task.plan
    shared = [item for item in envelopes if is_shared(level, item)]
    batch: list[tuple[int, str | None, bytes | None]] = [
        (addressed(plan, level, item), item.to_json(), item.cell) for item in envelopes if not is_shared(level, item)
    ]
    # A task needs a row to start.
    batch += [(slot, None, None) for slot in range(slot_count(plan, level) if shared else 0)]
    return with_exchanges(spark.createDataFrame(batch, SCHEMA), task, level, following, shared)


def collected(rows: DataFrame) -> list[RoutedManifest]:
    found = ((row["envelope"], row["cell"]) for row in rows.collect())
    return [RoutedManifest.from_json(text, None if cell is None else bytes(cell)) for text, cell in found]


def executed_plan(spark: SparkSession) -> str:
    """Return the physical plan of the epoch that Spark is about to run for the only active query."""
    (query,) = spark.streams.active
    return str(query._jsq.streamingQuery().lastExecution().executedPlan().toString())
