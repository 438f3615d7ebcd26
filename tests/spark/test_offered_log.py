"""A task reads the log that was offered, not one that was put in its place since."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from procession.api.pipeline import Pipeline
from procession.gateway.log_rows import batch_of, eos_row
from procession.planner.rules import make_plan
from procession.spark import tasks
from procession.spark.epoch_size import EpochPace
from procession.spark.epoch_tasks import run_first
from procession.spark.log_source import Ranges
from procession.spark.tasks import Attempt, Task
from procession.storage.log import IngressLog
from procession.storage.log_ranges import LogLocation
from procession.storage.run_store import Manifest


@dataclass(frozen=True)
class Offered:
    """The offer of a gateway: its log up to an end."""

    place: LogLocation
    end: dict[str, Any]

    def next_ends(self, starts: Mapping[str, Any], records_max: int) -> dict[str, Any]:
        return self.end

    def places(self) -> Mapping[str, LogLocation]:
        return {"gateway-0": self.place}


def appended(log: IngressLog, stream_id: int) -> None:
    log.append(batch_of([eos_row(stream_id, number) for number in range(3)]))
    log.sync()


def test_a_task_refuses_a_log_that_was_put_in_the_place_of_the_offered_one(tmp_path: Path) -> None:
    with IngressLog(tmp_path / "log") as log:
        appended(log, 1)
        shutil.copytree(tmp_path / "log", tmp_path / "copy")
        appended(log, 2)
        feed = Offered(LogLocation(str(tmp_path / "log")), {"gateway-0": log.offset(6).as_json()})
    with IngressLog(tmp_path / "copy") as copy:
        appended(copy, 3)
    pipeline = Pipeline("p")
    pipeline.source().map(bytes.upper).sink("out", to="file:out")
    task = Task(make_plan(pipeline.graph()), tmp_path / "log", tmp_path / "runs")
    epoch = [partition.value for partition in Ranges(task, feed, 2, EpochPace()).partitions({"gateway-0": 0}, feed.end)]
    for number, task_range in enumerate(epoch):
        (*_, envelope) = run_first(task, Attempt(0, number, 1), task_range)
        read = Manifest.from_json(envelope.manifest)
        assert read.pieces == task_range.pieces, "a second lookup of a record compares, too"
    (tmp_path / "log").rename(tmp_path / "newest")
    (tmp_path / "copy").rename(tmp_path / "log")
    tasks._reader.cache_clear()  # in another worker: this one has the right files mapped
    for number, task_range in enumerate(epoch):
        (*_, envelope) = run_first(task, Attempt(1, number, 2), task_range)
        failure = Manifest.from_json(envelope.manifest).failure
        assert failure is not None
        assert "the records before 6 are different" in failure["sentence"]
