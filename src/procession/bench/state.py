"""What a keyed state costs: ours, a bare dictionary, and Spark's `transformWithState` on rows and on pandas.

All count the records of each key and put the count behind each record; all read the same log, in turn, several rounds,
on as many tasks as there are cores; what counts are medians. The dictionary is a loop in one process that reads the log
and writes its output, with nothing around it, on one core. Ours is in order, and what it writes is compared with that
of the loop, byte for byte; of the others the counts are. Each state is committed with its epoch: ours with a round
record, Spark's in RocksDB. The first epoch of a run is not timed; nor are producers, gateway and sinks there.

Then few keys are touched of many: what an epoch costs that touches a thousand of a million, and of ten thousand.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession

from procession.bench import spark_state
from procession.bench.listing1 import COMPILE_QUICKLY, MEMORY
from procession.bench.spark_state import KEY_BYTES
from procession.bench.window_sort import bytes_of
from procession.commit.emitter import payloads, runs_for
from procession.commit.rounds import Round, Rounds
from procession.errors import ProcessionError, StorageError
from procession.plan.continuity import keyed_stages
from procession.plan.pipeline import Pipeline
from procession.plan.planner import make_plan
from procession.spark import session
from procession.spark.chains import Task
from procession.spark.keeping import Keeping
from procession.spark.query import start_query
from procession.storage.log import IngressLog, LogReader
from procession.storage.pieces import FIRST_GATEWAY, Place
from procession.storage.runs import Manifest, RunStore
from procession.storage.segment import INGRESS_SCHEMA
from procession.storage.states import StateStore, Version

VARIANTS = ("ours", "dictionary", "spark_rows", "spark_pandas")
DIGITS = KEY_BYTES + 10
ENTRY_RECORDS = 65_536
SINK = "counted"
TOUCHED = 1_000
FEW_EPOCHS = 8
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True)
class Given:
    """What is measured."""

    keys: int
    records: int
    rounds: int
    epoch_records: int
    many_keys: int
    cores: int


@dataclass(frozen=True)
class Ends:
    """Epochs that end there."""

    ends: tuple[int, ...]
    log: Path

    def next_ends(self, starts: Mapping[str, int]) -> dict[str, int]:
        return {gateway: next((end for end in self.ends if end > at), at) for gateway, at in starts.items()}

    def places(self) -> dict[str, Place]:
        return {FIRST_GATEWAY: Place(str(self.log))}


@dataclass
class Clock:
    """When epochs ended."""

    epochs: int
    ends_s: list[float] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def epoch(self) -> None:
        self.ends_s.append(time.perf_counter())
        if len(self.ends_s) == self.epochs:
            self.is_over.set()


def key(payload: bytes) -> bytes:
    return payload[:KEY_BYTES]


def counted(count: int, payload: bytes) -> tuple[int, bytes]:
    count += 1
    return count, payload + b" %d" % count


def measure(given: Given) -> dict[str, Any]:
    place = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="procession-bench-", dir=place) as name, _spark(given) as spark:
        work = Path(name)
        ends = _ends(given, work / "log")
        numbers = np.arange(ends.ends[-1], dtype=np.uint64)
        write_log(work / "log", _scattered(numbers, given.keys), numbers)
        found: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
        for number in range(given.rounds):
            # Who goes first changes, so that what the machine does meanwhile is nobody's.
            for variant in VARIANTS[number % 4 :] + VARIANTS[: number % 4]:
                folder = work / f"{number}-{variant}"
                folder.mkdir()
                found[variant].append(given.records / _run(spark, given, variant, work / "log", folder, ends))
        few = {f"of_{keys}": _few(spark, given, keys, work) for keys in (given.keys, given.many_keys)}
    rates = {variant: {"records_per_second": statistics.median(each)} for variant, each in found.items()}
    ratios = [ours / bare for ours, bare in zip(found["ours"], found["dictionary"], strict=True)]
    return {
        **rates,
        "ours_to_dictionary": statistics.median(ratios),
        "keys": given.keys,
        "records": given.records,
        "touched": {"keys": TOUCHED, **few},
    }


def told(figures: Mapping[str, Any]) -> Iterator[str]:
    for variant in VARIANTS:
        rate = figures[variant]["records_per_second"]
        yield f"{variant:12} {rate:11,.0f} records/s, {1e6 / rate:6.2f} µs a record"
    yield f"ours / dictionary {figures['ours_to_dictionary']:.2f}, with {figures['keys']:,} keys"
    touched = figures["touched"]
    for name, one in touched.items():
        if name != "keys":
            yield (
                f"an epoch that touches {touched['keys']:,} keys {name.replace('_', ' ')}:"
                f" {one['epoch_ms']:.0f} ms, {one['written_bytes']:,} bytes of states"
            )


@contextmanager
def _spark(given: Given) -> Iterator[SparkSession]:
    java_options, settings = session.JAVA_OPTIONS, session.SETTINGS
    # In Spark's own states rows pass through Java, and RocksDB cannot work with the file system that we choose.
    changed: Any = tuple(option for option in java_options if option != COMPILE_QUICKLY)
    session.JAVA_OPTIONS = changed
    session.SETTINGS = (
        *(setting for setting in settings if setting[0] != "spark.hadoop.fs.file.impl"),
        ("spark.sql.streaming.stateStore.providerClass", ROCKS, "transformWithState works with no other"),
    )
    spark = session.open_session("bench", given.cores)
    spark.conf.set("spark.sql.shuffle.partitions", str(given.cores))
    try:
        yield spark
    finally:
        spark.stop()
        session.JAVA_OPTIONS, session.SETTINGS = java_options, settings


def _ends(given: Given, log: Path) -> Ends:
    """A first epoch, in which every key is met once or more, and those that are timed."""
    first = max(given.keys, given.epoch_records)
    timed = range(first + given.epoch_records, first + given.records, given.epoch_records)
    return Ends((first, *timed, first + given.records), log)


def _scattered(numbers: npt.NDArray[np.uint64], keys: int) -> npt.NDArray[np.uint64]:
    """Every key in turn, but in no order that anybody could use."""
    return numbers % np.uint64(keys) * np.uint64(7_919) % np.uint64(keys)


def write_log(directory: Path, keys: npt.NDArray[np.uint64], numbers: npt.NDArray[np.uint64]) -> None:
    """Records of a key and a number, in digits."""
    directory.mkdir(parents=True)
    with IngressLog(directory) as log:
        for start in range(0, len(numbers), ENTRY_RECORDS):
            log.append(_entry(keys[start : start + ENTRY_RECORDS], numbers[start : start + ENTRY_RECORDS]))
        log.sync()


def _entry(keys: npt.NDArray[np.uint64], numbers: npt.NDArray[np.uint64]) -> pa.RecordBatch:
    count = len(numbers)
    columns = []
    for values, places in ((keys, KEY_BYTES), (numbers, DIGITS - KEY_BYTES)):
        powers = 10 ** np.arange(places - 1, -1, -1, dtype=np.uint64)
        columns.append((values[:, None] // powers % 10 + ord("0")).astype(np.uint8))
    digits = np.ascontiguousarray(np.hstack(columns))
    edges = np.arange(count + 1, dtype=np.int32) * DIGITS
    made = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(edges), pa.py_buffer(digits)])
    no_keys = pa.array([b""], pa.binary()).take(pa.array(np.zeros(count, np.int64)))
    zeros = np.zeros(count, np.int64)
    return pa.RecordBatch.from_arrays(
        [pa.array(zeros.astype(np.uint8)), pa.array(zeros.astype(np.uint64)), numbers, zeros, no_keys, made],
        schema=INGRESS_SCHEMA,
    )


def _run(spark: SparkSession, given: Given, variant: str, log: Path, folder: Path, ends: Ends) -> float:
    """The seconds that one run of one variant takes, behind its first epoch. StorageError if it is not right."""
    if variant == "dictionary":
        return plain_loop(log, folder.parent / "expected", ends)
    clock = Clock(len(ends.ends))
    if variant == "ours":
        with Ours(spark, log, folder, given.cores) as ours:
            ours.run(ends, clock)
        if not (folder.parent / "expected").exists():
            plain_loop(log, folder.parent / "expected", ends)
        if (folder / "output").read_bytes() != (folder.parent / "expected").read_bytes():
            raise StorageError("what came out is not what the loop wrote")
    else:
        query = spark_state.start_query(
            spark,
            variant,
            log,
            ends,
            tasks=given.cores,
            output=folder,
            checkpoint=folder / "checkpoint",
            on_epoch=lambda records: clock.epoch(),
        )
        _until_over(query, clock)
        _check_counts(folder, given, ends)
    return clock.ends_s[-1] - clock.ends_s[0]


def plain_loop(log: Path, output: Path, ends: Ends) -> float:
    """The seconds that a loop with a dictionary takes, behind the first epoch."""
    states: dict[bytes, int] = {}
    reader = LogReader(log)
    began = time.perf_counter()
    with output.open("wb") as file:
        for first, last in zip((0, *ends.ends), ends.ends, strict=False):
            if first == ends.ends[0]:
                began = time.perf_counter()
            for batch in reader.read(first, last):
                made = []
                for payload in batch.column("payload").to_pylist():
                    name = key(payload)
                    states[name], result = counted(states.get(name, 0), payload)
                    made.append(result)
                file.write(b"\n".join(made) + b"\n")
    return time.perf_counter() - began


def _check_counts(folder: Path, given: Given, ends: Ends) -> None:
    """Of each key as many records as there are, each with another count: in what order is nobody's promise."""
    seen = Counter(
        line[:KEY_BYTES] + line[DIGITS:]
        for path in folder.glob("[0-9]*-[0-9]*")
        for line in path.read_bytes().splitlines()
    )
    if len(seen) != ends.ends[-1] or max(seen.values()) != 1:
        raise StorageError(f"{seen.total():,} records came out with {len(seen):,} counts, not {ends.ends[-1]:,}")


class Ours:
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
        self._rounds = Rounds(folder / "rounds")
        self._store = StateStore(folder / "state")
        self._versions: dict[str, Version] = {}
        self.written_bytes: list[int] = []

    def __enter__(self) -> Ours:
        self._store.make()
        return self

    def __exit__(self, *_: object) -> None:
        self._store.drop([path.name for path in self._store.directory.iterdir()])

    def run(self, ends: Ends, clock: Clock) -> None:
        output = (self._folder / "output").open("wb")

        def on_epoch(epoch: int, manifests: list[Manifest]) -> None:
            for manifest in manifests:
                if manifest.failure is not None:
                    raise ProcessionError.from_dict(manifest.failure)
            for piece in payloads(self._runs, epoch, runs_for(SINK, None, manifests)):
                output.write(bytes_of(piece))
            self._commit(epoch, manifests)
            clock.epoch()

        keeping = Keeping(self._store.directory, self._rounds, 1)
        query = start_query(
            self._spark,
            Task(self._plan, self._log, self._runs.directory, keeping),
            ends,
            checkpoint=self._folder / "checkpoint",
            interval_s=0.0,
            on_epoch=on_epoch,
        )
        with output:
            _until_over(query, clock)

    def _commit(self, epoch: int, manifests: Sequence[Manifest]) -> None:
        """As the conductor does it: the round names the states, and what the one before needed goes."""
        versions = {
            name: Version(tuple(one.states or () for one in manifests if one.stage == chain), kind)
            for chain, (name, kind) in keyed_stages(self._plan).items()
        }
        self._rounds.write(Round(epoch, 1, "", 0, 0, {}, states=versions))
        before = {name for version in self._versions.values() for name in version.names}
        named = {name for version in versions.values() for name in version.names}
        self.written_bytes.append(sum((self._store.directory / name).stat().st_size for name in named - before))
        self._store.drop(before - named)
        self._versions = versions
        self._runs.drop(epoch)


def _few(spark: SparkSession, given: Given, keys: int, work: Path) -> dict[str, float]:
    """What an epoch costs that touches few keys, when there are so many."""
    folder = work / f"few-of-{keys}"
    folder.mkdir()
    touched = min(TOUCHED, keys)
    first = np.arange(keys, dtype=np.uint64)
    spread = np.arange(touched, dtype=np.uint64) * np.uint64(keys // touched)
    rest = np.concatenate([(spread + np.uint64(number)) % np.uint64(keys) for number in range(FEW_EPOCHS)])
    numbers = np.arange(keys + len(rest), dtype=np.uint64)
    write_log(folder / "log", np.concatenate((first, rest)), numbers)
    ends = Ends((keys, *(keys + touched * (number + 1) for number in range(FEW_EPOCHS))), folder / "log")
    clock = Clock(len(ends.ends))
    with Ours(spark, folder / "log", folder, given.cores) as ours:
        ours.run(ends, clock)
        # The first two behind the large one start what is started once.
        epochs = np.diff(clock.ends_s)[2:]
        return {
            "epoch_ms": float(np.median(epochs)) * 1e3,
            "written_bytes": statistics.median_low(ours.written_bytes[3:]),
        }


def _until_over(query: Any, clock: Clock) -> None:
    try:
        while not clock.is_over.wait(0.2):
            if not query.isActive:
                raise ProcessionError(f"the run failed: {query.exception()}")
    finally:
        query.stop()
