"""Measures the cost of two replicas for a whole pipeline: the same app without and with them, in turn, on this
machine.

There are three loads: full speed; a load that uses half of this machine's processors without replicas; and a small
load, whose epochs have few records. A ratio is the median of the rounds' ratios. The pipelines run all the time, so
that Spark is warm; the outputs are compared byte for byte. The replicas take their share of the same processors.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from procession.bench.epoch_sizes import check_outputs, started
from procession.bench.loop import RunningPipeline
from procession.bench.processes import cpu_tree_s
from procession.bench.replication import REPLICAS, SECRET, ReplicaProcess, replica
from procession.deployment.settings import load_settings
from procession.jobs.demo import write_input

WARM_RECORDS = 200_000
WARM_S = 8.0
HALF_S = 10.0
"""Duration of the load that uses half of the processors."""
SMALL_RATE, SMALL_S = 500, 10.0
VARIANTS = (0, REPLICAS)


class LoadedRun(NamedTuple):
    """The costs of sending one file."""

    seconds: float
    cpu_s: Mapping[str, float]
    """Processor time by role."""
    replicated_bytes: int
    """Bytes written by one replica."""


class MeasuredPipeline:
    def __init__(self, pipeline: RunningPipeline, services: Sequence[ReplicaProcess]) -> None:
        self.pipeline = pipeline
        self._services = services

    def run(self, source: Path, rate: float = 0.0, *, is_stamping: bool = False) -> LoadedRun:
        before = self._replicas_cpu_s(), self._written()
        seconds, _, used = self.pipeline.run(source, rate=rate, is_stamping=is_stamping)
        roles = dict(used)
        if self._services:
            roles["each replica"] = (self._replicas_cpu_s() - before[0]) / len(self._services)
        return LoadedRun(seconds, roles, self._written() - before[1])

    def _replicas_cpu_s(self) -> float:
        return sum(cpu_tree_s(service.pid) for service in self._services)

    def _written(self) -> int:
        """Return the bytes that one replica has written to files, from the kernel's counters."""
        if not self._services:
            return 0
        lines = Path(f"/proc/{self._services[0].pid}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))


def measure(records: int, rounds: int, directory: Path | None) -> dict[str, Any]:
    """Return the figures of all three loads."""
    with tempfile.TemporaryDirectory(prefix="procession-bench-", dir=directory) as name, ExitStack() as stack:
        work = Path(name)
        variants = {replicas: _start(stack, work, replicas) for replicas in VARIANTS}
        warm = _input(work, "warm", WARM_RECORDS)
        for measured in variants.values():
            measured.run(warm, WARM_RECORDS / WARM_S)
        full: dict[int, list[LoadedRun]] = {replicas: [] for replicas in VARIANTS}
        for turn in range(rounds):
            source = _input(work, f"round-{turn}", records)
            for replicas, measured in variants.items():
                full[replicas].append(measured.run(source))
        size = (work / "round-0").stat().st_size
        cpu_s = statistics.median(sum(run.cpu_s.values()) for run in full[0])
        rate = _processors() / 2 * records / cpu_s
        half = {
            replicas: measured.run(_input(work, "half", int(rate * HALF_S)), rate)
            for replicas, measured in variants.items()
        }
        small = {replicas: _small(measured, work) for replicas, measured in variants.items()}
        stack.close()
        check_outputs([work / f"replicas-{replicas}" / "output" for replicas in VARIANTS])
    return {
        "records": records,
        "full": {str(replicas): _figures(runs, records, size) for replicas, runs in full.items()},
        "full_share": statistics.median(
            plain.seconds / ours.seconds for plain, ours in zip(full[0], full[REPLICAS], strict=True)
        ),
        "half_rate": rate,
        "half_share": half[0].seconds / half[REPLICAS].seconds,
        "half_processors": {str(replicas): sum(run.cpu_s.values()) / run.seconds for replicas, run in half.items()},
        "small_commit_ms": {str(replicas): found[0] for replicas, found in small.items()},
        "small_latency_ms": {str(replicas): found[1] for replicas, found in small.items()},
    }


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    full = figures["full"]
    plain, ours = full["0"], full[str(REPLICAS)]
    yield (
        f"pipeline at full speed: {plain['records_s']:,.0f} records/s without replicas,"
        f" {ours['records_s']:,.0f} with {REPLICAS}; share {figures['full_share']:.2f}"
    )
    used = figures["half_processors"]
    yield (
        f"pipeline, {figures['half_rate']:,.0f} records/s offered: share {figures['half_share']:.2f}; processors in use"
        f" {used['0']:.2f} without replicas, {used[str(REPLICAS)]:.2f} with them (the replicas' own not counted)"
    )
    for role in sorted(plain["cpu_ns_byte"].keys() | ours["cpu_ns_byte"].keys()):
        before, after = (row["cpu_ns_byte"].get(role, 0.0) for row in (plain, ours))
        yield f"{'':4}{role:16} {before:7.2f} ns a byte without, {after:7.2f} with replicas"
    yield f"bytes on a replica per byte ingested: {ours['replicated_bytes_per_byte']:.2f}"
    before, after = figures["small_commit_ms"]["0"], figures["small_commit_ms"][str(REPLICAS)]
    latency = figures["small_latency_ms"]
    yield (
        f"commit of a small epoch, from the end of its tasks: {before:.1f} ms without, {after:.1f} ms with replicas,"
        f" {after - before:.1f} more; latency, p50: {latency['0']:.0f} and {latency[str(REPLICAS)]:.0f} ms"
    )


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _start(stack: ExitStack, work: Path, replicas: int) -> MeasuredPipeline:
    services = [stack.enter_context(replica(work / f"service-{number}")) for number in range(replicas)]
    options: dict[str, Any] = {}
    if services:
        secret = work / "secret"
        secret.write_bytes(SECRET)
        secret.chmod(0o600)
        addresses = ",".join(str(service.address) for service in services)
        options = {"replicas": addresses, "replica_volume": "bench", "replica_cookie_file": secret}
    pipeline = started(stack, work / f"replicas-{replicas}", load_settings(**options))
    return MeasuredPipeline(pipeline, services)


def _input(work: Path, name: str, records: int) -> Path:
    path = work / name
    if not path.exists():
        write_input(path, range(records))
    return path


def _small(measured: MeasuredPipeline, work: Path) -> tuple[float, float]:
    """Return the median duration of commits, from the end of an epoch's tasks, and the median latency, in
    milliseconds."""
    pipeline = measured.pipeline
    pipeline.forget_latency()
    measured.run(_input(work, "small", int(SMALL_RATE * SMALL_S)), SMALL_RATE, is_stamping=True)
    return 1e3 * statistics.median(pipeline.commit_s), pipeline.latency.quantile(0.5) or 0.0


def _figures(runs: Sequence[LoadedRun], records: int, size: int) -> dict[str, Any]:
    roles = sorted(set().union(*(run.cpu_s for run in runs)))
    return {
        "records_s": records / statistics.median(run.seconds for run in runs),
        "cpu_ns_byte": {
            role: 1e9 * statistics.median(run.cpu_s.get(role, 0.0) for run in runs) / size for role in roles
        },
        "replicated_bytes_per_byte": statistics.median(run.replicated_bytes for run in runs) / size,
    }
