"""Runs Spark's keyed state in its usual form: `transformWithState` on rows and on pandas.

The log's records are rows, grouped by key, with a value state that counts each key. Spark's tasks append the output to
files, unordered. `procession bench state` compares our state with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from procession.bench.log_row_source import LogRowReader, register
from procession.spark.exchange import map_in_arrow
from procession.spark.log_source import EpochFeed

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "payloads"
KEY_BYTES = 7
"""Number of bytes of the key at the beginning of a payload."""


def _payloads(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["payload"])


class _CountingProcessor(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")

    def _before(self) -> int:
        found = self._count.get()
        return 0 if found is None else int(found[0])

    def close(self) -> None:
        pass


class CountingRows(_CountingProcessor):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        count = self._before()
        for row in rows:
            count += 1
            yield Row(payload=row.payload + b" %d" % count)
        self._count.update((count,))


class CountingPandas(_CountingProcessor):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        import pandas as pd

        count = self._before()
        for frame in rows:
            first = count + 1
            count += len(frame)
            numbered = enumerate(frame["payload"], first)
            yield pd.DataFrame({"payload": [payload + b" %d" % number for number, payload in numbered]})
        self._count.update((count,))


class AppendCounts:
    """In Spark's tasks: write the output, one file per task, and return the number of records."""

    def __init__(self, directory: Path, epoch: int) -> None:
        self._directory = directory
        self._epoch = epoch

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        records = 0
        with (self._directory / f"{self._epoch}-{context.partitionId()}").open("wb") as file:
            for batch in batches:
                file.writelines(payload + b"\n" for payload in batch.column("payload").to_pylist())
                records += batch.num_rows
        yield pa.record_batch({"records": pa.array([records], pa.int64())})


def start_query(
    spark: SparkSession,
    variant: str,
    log: Path,
    feed: EpochFeed,
    *,
    tasks: int,
    output: Path,
    checkpoint: Path,
    on_epoch: Callable[[int], None],
) -> StreamingQuery:
    """Start a query. `on_epoch` is called with the number of output records at the end of each epoch."""
    register(spark, FORMAT, "payload binary", LogRowReader(log, feed, tasks, _payloads))
    rows = spark.readStream.format(FORMAT).load()
    grouped = rows.withColumn("key", expr(f"substring(payload, 1, {KEY_BYTES})")).groupBy("key")
    if variant == "spark_rows":
        counted = grouped.transformWithState(CountingRows(), "payload binary", "Append", "None")
    else:
        counted = grouped.transformWithStateInPandas(CountingPandas(), "payload binary", "Append", "None")

    def run_epoch(batch: DataFrame, epoch: int) -> None:
        written = map_in_arrow(batch, AppendCounts(output, epoch), "records bigint").collect()
        on_epoch(sum(row["records"] for row in written))

    return counted.writeStream.foreachBatch(run_epoch).option("checkpointLocation", str(checkpoint)).start()
