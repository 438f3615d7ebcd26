"""A driver that is not completely dead: its JVM still runs, or the whole driver is suspended, while a successor takes
over.

The tests start drivers themselves, because the supervisor would never let two of them run. They build on one another:
the first driver loses its Python process with a round in doubt, the second is suspended during a round, and the third
completes the work.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import pytest

import procession
from procession.deployment.settings import Settings
from procession.exit_status import Status
from tests.walk.cluster import Cluster, java_of, read_json, session_of, state_of, stopped, wait_for

APP = """
from procession import Pipeline

pipeline = Pipeline("heirs", parallelism=2)
lines = pipeline.source("lines")
lines.sink("left", to="file:left")
lines.map(bytes.upper).sink("right", to="file:right")
"""
SETTINGS = Settings(epoch_interval_s=0.02, epoch_records_max=100)
RECORDS = 300
TRACE = "Traceback (most recent call last):\n"


def traces_of_ours(text: str) -> list[str]:
    """Return the tracebacks that include our code.

    Spark's own daemon of Python workers fails with a traceback if its JVM dies before it has written to it.
    """
    package = str(Path(procession.__file__).parent)
    stacks = ["".join(takewhile(lambda line: line[0] == " ", part.splitlines(True))) for part in text.split(TRACE)[1:]]
    return [stack for stack in stacks if package in stack]


class Drivers(Cluster):
    """A cluster whose drivers the test starts, each in its own session, which only the test kills."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, APP, SETTINGS)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start_parts(self) -> None:
        """Start gateway and sinks as `Local.start` does, without a driver."""
        for name, argv, where in (
            ("gateway", self.local._gateway(), self.local.gateway_directory / "gateway.json"),
            *(
                (part, self.local.sink_arguments(place), place / "sink.json")
                for place, part in self.local.sink_parts.items()
            ),
        ):
            self.local.supervisor.start(self.local._part(name, argv, where, 1))
        assert self.supervisor.wait_ready()

    def start_driver(self) -> subprocess.Popen[bytes]:
        """Start another driver, and return when its query runs."""
        with (self.directory / "logs" / f"driver-{len(self.processes)}.log").open("wb") as log:
            driver = subprocess.Popen(
                self.local.driver_part().argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(driver)
        ready = self.directory / "driver.json"
        self.until(lambda: ready.exists() and read_json(ready)["pid"] == driver.pid, "the driver to be ready")
        return driver

    def output_of(self, driver: subprocess.Popen[bytes]) -> str:
        return (self.directory / "logs" / f"driver-{self.processes.index(driver)}.log").read_text()

    def end_drivers(self) -> None:
        for driver in self.processes:
            for pid in session_of(driver.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            driver.wait()

    def in_doubt(self, java: int) -> str:
        """Run a round until all sinks have voted and its record is written, and suspend the JVM before it can commit.

        Returns the source that waits for the commit.
        """
        epoch, rounds = self.log().committed + 1, self.rounds()
        sink = self.supervisor.pid("sink-0")
        assert sink is not None
        with stopped(sink):
            source = self.send(self.numbered(RECORDS))
            self.until(lambda: len(self.prepared()["right"]) == 1, "the vote of the sink that goes on")
            os.kill(java, signal.SIGSTOP)
            wait_for(lambda: state_of(java) == "T", "the JVM to stop")
        self.until(lambda: rounds.read(epoch) is not None, "the round record")
        return source

    def everything_is_there_once_and_in_order(self) -> None:
        expected = b"".join(path.read_bytes() for path in self.inputs)
        assert self.committed("left") == expected
        assert self.committed("right") == expected.upper()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    with Drivers(tmp_path_factory.mktemp("heirs")) as cluster:
        try:
            cluster.start_parts()
            cluster.start_driver()
            yield cluster
        finally:
            cluster.end_drivers()


def test_a_jvm_that_outlives_its_python_half_decides_nothing(cluster: Drivers) -> None:
    old = cluster.processes[-1]
    java, fence = java_of(old.pid), cluster.fence
    source = cluster.in_doubt(java)
    epoch = cluster.log(fence).committed + 1
    in_doubt = cluster.prepared()
    old.kill()
    old.wait()
    assert state_of(java) == "T", "the JVM is still there, and could go on"

    cluster.start_driver()
    cluster.until_done(source)
    assert cluster.fence == fence + 1
    os.kill(java, signal.SIGCONT)
    # Left alone it ends; what it may have written on its way goes into a copy that nobody reads.
    wait_for(lambda: state_of(java) in ("", "Z"), "the old JVM to end", cluster.describe)
    record = cluster.rounds().read(epoch)
    assert record is not None
    assert record.fence == fence + 1
    for sink, part in record.parts.items():
        assert (part.txn,) != in_doubt[sink], "what was in doubt was aborted, and fed again under a new name"
    cluster.everything_is_there_once_and_in_order()


def test_i10_a_driver_that_was_stopped_replaced_and_woken_ends_and_nothing_of_it_is_visible(cluster: Drivers) -> None:
    old = cluster.processes[-1]
    java, fence = java_of(old.pid), cluster.fence
    source = cluster.in_doubt(java)
    epoch = cluster.log(fence).committed + 1
    os.kill(old.pid, signal.SIGSTOP)
    wait_for(lambda: state_of(old.pid) == "T", "the old driver to stop")

    cluster.start_driver()
    cluster.until_done(source)
    committed = cluster.status()["committed_end"]
    cluster.everything_is_there_once_and_in_order()
    for pid in (java, old.pid):
        os.kill(pid, signal.SIGCONT)
    cluster.until(lambda: old.poll() is not None, "the old driver to end")
    assert old.returncode == Status.ACT
    assert f"river {fence} was replaced by driver {fence + 1} and stops" in cluster.output_of(old)
    assert traces_of_ours(cluster.output_of(old)) == []
    # It had the record, and its JVM could write the commit: in its own copy, which decides nothing.
    assert cluster.rounds(fence).read(epoch) is not None
    record = cluster.rounds().read(epoch)
    assert record is not None
    assert record.fence == fence + 1
    assert cluster.status()["committed_end"] == committed
    assert cluster.status()["fence"] == fence + 1
    cluster.everything_is_there_once_and_in_order()
    wait_for(lambda: not session_of(old.pid), "everything of the old driver to end", cluster.describe)


def test_the_last_driver_continues_undisturbed(cluster: Drivers) -> None:
    source = cluster.send([b"the end %d" % number for number in range(RECORDS)])
    cluster.until_done(source)
    cluster.everything_is_there_once_and_in_order()
    assert cluster.processes[-1].poll() is None
    assert "replaced" not in cluster.output_of(cluster.processes[-1])
