"""Compares a whole pipeline on a file (filter, map, rebalance, map, ordered file) with a plain Python loop.

Both run the same functions on the same file, alternately, for several rounds, and our committed output is compared with
the loop's output byte for byte. Ours is the whole pipeline: a source, a gateway with a log, Spark, an exchange, a merge
and two-phase commit with a sink, all synced to disk. Time is measured from the first record at the gateway to the last
commit; the start-up of Spark and of the source is reported separately. Before the rounds some records are sent slowly,
in many epochs, to warm up the JVM. There are four variants: trivial functions, functions that parse fields and
compute, and both again on columns.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from procession.bench.apps import by_fields, by_record
from procession.bench.processes import cpu_s
from procession.deployment.local_pipeline import COMMAND, LocalPipeline
from procession.deployment.settings import Settings
from procession.driver.app_file import load_app
from procession.driver.epoch_log import EpochTail, Latency
from procession.errors import ProcessionError, StorageError
from procession.gateway.control_client import ControlClient
from procession.jobs.demo import write_input
from procession.supervisor.supervisor import Supervisor
from procession.verify.sink_outputs import committed_output

LOOPS: dict[str, ModuleType] = {
    "by_record": by_record,
    "by_batch": by_record,
    "by_fields": by_fields,
    "fields_by_batch": by_fields,
}
"""Each form's app, and the functions that the loop has for the same work."""
FORMS = {form: Path(__file__).with_name("apps") / f"{form}.py" for form in LOOPS}
WARM_RECORDS = 300_000
WARM_S = 10.0
POLL_INTERVAL_S = 0.005
"""Interval of polls for the first record, which limits the precision of its time."""
WAIT_S = 0.1
COMPARE_BYTES = 1024 * 1024


def measure(
    records: int, rounds: int, settings: Settings, *, warm_records: int = WARM_RECORDS, warm_s: float = WARM_S
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="procession-bench-") as name:
        work = Path(name)
        source, warm = work / "input.txt", work / "warm.txt"
        write_input(source, range(records))
        write_input(warm, range(warm_records))
        forms = {form: _measure_form(work / form, form, source, warm, rounds, settings, warm_s) for form in FORMS}
    return {"records": records, "forms": forms}


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    for form, measured in figures["forms"].items():
        yield (
            f"{form:15} ours {measured['records_per_second']:9,.0f} records/s,"
            f" the loop {measured['loop_records_per_second']:9,.0f}: {measured['ratio']:.2f}"
            f"   (Spark started in {measured['start_s']:.1f} s, a source in {measured['source_start_s']:.1f} s)"
        )
        used = ", ".join(f"{part} {share:.2f}" for part, share in sorted(measured["cpu_us_per_record"].items()))
        yield f"{'':15} processor time, µs a record: the loop {measured['loop_cpu_us_per_record']:.2f}; ours: {used}"


@dataclass
class FormResult:
    """The results of the rounds of one form."""

    ours_s: list[float] = field(default_factory=list)
    loop_s: list[float] = field(default_factory=list)
    loop_cpu_s: list[float] = field(default_factory=list)
    source_start_s: list[float] = field(default_factory=list)
    cpu_s: list[dict[str, float]] = field(default_factory=list)

    def figures(self, records: int, start_s: float) -> dict[str, Any]:
        parts = sorted(set().union(*self.cpu_s))
        return {
            "records_per_second": records / statistics.median(self.ours_s),
            "loop_records_per_second": records / statistics.median(self.loop_s),
            "ratio": statistics.median(loop / ours for loop, ours in zip(self.loop_s, self.ours_s, strict=True)),
            "start_s": start_s,
            "loop_cpu_us_per_record": statistics.median(self.loop_cpu_s) / records * 1e6,
            "source_start_s": statistics.median(self.source_start_s),
            "cpu_us_per_record": {
                part: statistics.median(used.get(part, 0.0) for used in self.cpu_s) / records * 1e6 for part in parts
            },
        }


def _measure_form(
    work: Path, form: str, source: Path, warm: Path, rounds: int, settings: Settings, warm_s: float
) -> dict[str, Any]:
    work.mkdir()
    app, functions = FORMS[form], LOOPS[form]
    found = FormResult()
    records = _lines_of(source)
    expected = [work / "expected-warm", *(work / f"expected-{number}" for number in range(rounds))]
    plain_loop(warm, expected[0], functions)
    with Supervisor(work / "logs") as supervisor:
        began = time.monotonic()
        local = LocalPipeline(supervisor, app, load_app(app).graph, work, work, settings)
        local.start()
        pipeline = RunningPipeline(supervisor, local, work)
        pipeline.until(lambda: pipeline.epochs > 0)
        start_s = time.monotonic() - began
        pipeline.run(warm, rate=_lines_of(warm) / warm_s if warm_s else 0.0)
        for number in range(rounds):
            # Another name makes another stream of the same records.
            named = work / f"input-{number}.txt"
            named.hardlink_to(source)
            used_before = time.process_time()
            found.loop_s.append(plain_loop(named, expected[1 + number], functions))
            found.loop_cpu_s.append(time.process_time() - used_before)
            seconds, start, used = pipeline.run(named)
            found.ours_s.append(seconds)
            found.source_start_s.append(start)
            found.cpu_s.append(used)
    check_equal(expected, committed_output(work / "output", None))
    return found.figures(records, start_s)


def plain_loop(source: Path, target: Path, functions: ModuleType = by_record) -> float:
    """Return the seconds that a loop over the lines of a file takes."""
    is_wanted, parted, marked = functions.is_wanted, functions.parted, functions.marked
    began = time.perf_counter()
    with source.open("rb") as lines, target.open("wb") as out:
        for line in lines:
            record = line[:-1]
            if is_wanted(record):
                out.write(marked(parted(record)) + b"\n")
        out.flush()
        os.fsync(out.fileno())
    return time.perf_counter() - began


class RunningPipeline:
    """A running pipeline, to which files are sent."""

    def __init__(self, supervisor: Supervisor, local: LocalPipeline, work: Path) -> None:
        self._supervisor = supervisor
        self._local = local
        self._client = ControlClient(
            local.gateway_directory, local.settings.control_cookie, 20.0, tls=local.settings.client_tls
        )
        self._tail = EpochTail(work / "epochs.jsonl")
        self.epochs = 0
        self.latency = Latency()
        """Latencies from the time of a record to its commit."""
        self.commit_s: list[float] = []
        """Seconds from the end of each epoch's tasks to its commit."""
        self._committed_ns = 0

    def forget_latency(self) -> None:
        self.latency = Latency()
        self.commit_s.clear()

    def run(
        self, source: Path, *, rate: float = 0.0, is_stamping: bool = False
    ) -> tuple[float, float, dict[str, float]]:
        """Send a file. Return the seconds from its first record to the last commit, the seconds until its first
        record, and the processor time of each part from its first record on. `rate` limits the source, in records per
        second; `is_stamping` gives each record the time at which it is sent, for `latency`."""
        stamp = ["--stamp"] if is_stamping else []
        return self.send(["file", str(source), *(["--rate", str(rate)] if rate else []), *stamp])

    def send(self, arguments: Sequence[str]) -> tuple[float, float, dict[str, float]]:
        """Send records as `run` does, with these arguments of `procession source`."""
        before = self._client.status()["next_sequence"]
        started_ns = time.time_ns()
        to = ["--to", self._local.address, *self._local.producer_arguments]
        with subprocess.Popen([*COMMAND, "source", *arguments, *to]) as sender:
            self.until(lambda: self._client.status()["next_sequence"] > before)
            began_ns, used = time.time_ns(), self._used()
            used["source"] += cpu_s(os.getpid()).get("source", 0.0)  # its start
            self.until(lambda: sender.poll() is not None, WAIT_S)
        if sender.returncode:
            raise ProcessionError(f"the source {arguments[1]} ended with status {sender.returncode}")
        self._poll()
        after = self._used()
        spent = {part: after[part] - used.get(part, 0.0) for part in after}
        return (self._committed_ns - began_ns) / 1e9, (began_ns - started_ns) / 1e9, spent

    def until(self, is_reached: Callable[[], bool], poll_interval_s: float = POLL_INTERVAL_S) -> None:
        while not is_reached():
            if not self._supervisor.watch(poll_interval_s):
                raise ProcessionError("the measurement was stopped before its end")
            self._poll()

    def _poll(self) -> None:
        for line in self._tail.new():
            self.epochs += 1
            self.latency.add(line)
            self.commit_s.append(line["seconds"])
            self._committed_ns = line["committed_ns"]

    def _used(self) -> dict[str, float]:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {**cpu_s(os.getpid()), "source": ended.ru_utime + ended.ru_stime}


def check_equal(expected: list[Path], output: Iterator[bytes]) -> None:
    """Raise StorageError unless the output is the concatenation of these files."""
    position, rest = 0, b""
    for path in expected:
        with path.open("rb") as file:
            while wanted := file.read(COMPARE_BYTES):
                while len(rest) < len(wanted) and (piece := next(output, b"")):
                    rest += piece
                if rest[: len(wanted)] != wanted:
                    raise StorageError(f"the committed output differs from the loop's output from byte {position} on")
                position, rest = position + len(wanted), rest[len(wanted) :]
    if rest or next(output, b""):
        raise StorageError(f"the committed output is longer than the loop's output, which ends at byte {position}")


def _lines_of(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)
