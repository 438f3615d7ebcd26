"""Measures the cost of order: the workload of Conflux's Listing 1 with order, without order, and with a window sort.

All three read the same log on the same Spark, in one process, alternately, for several rounds; the result is the
median. Each output is counted and compared with the expected output, record by record. A warm-up round for the JVM does
not count, nor does the first, small epoch of each run, which includes one-time start-up work. The latency of a record
is from the start of its epoch until it is written. Producers, gateway and commit are omitted, because they are the
same for all. The JVM compiles with Spark's default settings instead of ours, because in the window sort rows pass
through the JVM. The log, the runs and Spark's shuffle files are in memory, if there is a file system in memory.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from procession.bench import window_sort, workload
from procession.bench.processes import cpu_total_s
from procession.bench.window_sort import Stamps, bytes_of
from procession.bench.workload import SINK, Segment
from procession.commit.emitter import payloads, runs_for
from procession.errors import ProcessionError
from procession.planner.rules import make_plan
from procession.spark import session
from procession.spark.epoch_size import EpochPace
from procession.spark.query import start_query
from procession.spark.tasks import Task
from procession.storage.log_ranges import FIRST_GATEWAY, LogLocation
from procession.storage.run_store import Manifest, RunStore

POLL_INTERVAL_S = 0.2
"""Interval at which a query is checked."""
MEMORY = Path("/dev/shm")
VARIANTS = ("ordered", "unordered", "baseline")
COMPILE_QUICKLY = "-XX:TieredStopAtLevel=1"
WARM_SHARE = 50
"""One record in WARM_SHARE is in the first epoch, which is not timed."""


@dataclass(frozen=True)
class Listing1Setup:
    """The options of the measurement."""

    name: str
    records: int
    burn_ns: int
    rounds: int
    epoch_records: int
    cores: int
    variants: tuple[str, ...] = VARIANTS

    @property
    def segments(self) -> Sequence[Segment]:
        return workload.WORKLOADS[self.name]


@dataclass(frozen=True)
class FixedFeed:
    """Offers epochs of one size, after a small first epoch."""

    records: int
    epoch_records: int
    log: Path

    def next_end(self, start: int) -> int:
        return min(self.records, start + self.epoch_records if start else -(-self.records // WARM_SHARE))

    def next_ends(self, starts: Mapping[str, int], records_max: int) -> dict[str, int]:
        return {gateway: self.next_end(start) for gateway, start in starts.items()}

    def places(self) -> dict[str, LogLocation]:
        return {FIRST_GATEWAY: LogLocation(str(self.log))}


@dataclass
class Timeline:
    """The end times of epochs, and the times at which their records were written."""

    records: int
    ends_ns: list[int] = field(default_factory=list)
    waits: list[tuple[float, int]] = field(default_factory=list)
    """Seconds from the beginning of an epoch until a piece of its output was written, and the records of the piece."""
    is_over: threading.Event = field(default_factory=threading.Event)
    cpu_s: list[float] = field(default_factory=list)
    """Processor time of all processes at the end of each epoch."""
    _written: int = 0

    def epoch(self, stamps: Stamps) -> None:
        self.cpu_s.append(cpu_total_s())
        if self.ends_ns:
            self.waits += [((at_ns - self.ends_ns[-1]) / 1e9, records) for at_ns, records in stamps]
        self._written += sum(records for _, records in stamps)
        self.ends_ns.append(time.time_ns())
        if self._written >= workload.expected_count(self.records):
            self.is_over.set()

    def figures(self) -> dict[str, float]:
        timed = self.records - -(-self.records // WARM_SHARE)
        written = sum(records for _, records in self.waits)
        return {
            "records_per_second": timed / ((self.ends_ns[-1] - self.ends_ns[0]) / 1e9),
            "mean_latency_s": sum(wait * records for wait, records in self.waits) / written,
            "cpu_us_per_record": (self.cpu_s[-1] - self.cpu_s[0]) / timed * 1e6,
        }


def measure(setup: Listing1Setup) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {variant: [] for variant in setup.variants}
    counts = set()
    place = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="procession-bench-", dir=place) as work, _spark(setup, Path(work)) as spark:
        workload.write_log(Path(work) / "log", setup.records)
        for number in range(1 + setup.rounds):
            # The order of variants alternates, so that background load affects all of them alike.
            turn = number % len(setup.variants)
            for variant in setup.variants[turn:] + setup.variants[:turn]:
                figures, count = run(spark, setup, variant, Path(work), Path(work) / f"{number}-{variant}")
                counts.add(count)
                if number:
                    found[variant].append(figures)
    medians = {
        variant: {name: statistics.median(figures[name] for figures in results) for name in results[0]}
        for variant, results in found.items()
    }
    (records_out,) = counts
    return {
        **medians,
        "ratios": ratios(found),
        "rounds": found,
        "records": setup.records,
        "records_out": records_out,
    }


@contextmanager
def _spark(setup: Listing1Setup, work: Path) -> Iterator[SparkSession]:
    java_options, settings = session.JAVA_OPTIONS, session.SETTINGS
    changed: Any = tuple(option for option in java_options if option != COMPILE_QUICKLY)
    session.JAVA_OPTIONS = changed
    session.SETTINGS = (*settings, ("spark.local.dir", str(work / "spark"), "what is compared is not the disk"))
    spark = session.open_session("bench", setup.cores)
    try:
        yield spark
    finally:
        spark.stop()
        session.JAVA_OPTIONS, session.SETTINGS = java_options, settings


def ratios(rounds_of: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """Return the medians of the rounds' ratios."""

    def ratio(name: str, other: str) -> float:
        rounds = zip(rounds_of["ordered"], rounds_of[other], strict=True)
        return statistics.median(ours[name] / theirs[name] for ours, theirs in rounds)

    return {
        f"ordered_to_{other}_{name}": ratio(figure, other)
        for other in rounds_of
        if other != "ordered"
        for name, figure in (
            ("throughput", "records_per_second"),
            ("mean_latency", "mean_latency_s"),
            ("cpu", "cpu_us_per_record"),
        )
    }


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    for variant in VARIANTS:
        row = figures[variant]
        yield (
            f"{variant:10} {row['records_per_second']:11,.0f} records/s, mean latency {row['mean_latency_s']:6.3f} s,"
            f" processor time {row['cpu_us_per_record']:5.2f} µs/record"
        )
    found = figures["ratios"]
    yield (
        f"ordered / unordered {found['ordered_to_unordered_throughput']:.2f};"
        f" ordered / baseline {found['ordered_to_baseline_throughput']:.2f},"
        f" its mean latency {found['ordered_to_baseline_mean_latency']:.2f}"
    )
    yield f"{figures['records']:,} records in, {figures['records_out']:,} out, each time all of them, and in order"


def run(
    spark: SparkSession, setup: Listing1Setup, variant: str, work: Path, folder: Path
) -> tuple[dict[str, float], int]:
    """Run one variant. Return its figures and its number of output records. Raises StorageError if the output is
    wrong."""
    folder.mkdir()
    timeline = Timeline(setup.records)
    output = folder / "output"
    output.touch()
    start = _start_baseline if variant == "baseline" else _start_ours
    query = start(spark, setup, variant, work / "log", output, timeline)
    until_over(query, timeline.is_over, f" of {variant}")
    count = workload.check_output(output, setup.records, is_ordered=variant != "unordered")
    output.unlink()
    return timeline.figures(), count


def until_over(query: StreamingQuery, is_over: threading.Event, name: str = "") -> None:
    """Wait for the last epoch and stop the query. Raises ProcessionError if the query fails first."""
    try:
        while not is_over.wait(POLL_INTERVAL_S):
            if not query.isActive:
                raise ProcessionError(f"the run{name} failed: {query.exception()}")
    finally:
        query.stop()


def _start_baseline(
    spark: SparkSession, setup: Listing1Setup, variant: str, log: Path, output: Path, timeline: Timeline
) -> StreamingQuery:
    return window_sort.start_query(
        spark,
        setup.segments,
        log,
        FixedFeed(setup.records, setup.epoch_records, log),
        burn_ns=setup.burn_ns,
        output=output,
        checkpoint=output.with_name("checkpoint"),
        on_epoch=lambda _, stamps: timeline.epoch(stamps),
    )


def _start_ours(
    spark: SparkSession, setup: Listing1Setup, variant: str, log: Path, output: Path, timeline: Timeline
) -> StreamingQuery:
    order: Literal["total", "none"] = "total" if variant == "ordered" else "none"
    plan = make_plan(workload.pipeline(setup.segments, order, setup.burn_ns).graph())
    runs = RunStore(output.with_name("runs"))
    return start_query(
        spark,
        Task(plan, log, runs.directory),
        FixedFeed(setup.records, setup.epoch_records, log),
        checkpoint=output.with_name("checkpoint"),
        pace=EpochPace(target_s=0),
        on_epoch=_writer(runs, output, timeline),
    )


def _writer(runs: RunStore, output: Path, timeline: Timeline) -> Callable[[int, list[Manifest]], None]:
    def on_epoch(epoch: int, manifests: list[Manifest]) -> None:
        for manifest in manifests:
            if manifest.failure is not None:
                raise ProcessionError.from_dict(manifest.failure)
        stamps: Stamps = []
        with output.open("ab") as file:
            for piece in payloads(runs, epoch, runs_for(SINK, None, manifests)):
                file.write(bytes_of(piece))
                stamps.append((time.time_ns(), len(piece)))
        runs.drop(epoch)
        timeline.epoch(stamps)

    return on_epoch
