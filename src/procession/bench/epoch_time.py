"""Measures the duration of a small epoch, with Spark's default settings and with Procession's.

Both run the same query (a Python source, two partitions, `foreachBatch` that collects two rows) in separate processes,
alternately, for several rounds; the result is the ratio of the medians. With `--ablate`, ours also runs without each of
the performance settings, one at a time, to show the effect of each.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from procession.spark import session
from procession.spark.log_source import freeze_once

WARM_EPOCHS = 20
EPOCHS = 60
SHARING = "class sharing"
FREEZING = "gc.freeze()"
FOR_SPEED = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "spark.hadoop.fs.file.impl",
    "spark.python.unix.domain.socket.enabled",
    "spark.sql.shuffle.partitions",
    "spark.ui.enabled",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    SHARING,
    FREEZING,
)


class Ticks(DataSourceStreamReader):
    """A stream of ten more rows per epoch. With `is_frozen`, freezes objects in each Python worker as our reader
    does."""

    def __init__(self, is_frozen: bool) -> None:
        self._is_frozen = is_frozen

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  (Spark's name)
        return {"tick": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802  (Spark's name)
        return {"tick": start["tick"] + 10}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(start["tick"]), InputPartition(start["tick"] + 5)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        if self._is_frozen:
            freeze_once()
        yield partition.value, "manifest"


class TickSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ticks"

    def schema(self) -> str:
        return "partition long, manifest string"

    def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        return Ticks(is_frozen=self.options.get("frozen") == "true")


def run_variant(variant: str) -> dict[str, float]:
    """Return one process's figures: the median epoch, and the time from nothing to the first."""
    began = time.perf_counter()
    if variant == "default":
        os.environ["PYSPARK_PYTHON"] = sys.executable
        spark = SparkSession.builder.master("local[2]").appName("bench").getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
    else:
        without = variant.removeprefix("without ")
        session.SETTINGS = tuple(setting for setting in session.SETTINGS if setting[0] != without)
        kept: Any = tuple(option for option in session.JAVA_OPTIONS if option != without)
        session.JAVA_OPTIONS = kept
        spark = session.open_session("bench", 2, java_options=[] if without == SHARING else None)
    spark.dataSource.register(TickSource)
    ends: list[float] = []
    is_enough = threading.Event()

    def on_epoch(rows: DataFrame, epoch: int) -> None:
        rows.collect()
        ends.append(time.perf_counter())
        if len(ends) > WARM_EPOCHS + EPOCHS:
            is_enough.set()

    with tempfile.TemporaryDirectory() as checkpoint:
        is_frozen = str(variant != "default" and FREEZING not in variant).lower()
        writer = spark.readStream.format("ticks").option("frozen", is_frozen).load().writeStream.foreachBatch(on_epoch)
        query = writer.option("checkpointLocation", checkpoint).start()
        is_enough.wait(timeout=300)
        query.stop()
        spark.stop()
    steady = [after - before for before, after in zip(ends[WARM_EPOCHS:], ends[WARM_EPOCHS + 1 :], strict=False)]
    return {"epoch_ms": statistics.median(steady) * 1e3, "first_epoch_s": ends[0] - began}


def measure(rounds: int, *, is_ablating: bool = False) -> dict[str, Any]:
    variants = ["default", "ours", *(f"without {name}" for name in FOR_SPEED if is_ablating)]
    found: dict[str, list[dict[str, float]]] = {variant: [] for variant in variants}
    for _ in range(rounds):
        for variant, figures in found.items():
            argv = [sys.executable, "-m", "procession.bench.epoch_time", variant]
            output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
            figures.append(json.loads(output.splitlines()[-1]))
    medians = {
        variant: {name: statistics.median(result[name] for result in figures) for name in figures[0]}
        for variant, figures in found.items()
    }
    return {"variants": medians, "ratio": medians["ours"]["epoch_ms"] / medians["default"]["epoch_ms"]}


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    for variant, result in figures["variants"].items():
        epoch_ms, first_s = result["epoch_ms"], result["first_epoch_s"]
        yield f"{variant:56} small epoch {epoch_ms:6.0f} ms, first epoch after {first_s:5.1f} s"
    yield f"ours / default: {figures['ratio']:.2f}"


if __name__ == "__main__":
    print(json.dumps(run_variant(sys.argv[1])))
