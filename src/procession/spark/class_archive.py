"""The class archive: a class-data-sharing archive of the classes that Spark loads for one of our epochs.

The one rule: it is derived and never needed; without it everything works and starts a few seconds later. Made once for
an environment, by `make setup`; used by `spark/session`. The rehearsal that fills it also warms a spare driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from procession.cache import VARIABLE
from procession.errors import StorageError
from procession.spark.session import archive_path, open_session

EPOCHS = 3
REHEARSAL_TIMEOUT_S = 120
DUMP = "PROCESSION_DUMP_CLASSES"


def warm() -> Path | None:
    """Make the archive if there is none. Gives its path, or None if this Java cannot make one."""
    archive = archive_path()
    if archive.exists():
        return archive
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{archive.parent} cannot be made: {error.strerror}",
            next_step=f"run `make setup` as the owner of .venv, or set {VARIABLE} to a directory of your own",
        ) from error
    draft = archive.with_name(f"{archive.name}.{os.getpid()}")
    # In a process of its own: the archive is written when its JVM ends.
    rehearsal = [sys.executable, "-m", "procession.spark.class_archive"]
    result = subprocess.run(
        rehearsal, env={**os.environ, DUMP: str(draft)}, capture_output=True, text=True, check=False
    )
    if result.returncode or not draft.exists():
        draft.unlink(missing_ok=True)
        return None
    draft.replace(archive)
    return archive


class Counting(DataSourceStreamReader):
    """A few numbers, so that an epoch has something to carry."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  (Spark's name)
        return {"number": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802  (Spark's name)
        return {"number": min(start["number"] + 1, EPOCHS)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(start["number"], end["number"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        yield partition.value, str(partition.value)


class Rehearsal(DataSource):
    @classmethod
    def name(cls) -> str:
        return "rehearsal"

    def schema(self) -> str:
        return "partition int, manifest string"

    def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        return Counting()


def rehearse(spark: SparkSession, *, fails: bool = False) -> None:
    """Run a few epochs as the driver would: what they load and start is there when it counts."""
    spark.dataSource.register(Rehearsal)
    is_over = threading.Event()

    def each(rows: DataFrame, epoch: int) -> None:
        rows.collect()
        if epoch == EPOCHS - 1:
            is_over.set()
            if fails:
                raise StopIteration

    with tempfile.TemporaryDirectory() as checkpoint:
        writer = spark.readStream.format("rehearsal").load().writeStream.foreachBatch(each)
        query = writer.option("checkpointLocation", checkpoint).start()
        is_over.wait(REHEARSAL_TIMEOUT_S)
        with suppress(Exception):  # a batch that fails on purpose
            query.awaitTermination(REHEARSAL_TIMEOUT_S) if fails else query.stop()


def dump_classes(archive: str) -> None:
    """Rehearse in a JVM that writes the archive when it ends."""
    spark = open_session("rehearsal", 2, java_options=[f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:cds=off"])
    rehearse(spark, fails=True)  # the classes of failure belong into the archive, too
    spark.stop()


if __name__ == "__main__":
    dump_classes(os.environ[DUMP])
