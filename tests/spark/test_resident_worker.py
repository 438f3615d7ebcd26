"""A worker process that runs whole epochs gives the same manifests as this process, and loses nothing when it ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from procession.api.pipeline import Pipeline
from procession.operators import aggregates
from procession.planner.rules import make_plan
from procession.spark.epoch_tasks import run_tasks, split
from procession.spark.manifest_routing import RoutedManifest, manifests
from procession.spark.resident_worker import ResidentWorker
from procession.spark.task_state import TaskStateStore
from procession.spark.tasks import Attempt, Task
from procession.storage.log import IngressLog
from procession.storage.log_ranges import FIRST_GATEWAY, LogLocation, LogRange
from procession.storage.run_store import RESIDENT_ATTEMPTS, RunStore
from procession.storage.segment import INGRESS_SCHEMA, KIND_RECORD

ROWS = 40
PATIENCE_S = 60.0


class NoStates:
    """The states before the first epoch."""

    def states(self, epoch: int) -> dict[str, object]:
        return {}


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """Return a keyed count after an exchange, on a log of forty records.

    If the file "armed" says so, its function calls a service that fails once, or ends the process.
    """
    with IngressLog(tmp_path / "log") as log:
        payloads = [b"key-%d" % (number % 3) for number in range(ROWS)]
        columns = [[KIND_RECORD] * ROWS, [0] * ROWS, list(range(ROWS)), [0] * ROWS, [b""] * ROWS, payloads]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, INGRESS_SCHEMA, strict=True)]
        log.append(pa.record_batch(arrays, schema=INGRESS_SCHEMA))
        log.sync()
    (tmp_path / "states").mkdir()
    armed, here = tmp_path / "armed", os.getpid()

    async def ask(payload: bytes) -> bytes:
        if armed.exists() and os.getpid() != here:
            fault = armed.read_text()
            armed.unlink()
            if fault == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ConnectionError(fault)
        return payload

    pipeline = Pipeline("p", parallelism=2)
    counts = pipeline.source().key_by(bytes).rolling(aggregates.count()).map(str).map(str.encode)
    counts.map_async(ask).sink("counts", to="file:out")
    states = TaskStateStore(tmp_path / "states", NoStates(), 1)
    return Task(make_plan(pipeline.graph()), tmp_path / "log", tmp_path / "runs", states)


@pytest.fixture
def worker(task: Task) -> Iterator[ResidentWorker]:
    found = ResidentWorker()
    found.load(task)
    yield found
    found.close()


def pieces(task: Task) -> tuple[LogRange, ...]:
    return (LogRange(FIRST_GATEWAY, 0, ROWS, LogLocation(str(task.log_directory))),)


def result(worker: ResidentWorker, task: Task, epoch: int = 0) -> list[RoutedManifest]:
    """Return the worker's result of the epoch when it is ready."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := worker.run(epoch, 0, pieces(task))) is None:
        assert time.monotonic() < deadline
    return found


def rows(task: Task, envelopes: list[RoutedManifest]) -> list[bytes]:
    """Return the payloads in the runs, in the order of the tasks."""
    store = RunStore(task.runs_directory)
    return [
        payload
        for manifest in manifests(task.plan, envelopes, store)
        for run in manifest.runs
        if run.to == task.graph.sinks[0].id
        for batch in store.read(manifest.epoch, run)
        for payload in batch.column("payload").to_pylist()
    ]


def test_the_worker_makes_what_this_process_makes(task: Task, worker: ResidentWorker, tmp_path: Path) -> None:
    here = replace(task, runs_directory=tmp_path / "here")
    numbers = count(1)
    expected = run_tasks(here, split(here, 0, pieces(here), 2), lambda at: Attempt(0, at, next(numbers)))
    made = result(worker, task)
    assert rows(task, made) == rows(here, expected)
    assert len(rows(task, made)) == ROWS
    assert all(envelope.attempt >= RESIDENT_ATTEMPTS for envelope in made)


def test_a_worker_that_dies_within_an_epoch_leaves_it_to_spark_and_is_replaced(
    task: Task, worker: ResidentWorker, tmp_path: Path
) -> None:
    result(worker, task)
    before = worker.pid
    (tmp_path / "armed").write_text("die")
    assert worker.run(1, 0, pieces(task)) is None
    assert worker.pid != before
    numbers = count(1)
    by_spark = run_tasks(task, split(task, 0, pieces(task), 2), lambda at: Attempt(1, at, next(numbers)))
    assert len(rows(task, by_spark)) == ROWS, "what the dead worker had published is used, and the rest is added"
    assert any(envelope.attempt < RESIDENT_ATTEMPTS for envelope in by_spark)
    assert len(rows(task, result(worker, task, 2))) == ROWS


def test_an_error_that_a_retry_may_cure_is_left_to_spark(task: Task, worker: ResidentWorker, tmp_path: Path) -> None:
    result(worker, task)
    before = worker.pid
    (tmp_path / "armed").write_text("fail")
    assert worker.run(1, 0, pieces(task)) is None
    assert len(rows(task, result(worker, task, 1))) == ROWS
    assert worker.pid == before, "the process is as good as before"


def test_a_worker_that_is_closed_within_an_epoch_ends_and_is_not_replaced(task: Task, worker: ResidentWorker) -> None:
    result(worker, task)
    worker.close()
    assert worker.run(1, 0, pieces(task)) is None
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)
