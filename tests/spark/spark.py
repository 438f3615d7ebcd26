"""Runs a plan on real Spark, without gateway and sinks: from a log to manifests, as the performer gets them."""

from __future__ import annotations

import atexit
import queue
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from procession.commit.round_files import RoundRecords
from procession.commit.round_record import RoundRecord
from procession.planner.plan import Plan
from procession.spark.epoch_size import EpochPace
from procession.spark.pickled_program import ship_by_value
from procession.spark.query import start_query
from procession.spark.session import Session, open_session
from procession.spark.task_state import TaskStateStore
from procession.spark.tasks import Task
from procession.storage.log_ranges import FIRST_GATEWAY, LogLocation
from procession.storage.run_store import Manifest
from tests.spark.cluster import versions_of, write_log

STALL_S = 600
"""The longest wait for an epoch. It only ends a hang, because epochs take long on a busy machine."""

patient = pytest.mark.timeout(1_800)
"""The time limit of tests of which the first starts Spark and runs the whole query."""


@dataclass(frozen=True)
class Cuts:
    """A feed that offers the log in given epochs."""

    ends: tuple[int, ...]
    log: Path

    def next_ends(self, starts: Mapping[str, int], records_max: int) -> dict[str, int]:
        return {name: next((end for end in self.ends if end > start), start) for name, start in starts.items()}

    def places(self) -> dict[str, LogLocation]:
        return {FIRST_GATEWAY: LogLocation(str(self.log))}


@contextmanager
def session(master: str, properties: Mapping[str, str] | None = None) -> Iterator[Session]:
    spark = open_session("rows", 4, master=master, home=_home(), properties=properties)
    try:
        yield spark
    finally:
        spark.stop()


def run_on_spark(
    spark: Session, plan: Plan, batch: pa.RecordBatch, cuts: list[int], work: Path, module: str
) -> list[list[Manifest]]:
    """Return the manifests of all epochs, up to one that failed. `module` has the functions of the plan."""
    write_log(work / "log", batch)
    for name in (module, __name__):  # executors of their own cannot import tests
        ship_by_value(sys.modules[name])
    reported: list[list[Manifest]] = []
    news: queue.SimpleQueue[bool] = queue.SimpleQueue()
    """Whether it is over, after each epoch."""
    rounds, ends = RoundRecords(work / "rounds"), (*cuts, batch.num_rows)
    (work / "state").mkdir(exist_ok=True)

    def on_epoch(epoch: int, manifests: list[Manifest]) -> None:
        reported.append(manifests)
        rounds.write(RoundRecord(epoch, 1, "", 0, 0, {}, states=versions_of(plan, manifests)))
        news.put(any(manifest.failure or manifest.last == max(ends) for manifest in manifests))

    query = start_query(
        spark,
        Task(plan, work / "log", work / "runs", TaskStateStore(work / "state", rounds, 1)),
        Cuts(ends, work / "log"),
        checkpoint=work / "cp",
        pace=EpochPace(target_s=0),
        on_epoch=on_epoch,
    )
    threading.Thread(target=lambda: (_ended(query), news.put(True)), daemon=True).start()
    try:
        while not news.get(timeout=STALL_S):
            pass
        error = query.exception()
    finally:
        query.stop()
    assert error is None, error
    return reported


@cache
def _home() -> Path:
    """Return the directory for logs of executors, the same for all sessions here because they share a JVM."""
    home = Path(tempfile.mkdtemp(prefix="procession-spark-home-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home


def failures(epochs: list[list[Manifest]]) -> list[dict[str, Any]]:
    return [dict(manifest.failure) for epoch in epochs for manifest in epoch if manifest.failure]


def _ended(query: Any) -> None:
    with suppress(Exception):  # what it was is asked of the query itself
        query.awaitTermination()
