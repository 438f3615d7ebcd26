"""Defines a data source that reads our log as Spark rows, for the baselines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from procession.spark.epoch_tasks import Range, distribute
from procession.spark.log_source import EpochFeed
from procession.storage.log_reader import LogReader


class LogRowReader(DataSourceStreamReader):
    """Reads the log. `rows_of` converts a batch to Spark's rows."""

    def __init__(
        self, log: Path, feed: EpochFeed, tasks: int, rows_of: Callable[[pa.RecordBatch], pa.RecordBatch]
    ) -> None:
        self._log = log
        self._feed = feed
        self._tasks = tasks
        self._rows_of = rows_of

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  (Spark's name)
        return {"number": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802  (Spark's name)
        return self._feed.next_ends(start, sys.maxsize)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(task_range) for task_range in distribute(start["number"], end["number"], self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task_range: Range = partition.value
        for batch in LogReader(self._log).read(task_range.first, task_range.last):
            yield self._rows_of(batch)


class LogRowSource(DataSource):
    """The data source. `register` creates the class that a session registers."""

    format_name: str
    row_schema: str
    row_reader: LogRowReader

    @classmethod
    def name(cls) -> str:
        return cls.format_name

    def schema(self) -> str:
        return self.row_schema

    def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        return self.row_reader


def register(spark: SparkSession, format_name: str, row_schema: str, reader: LogRowReader) -> None:
    """Register the log under this name."""
    bound = {"format_name": format_name, "row_schema": row_schema, "row_reader": reader}
    spark.dataSource.register(type("BoundLogRowSource", (LogRowSource,), bound))
