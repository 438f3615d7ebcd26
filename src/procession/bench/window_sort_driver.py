"""Runs the baseline of `procession bench conflux`: a program on plain Spark that sorts windows into a topic.

Invariant: the program reads the same gateway as our driver and acknowledges records when they are published, so the
source is slowed down in the same way. A window contains the gateway's records at its beginning, up to the limit of
our epochs. One task sorts and publishes it with a plain producer, which is less work than two-phase commit. The JVM
compiles with Spark's defaults, because rows pass through it. Upstream: `procession gateway`.
`bench/conflux_contestants` starts it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from procession.bench.listing1 import COMPILE_QUICKLY
from procession.bench.log_row_source import LogRowReader, register
from procession.bench.stamped_records import StampedStage, stages_of
from procession.bench.workload import WORKLOADS
from procession.gateway.control_client import ControlClient
from procession.spark import session
from procession.spark.exchange import map_in_arrow
from procession.spark.log_source import IDLE_S
from procession.storage.log_ranges import LogLocation
from procession.storage.log_reader import LogReader
from procession.storage.segment import KIND_RECORD

SCHEMA = "number bigint, payload binary"
FORMAT = "stamped"
READY = "ready"
FENCE = 0
BYTES_MAX = 2**40
TIMEOUT_S = 30.0
PRODUCER: dict[str, Any] = {"linger.ms": 5, "queue.buffering.max.messages": 1_000_000, "log_level": 0}

_producers: dict[str, Any] = {}
"""The producer of a Spark worker, which is used for several tasks."""


class GatewayWindows:
    """The windows that the gateway offers. The object is pickled, so it connects where it is used."""

    def __init__(self, directory: Path, records_max: int) -> None:
        self._directory = directory
        self._records_max = records_max
        self._client: ControlClient | None = None

    def __getstate__(self) -> tuple[Path, int]:
        return self._directory, self._records_max

    def __setstate__(self, state: tuple[Path, int]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def next_ends(self, starts: Mapping[str, int], records_max: int) -> dict[str, int]:
        if self._client is None:
            self._client = ControlClient(self._directory, b"", TIMEOUT_S)
        start = starts["number"]
        end = self._client.offer(FENCE, start, min(self._records_max, records_max), BYTES_MAX).end
        if end == start:
            time.sleep(IDLE_S)
        return {"number": end}

    def places(self) -> dict[str, LogLocation]:
        return {}


def rows_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the records of an entry as Spark's rows: streams also have ends."""
    records = batch.filter(pc.equal(batch.column("kind"), KIND_RECORD))
    return pa.record_batch(
        {"number": records.column("message_id").view(pa.int64()), "payload": records.column("payload")}
    )


class SegmentOnRows:
    """In Spark's workers: the stages between two exchanges."""

    def __init__(self, stages: Sequence[StampedStage]) -> None:
        self._stages = stages

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for stage in self._stages:
                if not batch.num_rows:
                    break
                mask = stage.mask(batch.column("payload"))
                if mask is None:
                    batch = batch.set_column(1, "payload", stage.result(batch.column("payload")))
                else:
                    batch = batch.filter(mask)
            yield batch


class PublishSorted:
    """Publishes the sorted window in its single task."""

    def __init__(self, brokers: str, topic: str) -> None:
        self._brokers = brokers
        self._topic = topic

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from confluent_kafka import Producer

        if self._brokers not in _producers:
            _producers[self._brokers] = Producer({**PRODUCER, "bootstrap.servers": self._brokers})
        producer, count = _producers[self._brokers], 0
        for batch in batches:
            for value in batch.column("payload").to_pylist():
                while True:
                    try:
                        producer.produce(self._topic, value, None, 0)
                        break
                    except BufferError:
                        producer.poll(0.1)
            producer.poll(0)
            count += batch.num_rows
        if producer.flush(TIMEOUT_S):
            raise RuntimeError("the broker did not take the window")
        yield pa.record_batch({"records": pa.array([count], pa.int64())})


def run_baseline(directory: Path, work: Path, settings: Mapping[str, Any]) -> None:
    """Sort windows until the process ends.

    Args:
        directory: The gateway's directory.
        work: Directory of Spark's checkpoint and of the file that shows readiness.
        settings: `workload`, `burn_ns`, `epoch_records`, `brokers`, `topic` and `cores`.
    """
    segments = WORKLOADS[settings["workload"]]
    kept: Any = tuple(option for option in session.JAVA_OPTIONS if option != COMPILE_QUICKLY)
    session.JAVA_OPTIONS = kept
    spark = session.open_session("bench", int(settings["cores"]))
    feed = GatewayWindows(directory, int(settings["epoch_records"]))
    register(spark, FORMAT, SCHEMA, LogRowReader(directory / "log", feed, segments[0].tasks, rows_of))
    rows = spark.readStream.format(FORMAT).load()
    for number, (segment, stages) in enumerate(zip(segments, stages_of(segments, settings["burn_ns"]), strict=True)):
        if number:
            rows = rows.repartition(segment.tasks, "number")
        rows = map_in_arrow(rows, SegmentOnRows(stages), SCHEMA)
    checkpoint, committed = work / "checkpoint", 0
    log, client = LogReader(directory / "log"), ControlClient(directory, b"", TIMEOUT_S)

    def run_epoch(window: DataFrame, epoch: int) -> None:
        nonlocal committed
        ordered = window.repartition(1).sortWithinPartitions("number")
        map_in_arrow(ordered, PublishSorted(settings["brokers"], settings["topic"]), "records bigint").collect()
        end = int(json.loads((checkpoint / "offsets" / str(epoch)).read_text().splitlines()[-1])["number"])
        client.commit(FENCE, epoch, end, last_ids(log, committed, end))
        committed = end

    query = rows.writeStream.foreachBatch(run_epoch).option("checkpointLocation", str(checkpoint)).start()
    draft = work / f"{READY}.draft"
    draft.write_text(str(os.getpid()))
    draft.rename(work / READY)
    query.awaitTermination()


def last_ids(log: LogReader, start: int, end: int) -> dict[int, int]:
    """Return the last message id of each stream between two positions of the log."""
    found: dict[int, int] = {}
    for batch in log.read(start, end):
        records = batch.filter(pc.equal(batch.column("kind"), KIND_RECORD))
        if records.num_rows:
            # An entry contains records of only one stream.
            found[records.column("stream_id")[-1].as_py()] = records.column("message_id")[-1].as_py()
    return found


if __name__ == "__main__":
    run_baseline(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
