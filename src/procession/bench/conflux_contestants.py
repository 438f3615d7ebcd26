"""Runs the contestants of `procession bench conflux`: pipelines behind a gateway that publish to a topic.

Invariant: each contestant runs the shipped programs in separate processes: a gateway with a log, and either our
driver and sink or the baseline's driver. All have the same flow control, the same source and the same reader, so they
differ in how they keep order. Downstream: `bench/conflux`, which runs them in turn.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from procession.bench.processes import cpu_total_s, cpu_tree_s
from procession.bench.window_sort_driver import READY
from procession.bench.workload import WORKLOADS, expected_count
from procession.chaos.kafka_server import KafkaServer
from procession.deployment.local_pipeline import COMMAND, HERE, LocalPipeline, announced_in
from procession.deployment.settings import load_settings
from procession.driver.app_file import load_app
from procession.errors import ProcessionError
from procession.gateway.listen_address import ADDRESS_FILE, addresses
from procession.supervisor.part import Part
from procession.supervisor.supervisor import Supervisor

WITH_LANES = ("lanes", "blocks")
OURS = (*WITH_LANES, "ordered", "unordered", "sequential")
BASELINE = "baseline"
CONTESTANTS = (*OURS, BASELINE)
RUN_TIMEOUT_S = 900.0
TOPIC_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.05
EPOCHS_IN_FLIGHT = 2
"""Epochs of records that may wait for their commit: one is processed while the next one arrives."""
WARM_RUNS = 2
NO_TARGET_S = 3600.0
"""A target that never limits an epoch, because the number of records in flight does."""

APP = """from procession.bench.stamped_records import conflux_pipeline

pipeline = conflux_pipeline({arguments})
"""


@dataclass(frozen=True)
class ConfluxSetup:
    """The options of the measurement.

    Args:
        records: Records per run.
        burn_ns: Processor time that each stage uses per record.
        rounds: Number of runs of each contestant that count.
        epoch_records: Maximum number of records per epoch, and per window of the baseline.
        rate: Records per second of the source. 0: limited only by its credits.
        lanes: Number of lanes. 0: one for each task of the last stage.
        contestants: The measured contestants, from CONTESTANTS.
    """

    records: int
    burn_ns: int
    rounds: int
    epoch_records: int
    rate: float = 0.0
    lanes: int = 0
    contestants: tuple[str, ...] = CONTESTANTS

    @property
    def warm_records(self) -> int:
        """Records of the first run of a contestant, which does not count. The baseline's rows pass through the JVM,
        which compiles their code until about two million."""
        return WARM_RUNS * self.records

    @property
    def in_flight(self) -> int:
        """Maximum number of records without a commit, and the records of the short run before each one that counts."""
        return EPOCHS_IN_FLIGHT * self.epoch_records

    def lanes_of(self, workload: str) -> int:
        return self.lanes or WORKLOADS[workload][-1].tasks


@dataclass
class Contestant:
    """A running system that the benchmark compares."""

    name: str
    url: str
    work: Path
    supervisor: Supervisor
    address: str
    position: dict[str, Any] = field(default_factory=dict)
    """The position at which the reader continues."""
    runs: int = 0

    def cpu_s(self) -> float:
        """Processor time of its processes so far."""
        pids = map(self.supervisor.pid, self.supervisor.names)
        return sum(cpu_tree_s(pid) for pid in pids if pid is not None)

    def run(self, records: int, rate: float, idle: Sequence[Contestant]) -> tuple[dict[str, Any], float]:
        """Send this many records. Return the stamps of all output records, and the total processor seconds of source,
        pipeline, broker and reader, without idle contestants."""
        self.runs += 1
        output = self.work / f"stamps-{self.runs}.npz"
        wanted = {
            "url": self.url,
            "position": self.position,
            "expected": expected_count(records),
            "output": str(output),
            "has_lanes": self.name in WITH_LANES,
        }
        with _lines_of("stamped_reader", json.dumps(wanted)) as next_line:
            self._until("ready", next_line)
            before_s = _cpu_s(idle)
            name = f"{self.name}-{self.runs}"
            with _program("stamped_records", self.address, name, str(records), str(rate)) as source:
                try:
                    self._until("read", next_line)
                    used_s = _cpu_s(idle) - before_s
                    self.position = json.loads(self._until(None, next_line))
                    self._wait_for(lambda: source.poll() is not None)
                finally:
                    source.terminate()
        with np.load(output) as stamps:
            found = dict(stamps)
        output.unlink()
        return found, used_s

    def _until(self, line: str | None, next_line: Callable[[], str | None]) -> str:
        """Wait for this line of the reader, or for any line."""
        said = ""

        def is_said() -> bool:
            nonlocal said
            said = next_line() or ""
            return bool(said) and line in (None, said)

        self._wait_for(is_said)
        return said

    def _wait_for(self, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + RUN_TIMEOUT_S
        while not is_so():
            if not self.supervisor.watch(POLL_INTERVAL_S):
                raise ProcessionError("the measurement was stopped before its end")
            if any(self.supervisor.restarts.values()):
                raise ProcessionError(
                    f"a part of {self.name} failed during a run; see {self.supervisor.log_path('driver')}"
                )
            if time.monotonic() > deadline_s:
                raise ProcessionError(f"a run of {self.name} did not end in {RUN_TIMEOUT_S:g} s")


@contextmanager
def running_contestant(
    name: str, workload: str, given: ConfluxSetup, server: KafkaServer, work: Path
) -> Iterator[Contestant]:
    """Start a contestant, and stop it at the end."""
    work.mkdir(parents=True)
    topic = f"{workload}-{name}"
    lanes = given.lanes_of(workload)
    make_topic(server, topic, lanes if name in WITH_LANES else 1)
    url = f"kafka://{server.address}/{topic}"
    with Supervisor(work / "logs") as supervisor:
        start = _start_baseline if name == BASELINE else _start_ours
        address = start(supervisor, name, workload, given, url, work)
        yield Contestant(name, url, work, supervisor, address)


def make_topic(server: KafkaServer, topic: str, partitions: int) -> None:
    """Create a topic whose messages have the time at which the broker appended them."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": server.address, "log_level": 0})
    made = NewTopic(topic, partitions, 1, config={"message.timestamp.type": "LogAppendTime"})
    for future in admin.create_topics([made]).values():
        future.result(TOPIC_TIMEOUT_S)


def _start_ours(supervisor: Supervisor, name: str, workload: str, given: ConfluxSetup, url: str, work: Path) -> str:
    app = work / "app.py"
    arguments = (workload, name, given.burn_ns, url, given.lanes_of(workload))
    app.write_text(APP.format(arguments=", ".join(map(repr, arguments))))
    settings = load_settings(
        epoch_records_max=given.epoch_records,
        epoch_target_s=0.0,
        open_producers=True,
        credits="adaptive",
        credits_max=max(2, given.in_flight),
        backlog_max=max(2, given.in_flight),
        latency_target_s=NO_TARGET_S,
        master=f"local[{os.cpu_count() or 1}]",  # as the baseline
    )
    local = LocalPipeline(supervisor, app, load_app(app).graph, work, work, settings)
    if not local.start():
        raise ProcessionError("the measurement was stopped before its end")
    return local.address


def _start_baseline(supervisor: Supervisor, name: str, workload: str, given: ConfluxSetup, url: str, work: Path) -> str:
    gateway, brokers = work / "gateway", url.removeprefix("kafka://").partition("/")[0]
    limits = ["--credits", "adaptive", "--credits-max", str(max(2, given.in_flight))]
    limits += ["--backlog-max", str(max(2, given.in_flight)), "--latency-target-s", str(NO_TARGET_S)]
    listening = ["--dir", str(gateway), "--listen", HERE, "--control", HERE, "--open-producers"]
    supervisor.start(
        Part("gateway", (*COMMAND, "gateway", *listening, *limits), is_ready=announced_in(gateway / ADDRESS_FILE))
    )
    settings = {
        "workload": workload,
        "burn_ns": given.burn_ns,
        "epoch_records": given.epoch_records,
        "brokers": brokers,
        "topic": url.rpartition("/")[2],
        "cores": os.cpu_count() or 1,
    }
    driver = (*_module("window_sort_driver"), str(gateway), str(work), json.dumps(settings))
    if supervisor.wait_ready("gateway"):
        supervisor.start(Part("driver", driver, is_ready=lambda pid: _is_announced(work / READY, pid)))
    if not supervisor.wait_ready():
        raise ProcessionError("the measurement was stopped before its end")
    return str(addresses(gateway)["listen"])


def _cpu_s(idle: Sequence[Contestant]) -> float:
    return cpu_total_s() - sum(contestant.cpu_s() for contestant in idle)


def _is_announced(path: Path, pid: int) -> bool:
    return path.is_file() and path.read_text() == str(pid)


def _module(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"procession.bench.{name}")


@contextmanager
def _program(module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([*_module(module), *arguments], stderr=subprocess.DEVNULL) as process:
        yield process


@contextmanager
def _lines_of(module: str, *arguments: str) -> Iterator[Callable[[], str | None]]:
    """Yield a program and a function that returns its next line; None if there is none yet."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    with subprocess.Popen([*_module(module), *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = process.stdout

        def read() -> None:
            for line in output:
                lines.put(line.strip())

        thread = threading.Thread(target=read, name=f"lines of {module}", daemon=True)
        thread.start()

        def next_line() -> str | None:
            try:
                return lines.get_nowait()
            except queue.Empty:
                if process.poll() and lines.empty():
                    raise ProcessionError(f"the reader of the output ended with status {process.returncode}") from None
                return None

        try:
            yield next_line
        finally:
            process.terminate()
            thread.join()
