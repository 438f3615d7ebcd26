"""Measures the files of an exchange with many tasks, and Spark's scheduler. Part of `bench control-plane`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from procession.bench.control_step import ControlSize, Step, timed
from procession.storage.flight_reader import FlightAccess
from procession.storage.host_runs import HostRuns, runs_folder
from procession.storage.host_service import HostConfig, open_service
from procession.storage.run_store import Manifest, RunStore


def exchange_steps(size: ControlSize) -> Iterator[Step]:
    """Measure one file of a sender, with a row for each task after the exchange. A task reads its row from each
    sender; here it reads the same file repeatedly, from the page cache."""
    tasks = size.gateways
    rows = pa.record_batch({"payload": pa.array([b"0" * 100], pa.binary())})
    with tempfile.TemporaryDirectory(prefix="procession-bench-") as name:
        store = RunStore(Path(name))

        def write() -> Manifest:
            writer = store.writer(1, 0, 0, 0)
            for bucket in range(tasks):
                writer.add("exchange", rows, bucket)
            return writer.publish(Manifest(1, 0, 0, 0, tasks), {"exchange"})

        cpu_s, manifest = timed(write)
        yield Step("exchange: rows written by one task", "reader", tasks, cpu_s)
        run = replace(manifest.runs[0], bucket=0)
        cpu_s, found = timed(lambda: sum(batch.num_rows for _ in range(tasks) for batch in store.read(1, run)))
        assert found == tasks
        yield Step("exchange: rows read by one task", "sender", tasks, cpu_s)
    yield from _fetch_steps(tasks, rows)


def _fetch_steps(tasks: int, rows: pa.RecordBatch) -> Iterator[Step]:
    """Measure the same reads over Flight from a host service in this process, including the time of both ends."""
    with tempfile.TemporaryDirectory(prefix="procession-bench-") as name:
        service = open_service(HostConfig(Path(name), "127.0.0.1:0", b"bench"))
        try:
            runs = HostRuns("bench", 1, FlightAccess(b"bench"))
            folder = runs_folder(Path(name), "bench", 1)
            writer = RunStore(folder, str(service.host)).writer(1, 0, 0, 0)
            for bucket in range(tasks):
                writer.add("exchange", rows, bucket)
            run = replace(writer.publish(Manifest(1, 0, 0, 0, tasks), {"exchange"}).runs[0], bucket=0)
            names = [f"{number:06d}.arrow" for number in range(tasks)]
            for linked in names:
                os.link(folder / f"{1:020d}" / run.file, folder / f"{1:020d}" / linked)
            reader = RunStore(Path(name) / "other", "other", runs)

            def fetch() -> int:
                found = reader.read_all(1, [replace(run, file=linked) for linked in names])
                return sum(batch.num_rows for path in found for batch in path)

            cpu_s, found = timed(fetch)
            assert found == tasks
            yield Step("exchange: rows fetched by one task", "sender", tasks, cpu_s)
        finally:
            service.shutdown()


def spark_task_cpu_us(tasks: int) -> float:
    """Return the processor time that Spark's JVM takes for a task that does nothing, in microseconds."""
    from procession.bench.processes import cpu_tree_s
    from procession.spark.session import open_session

    spark = open_session("bench", 2)
    try:
        pid = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]

        def run() -> float:
            before = cpu_tree_s(pid)
            spark.range(0, tasks, 1, tasks).write.format("noop").mode("overwrite").save()
            return cpu_tree_s(pid) - before

        run()  # this first job loads classes
        return min(run() for _ in range(3)) / tasks * 1e6
    finally:
        spark.stop()
