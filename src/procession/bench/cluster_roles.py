"""Measures a pipeline on several hosts: processor time and network bytes per record, by role.

It runs `procession run --cluster` on network namespaces of this machine, with different numbers of executors, and
reads the kernel's counters for the processes of each host. All hosts share the machine's cores, so only processor
time and bytes, but not seconds, apply to a real cluster. The same run with more expensive functions shows which roles
pay for functions. Then the time of a small epoch is compared with that on one machine. Root only.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from procession.bench.processes import TICKS_S
from procession.cluster.namespace_cluster import NamespaceCluster
from procession.cluster.namespace_hosts import NamespaceHost, processes_of
from procession.deployment.cluster_pipeline import driver_directory, ends_directory
from procession.deployment.local_pipeline import COMMAND
from procession.driver.epoch_log import EpochTail
from procession.errors import ProcessionError
from procession.jobs.demo import write_input

APP = """
from procession import Pipeline

ROUNDS = {rounds}

def worked(record):
    value = int(record[:10])
    for _ in range(ROUNDS):
        value = (value * 1103515245 + 12345) % 2147483648
    return b"%s,%d" % (record, value)

pipeline = Pipeline("spread", parallelism={tasks})
pipeline.source("lines").map(worked).rebalance().map(worked).sink("output", to="file:output")
"""
NAME = "spread"
LIGHT, HEAVY = 1, 100
"""Rounds of the loop in each function."""
EPOCHS = 8
"""Number of epochs of a run. The first epochs do not count, because programs and functions are loaded then."""
WARM_EPOCHS = 2
SMALL_RECORDS = 100
SMALL_EPOCHS = 40
POLL_S = 0.2
MARKS = (
    (b" gateway ", "gateway"),
    (b" sink ", "sink"),
    (b" source ", "source"),
    (b" host ", "host services"),
    (b"deploy.master.Master", "Spark's master and workers"),
    (b"deploy.worker.Worker", "Spark's master and workers"),
)
"""Texts in the command lines of processes, with the role of such a process. Other processes belong to the driver or
to an executor."""


@dataclass
class Usage:
    """Processor time of processes, and bytes that hosts have sent, as the kernel has counted them so far."""

    cpu_s: dict[tuple[str, int], float] = field(default_factory=dict)
    """Processor time by role and process. A process that has ended keeps its last value."""
    sent_bytes: dict[str, int] = field(default_factory=dict)

    def look(self, cluster: NamespaceCluster) -> None:
        """Read the counters of all hosts."""
        for host in cluster.hosts:
            pids = processes_of(host.namespace)
            for pid in pids:
                with suppress(OSError, IndexError, ValueError):
                    role = _role(cluster, host, pid)
                    self.cpu_s[role, pid] = _cpu_s(pid)
            for pid in pids[:1]:
                with suppress(OSError, IndexError, ValueError):
                    self.sent_bytes[_host_role(cluster, host) + f" {host.name}"] = _sent_bytes(pid)

    def by_role(self) -> dict[str, float]:
        total: dict[str, float] = defaultdict(float)
        for (role, _), used in self.cpu_s.items():
            total[role] += used
        return dict(total)

    def sent_by_host(self) -> dict[str, int]:
        total: dict[str, int] = defaultdict(int)
        for name, sent in self.sent_bytes.items():
            total[name.rpartition(" ")[0]] += sent
        return dict(total)


def measure(executors: Sequence[int], records: int) -> dict[str, Any]:
    """Return the figures of runs with these numbers of executors, of a run with more expensive functions, and of
    small epochs."""
    with tempfile.TemporaryDirectory(prefix="procession-bench-") as name:
        work = Path(name)
        write_input(work / "input.txt", range(records))
        write_input(work / "small.txt", range(SMALL_RECORDS * SMALL_EPOCHS))
        runs: dict[str, Any] = {}
        heavy: dict[str, Any] = {}
        small: dict[str, float] = {}
        for count in executors:
            with cluster_with(count) as cluster:
                runs[str(count)] = measure_run(cluster, work, LIGHT, records)
                if count == executors[-1]:
                    heavy = measure_run(cluster, work, HEAVY, records)
                    small["cluster"] = _small_epoch_s(cluster, work)
        small["one machine"] = _small_epoch_s(None, work)
        small["one machine, without a Spark job"] = _small_epoch_s(None, work, is_on_spark=False)
    return {"records": records, "executors": runs, "heavy_functions": heavy, "small_epoch_s": small}


def report_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was measured, and a line for each run and each role."""
    yield f"{figures['records']:,} records a run; the first {WARM_EPOCHS} of {EPOCHS} epochs do not count"
    last = list(figures["executors"])[-1]
    named = {f"{count} executors": run for count, run in figures["executors"].items()}
    named[f"{last} executors, functions that work more"] = figures["heavy_functions"]
    for name, run in named.items():
        used = ", ".join(f"{role} {us:.2f}" for role, us in sorted(run["cpu_us_per_record"].items()))
        yield f"{name}: processor time, µs a record: {used}"
        sent = ", ".join(f"{role} {size:.0f}" for role, size in sorted(run["sent_bytes_per_record"].items()))
        yield f"{'':4}bytes sent a record: {sent}"
    for name, seconds in figures["small_epoch_s"].items():
        yield f"an epoch of {SMALL_RECORDS} records, {name}: {seconds * 1e3:.0f} ms"


@contextmanager
def cluster_with(executors: int) -> Iterator[NamespaceCluster]:
    """Yield a cluster with this number of hosts for executors, besides one for the driver and one for gateways and
    sinks."""
    cluster = NamespaceCluster(f"bench{os.getpid()}", executors + 2)
    try:
        cluster.up(lambda sentence: None)
        yield cluster
    finally:
        cluster.down()


def measure_run(cluster: NamespaceCluster, work: Path, rounds: int, records: int) -> dict[str, Any]:
    """Run an app whose functions do this many rounds of work, and return its costs a record after the first epochs."""
    usage, after, readings = Usage(), 0, list[Reading]()
    epoch_records = max(1, records // EPOCHS)
    # Without a resident worker and without adaptive epochs, so that every run does the same.
    limits = ["--epoch-records-max", str(epoch_records), "--epoch-target-s", "0"]
    with _running(cluster, work, "input.txt", rounds, len(cluster.workers), limits) as (process, directory):
        tail = EpochTail(directory / "epochs.jsonl")
        while process.poll() is None:
            before = after
            for line in tail.new():
                after = line["records_in"]
            usage.look(cluster)
            if after > before and after >= WARM_EPOCHS * epoch_records:
                readings.append((Usage(dict(usage.cpu_s), dict(usage.sent_bytes)), after))
            time.sleep(POLL_S)
    return costs_between(readings)


Reading = tuple[Usage, int]
"""The costs and the number of committed records just after the commit of an epoch. The end of a run is not used,
because stopping the processes also has a cost."""


def costs_between(readings: Sequence[Reading]) -> dict[str, Any]:
    """Return the costs a record between the first reading and the last."""
    if len(readings) < 2:
        raise ProcessionError("the run ended before enough epochs were committed: give more --records")
    (before, began), (after, ended) = readings[0], readings[-1]
    records = ended - began
    spent = _differences(after.by_role(), before.by_role())
    sent = _differences(after.sent_by_host(), before.sent_by_host())
    return {
        "records": records,
        "cpu_us_per_record": {role: used / records * 1e6 for role, used in spent.items()},
        "sent_bytes_per_record": {role: size / records for role, size in sent.items()},
    }


def _small_epoch_s(cluster: NamespaceCluster | None, work: Path, *, is_on_spark: bool = True) -> float:
    """Return the median time of a small epoch on the cluster, or on this machine."""
    limits = ["--epoch-records-max", str(SMALL_RECORDS), "--epoch-interval-s", "0"]
    limits += ["--small-epoch-records-max", "0"] if is_on_spark else []
    with _running(cluster, work, "small.txt", LIGHT, 2, limits) as (process, directory):
        process.wait()
    committed = [line["committed_ns"] for line in EpochTail(directory / "epochs.jsonl").new() if line["records"]]
    return epoch_time_s(committed)


def epoch_time_s(committed_ns: Sequence[int]) -> float:
    """Return the median time from one commit to the next. All input is available, so no epoch waits for records. The
    first half, during which programs are loaded, does not count."""
    later = committed_ns[len(committed_ns) // 2 :]
    return statistics.median((after - before) / 1e9 for before, after in pairwise(later))


@contextmanager
def _running(
    cluster: NamespaceCluster | None, work: Path, source: str, rounds: int, tasks: int, limits: Sequence[str]
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Yield a run that sends a file of `work`, and the directory of its driver. Raises ProcessionError if it fails."""
    place = work / f"run-{len(list(work.iterdir()))}"
    place.mkdir()
    app = place / "app.py"
    app.write_text(APP.format(rounds=rounds, tasks=tasks))
    argv = [*COMMAND, "run", str(app), "--input", str(work / source), "--json", "--listen", "127.0.0.1:0", *limits]
    directory = place / "pipeline"
    if cluster is not None:
        argv += ["--cluster", "--cluster-name", cluster.name]
        directory = driver_directory(cluster, NAME)
        for left in (directory, ends_directory(cluster, NAME)):  # the file of an earlier run
            shutil.rmtree(left, ignore_errors=True)
    else:
        argv += ["--dir", str(directory)]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=place)
    try:
        yield process, directory
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()
    if process.returncode:
        said = (place / "log").read_text(errors="replace").strip().splitlines()
        raise ProcessionError(f"the run ended with status {process.returncode}: {said[-1] if said else 'no output'}")
    assert json.loads((place / "log").read_text().strip().splitlines()[-1])["is_done"]


def _role(cluster: NamespaceCluster, host: NamespaceHost, pid: int) -> str:
    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    return next((role for mark, role in MARKS if mark in command), _host_role(cluster, host))


def _host_role(cluster: NamespaceCluster, host: NamespaceHost) -> str:
    if host == cluster.head:
        return "driver"
    return "gateway and sink" if host == cluster.edge else "executors"


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_S


def _sent_bytes(pid: int) -> int:
    """Return the bytes that the host of a process has sent to others."""
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split(":")[1].split()[8]) for line in lines if not line.strip().startswith("lo:"))


def _differences(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0) for name, value in after.items()}
