"""Starts Spark's Python workers before the first epoch needs them.

Invariant: this module only changes when processes start. Otherwise Spark would start the daemon of its Python workers
with the first task, although a core is idle during parts of the driver's start. A job without input starts them as
soon as there is a session, and Spark keeps them for the epochs. An error here occurs again in the first epoch, which
reports it. Used by `driver/driver`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
from pyspark.sql import SparkSession

from procession.spark.exchange import map_in_arrow


def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches unchanged: the function of the job that starts the workers."""
    yield from batches


def start_python_workers(spark: SparkSession, count: int) -> None:
    """Let Spark start this many Python workers in the background."""

    def run() -> None:
        with suppress(Exception):
            map_in_arrow(spark.range(0, count, 1, count), unchanged, "id long").collect()

    threading.Thread(target=run, name="python workers", daemon=True).start()
