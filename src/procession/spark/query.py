"""The query: one streaming query whose micro-batches are our epochs.

The one rule: `on_epoch` gets the manifests of an epoch in partition order and returns only when its round record is on
disk; Spark then writes the commit. Before it `spark/reader`; after it `commit/conductor`, which the driver puts into
`on_epoch`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from procession import faults
from procession.spark.chains import Task
from procession.spark.reader import FORMAT, Feed, IngressSource
from procession.storage.runs import Manifest

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

    def each(rows: DataFrame, epoch: int) -> None:
        faults.point("driver:after-offsets")
        manifests = [Manifest.from_json(row["manifest"]) for row in rows.collect()]
        on_epoch(epoch, sorted(manifests, key=lambda manifest: manifest.partition))

    spark.dataSource.register(IngressSource.bound(task, feed, task.plan.chains[0].tasks))
    return (
        spark.readStream.format(FORMAT)
        .load()
        .writeStream.foreachBatch(each)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=f"{max(0, round(interval_s * 1000))} milliseconds")
        .start()
    )


def ship_by_value(module: ModuleType) -> None:
    """Let workers get the user's functions inside the plan: they cannot import the user's file."""
    sys.modules.setdefault(module.__name__, module)
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
