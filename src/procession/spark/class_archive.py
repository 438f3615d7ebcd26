"""The class archive: a class-data-sharing (CDS) archive of the JVM classes that an epoch loads.

Invariant: the archive is only an optimization. Without it, the JVM starts a few seconds later. `make setup` creates
it once per environment; `spark/session` uses it. The warm-up query that fills it also warms up a spare driver.
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
from typing import Any
from zipfile import ZipFile

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from procession.cache import VARIABLE
from procession.errors import StorageError
from procession.spark.jvm_launch import JAVA_OPTIONS, archive_path, driver_options, jar_path, launch_path, record_launch
from procession.spark.session import local_url, open_session

EPOCHS = 3
WARM_UP_TIMEOUT_S = 120
DUMP = "PROCESSION_DUMP_CLASSES"
SOURCE = Path(__file__).with_name("NioLocalFileSystem.java")


def warm() -> Path | None:
    """Create the archive if there is none. Return its path, or None if this Java cannot create one."""
    archive = archive_path()
    if archive.exists() and launch_path().exists() and jar_path().exists():
        return archive
    launch_path().unlink(missing_ok=True)  # Spark's launcher must start the JVM
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{archive.parent} cannot be created: {error.strerror}",
            next_step=f"run `make setup` as the owner of .venv, or set {VARIABLE} to a directory of your own",
        ) from error
    draft = archive.with_name(f"{archive.name}.{os.getpid()}")
    # In a separate process, because the JVM writes the archive when it exits.
    command = [sys.executable, "-m", "procession.spark.class_archive"]
    result = subprocess.run(command, env={**os.environ, DUMP: str(draft)}, capture_output=True, text=True, check=False)
    if result.returncode or not draft.exists():
        draft.unlink(missing_ok=True)
        return None
    draft.replace(archive)
    return archive


class CountingSource(DataSourceStreamReader):
    """A source of a few numbers, so that each warm-up epoch has a row."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  (Spark's name)
        return {"number": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802  (Spark's name)
        return {"number": min(start["number"] + 1, EPOCHS)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(start["number"], end["number"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        yield partition.value, str(partition.value)


class WarmUpSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "warmup"

    def schema(self) -> str:
        return "partition int, manifest string"

    def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        return CountingSource()


def warm_up(spark: SparkSession, *, fails: bool = False) -> None:
    """Run a few epochs as the driver does, to load classes and start workers before the first real epoch."""
    spark.dataSource.register(WarmUpSource)
    is_over = threading.Event()

    def on_epoch(rows: DataFrame, epoch: int) -> None:
        rows.collect()
        if epoch == EPOCHS - 1:
            is_over.set()
            if fails:
                raise StopIteration

    with tempfile.TemporaryDirectory() as checkpoint:
        writer = spark.readStream.format("warmup").load().writeStream.foreachBatch(on_epoch)
        query = writer.option("checkpointLocation", local_url(Path(checkpoint))).start()
        is_over.wait(WARM_UP_TIMEOUT_S)
        with suppress(Exception):  # the last batch fails, as `fails` requests
            query.awaitTermination(WARM_UP_TIMEOUT_S) if fails else query.stop()


def write_jar(spark: SparkSession) -> None:
    """Compile our file system with Spark's compiler of queries, because a Java runtime has no other."""
    jvm: Any = spark._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(SOURCE.read_text())
    draft = jar_path().with_suffix(f".{os.getpid()}")
    with ZipFile(draft, "w") as jar:
        for name, code in compiler.getBytecodes().items():
            jar.writestr(f"{name.replace('.', '/')}.class", bytes(code))
    draft.replace(jar_path())


def dump_classes(archive: str) -> None:
    """Run the warm-up epochs in a JVM that writes the archive when it exits."""
    options = [f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:cds=off"]
    spark = open_session("warmup", 2, java_options=options)
    with suppress(ValueError):
        pid = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        record_launch(pid, driver_options([*JAVA_OPTIONS, *options], None, None))
    with suppress(Exception):  # a version of Spark with another compiler: chmod sets the permissions
        write_jar(spark)
    warm_up(spark, fails=True)  # so that the archive also has the classes for failures
    spark.stop()


if __name__ == "__main__":
    dump_classes(os.environ[DUMP])
