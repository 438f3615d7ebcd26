"""Runs the workload of `procession bench state`: a count for each key, in our keyed state and in a plain dictionary.

The log has records of a key and a number. A pipeline with one keyed stage reads it, with round records as the commit
performer writes them. A loop with a dictionary does the same on one core. Upstream: `bench/keyed_state`, which measures
them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyspark.sql import SparkSession

from procession.api.pipeline import Pipeline
from procession.bench.listing1 import until_over
from procession.bench.processes import cpu_s
from procession.bench.spark_state import KEY_BYTES
from procession.bench.window_sort import bytes_of
from procession.bench.workload import digits_of, entry_of
from procession.commit.emitter import payloads, runs_for
from procession.commit.round_files import RoundRecords
from procession.commit.round_record import RoundRecord
from procession.errors import ProcessionError
from procession.planner.compatibility import keyed_stages
from procession.planner.rules import make_plan
from procession.spark.epoch_size import EpochPace
from procession.spark.query import start_query
from procession.spark.task_state import TaskStateStore
from procession.spark.tasks import Task
from procession.storage.log import IngressLog
from procession.storage.log_ranges import FIRST_GATEWAY, LogLocation
from procession.storage.log_reader import LogReader
from procession.storage.run_store import Manifest, RunStore
from procession.storage.state_store import StateStore
from procession.storage.state_version import StateVersion

DIGITS = KEY_BYTES + 10
ENTRY_RECORDS = 65_536
SINK = "counted"


@dataclass(frozen=True)
class EpochEnds:
    """Offers epochs with these ends."""

    ends: tuple[int, ...]
    log: Path

    def next_ends(self, starts: Mapping[str, int], records_max: int) -> dict[str, int]:
        return {gateway: next((end for end in self.ends if end > at), at) for gateway, at in starts.items()}

    def places(self) -> dict[str, LogLocation]:
        return {FIRST_GATEWAY: LogLocation(str(self.log))}


@dataclass(frozen=True)
class EpochCosts:
    """The time of the epochs after the first one, and the processor time of all processes."""

    seconds: float
    used_s: float


@dataclass
class EpochClock:
    """The end times of epochs, and the processor time used until then."""

    epochs: int
    ends_s: list[float] = field(default_factory=list)
    used_s: list[float] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def epoch(self) -> None:
        self.ends_s.append(time.perf_counter())
        if len(self.ends_s) in (1, self.epochs):
            self.used_s.append(time.process_time() + sum(cpu_s(os.getpid()).values()))
        if len(self.ends_s) == self.epochs:
            self.is_over.set()

    def costs(self) -> EpochCosts:
        return EpochCosts(self.ends_s[-1] - self.ends_s[0], self.used_s[-1] - self.used_s[0])


def key(payload: bytes) -> bytes:
    return payload[:KEY_BYTES]


def counted(count: int, payload: bytes) -> tuple[int, bytes]:
    count += 1
    return count, payload + b" %d" % count


def write_log(directory: Path, keys: npt.NDArray[np.uint64], numbers: npt.NDArray[np.uint64]) -> None:
    """Write records of a key and a number, in digits."""
    directory.mkdir(parents=True)
    with IngressLog(directory) as log:
        for start in range(0, len(numbers), ENTRY_RECORDS):
            some = slice(start, start + ENTRY_RECORDS)
            digits = np.hstack((digits_of(keys[some], KEY_BYTES), digits_of(numbers[some], DIGITS - KEY_BYTES)))
            log.append(entry_of(numbers[some], digits))
        log.sync()


def plain_loop(log: Path, output: Path, ends: EpochEnds) -> EpochCosts:
    """Return the time of a loop with a dictionary, after the first epoch."""
    states: dict[bytes, int] = {}
    reader = LogReader(log)
    began, used = time.perf_counter(), time.process_time()
    with output.open("wb") as file:
        for first, last in zip((0, *ends.ends), ends.ends, strict=False):
            if first == ends.ends[0]:
                began, used = time.perf_counter(), time.process_time()
            for batch in reader.read(first, last):
                made = []
                for payload in batch.column("payload").to_pylist():
                    name = key(payload)
                    states[name], result = counted(states.get(name, 0), payload)
                    made.append(result)
                file.write(b"\n".join(made) + b"\n")
    return EpochCosts(time.perf_counter() - began, time.process_time() - used)


class KeyedPipeline:
    """A pipeline with one keyed stage, on Spark, with round records and states; use it as a context."""

    def __init__(self, spark: SparkSession, log: Path, folder: Path, cores: int) -> None:
        pipeline = Pipeline("bench-state", parallelism=cores)
        stage = pipeline.source("records").map_stateful(counted, key=key, initial=0, name="counts")
        stage.sink(SINK, to="file:output")
        self._plan = make_plan(pipeline.graph())
        self._spark = spark
        self._log = log
        self._folder = folder
        self._runs = RunStore(folder / "runs")
        self._rounds = RoundRecords(folder / "rounds")
        self._store = StateStore(folder / "state")
        self._versions: dict[str, StateVersion] = {}
        self.written_bytes: list[int] = []

    def __enter__(self) -> KeyedPipeline:
        self._store.make()
        return self

    def __exit__(self, *_: object) -> None:
        self._store.drop([path.name for path in self._store.directory.iterdir()])

    def run(self, ends: EpochEnds, clock: EpochClock) -> None:
        output = (self._folder / "output").open("wb")

        def on_epoch(epoch: int, manifests: list[Manifest]) -> None:
            for manifest in manifests:
                if manifest.failure is not None:
                    raise ProcessionError.from_dict(manifest.failure)
            for piece in payloads(self._runs, epoch, runs_for(SINK, None, manifests)):
                output.write(bytes_of(piece))
            self._commit(epoch, manifests)
            clock.epoch()

        keeping = TaskStateStore(self._store.directory, self._rounds, 1)
        query = start_query(
            self._spark,
            Task(self._plan, self._log, self._runs.directory, keeping),
            ends,
            checkpoint=self._folder / "checkpoint",
            pace=EpochPace(target_s=0),
            on_epoch=on_epoch,
        )
        with output:
            until_over(query, clock.is_over)

    def _commit(self, epoch: int, manifests: Sequence[Manifest]) -> None:
        """Commit as the commit performer does: the round names the states, and states of the previous round are
        removed."""
        versions = {
            name: StateVersion(tuple(manifest.states or () for manifest in manifests if manifest.stage == chain), kind)
            for chain, (name, kind) in keyed_stages(self._plan).items()
        }
        self._rounds.write(RoundRecord(epoch, 1, "", 0, 0, {}, states=versions))
        before = {name for version in self._versions.values() for name in version.names}
        named = {name for version in versions.values() for name in version.names}
        self.written_bytes.append(sum((self._store.directory / name).stat().st_size for name in named - before))
        self._store.drop(before - named)
        self._versions = versions
        self._runs.drop(epoch)
