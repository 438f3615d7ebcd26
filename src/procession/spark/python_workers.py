"""Starts Spark's Python processes before the first epoch needs them.

Invariant: this module only changes when processes start. Otherwise Spark would start the daemons of its Python
processes, one after the other, when the query plans its source, plans its first epoch and runs its first task, although
a core is idle during parts of the driver's start. A job on a source without rows starts them as soon as there is a
session, and Spark keeps them for the query. An error here occurs again in the query, which reports it. Used by
`driver/driver`.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from pyspark.sql import SparkSession

from procession.spark.data_source import COUNT, WARM_UP, RowlessSource


def start_python_workers(spark: SparkSession, count: int) -> None:
    """Let Spark start this many Python workers in the background, and the processes that plan their work."""

    def run() -> None:
        with suppress(Exception):
            spark.dataSource.register(RowlessSource)
            spark.read.format(WARM_UP).option(COUNT, count).load().collect()

    threading.Thread(target=run, name="python workers", daemon=True).start()
