"""Runs the baseline: a workload on plain Spark rows, ordered by a sort of each window in one task.

Invariant: the baseline uses every optimization that keeps the order: stages fused between exchanges, functions on
columns, hash partitions instead of Spark's sorting round robin, and a writer in the sorting task itself. Upstream:
the log.
Downstream: `bench/listing1`, which compares. This is how plain Spark keeps order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from procession.bench.log_row_source import LogRowReader, register
from procession.bench.workload import FUNCTIONS, Filter, Identity, Segment
from procession.spark.exchange import map_in_arrow
from procession.spark.log_source import EpochFeed

SCHEMA = "message_id bigint, payload binary"
FORMAT = "numbers"
Stamps = list[tuple[int, int]]
"""For each piece of the output: its time in nanoseconds, and its number of records."""


def _numbered(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch(
        {"message_id": batch.column("message_id").view(pa.int64()), "payload": batch.column("payload")}
    )


class Stages:
    """Runs the stages between two exchanges in Spark's workers."""

    def __init__(self, functions: Sequence[Filter | Identity]) -> None:
        self._functions = functions

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for function in self._functions:
                batch = function(batch)
            yield batch


class AppendSorted:
    """Writes the sorted window in its single task, and returns the time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self._path.open("ab") as file:
            for batch in batches:
                file.write(bytes_of(batch.column("payload")))
                yield pa.record_batch({"at_ns": [time.time_ns()], "records": [batch.num_rows]})


def bytes_of(payload: pa.Array) -> memoryview:
    """Return the bytes of a column, one row after the other, without a copy."""
    _, offsets, data = payload.buffers()
    if not len(payload):
        return memoryview(b"")
    edges = memoryview(offsets).cast("i")
    return memoryview(data)[edges[payload.offset] : edges[payload.offset + len(payload)]]


def start_query(
    spark: SparkSession,
    segments: Sequence[Segment],
    log: Path,
    feed: EpochFeed,
    *,
    burn_ns: int,
    output: Path,
    checkpoint: Path,
    on_epoch: Callable[[int, Stamps], None],
) -> StreamingQuery:
    register(spark, FORMAT, SCHEMA, LogRowReader(log, feed, segments[0].tasks, _numbered))
    rows = spark.readStream.format(FORMAT).load()
    for number, segment in enumerate(segments):
        if number:
            rows = rows.repartition(segment.tasks, "message_id")
        rows = map_in_arrow(rows, Stages([FUNCTIONS[do](burn_ns) for do in segment.stages]), SCHEMA)

    def run_epoch(window: DataFrame, epoch: int) -> None:
        sorted_window = window.repartition(1).sortWithinPartitions("message_id")
        written = map_in_arrow(sorted_window, AppendSorted(output), "at_ns bigint, records bigint").collect()
        on_epoch(epoch, [(row["at_ns"], row["records"]) for row in written])

    return rows.writeStream.foreachBatch(run_epoch).option("checkpointLocation", str(checkpoint)).start()
