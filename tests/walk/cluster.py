"""A pipeline of real processes for tests: a gateway, file sinks, a Spark driver, and sources that come and go.

Invariant: every wait has a condition, a deadline, and a message for a missed deadline. A dead part is restarted only
during a wait with `until`, so that a test can check the state after a crash before the recovery starts.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from procession import faults
from procession.commit.round_files import RoundRecords
from procession.commit.spark_log import SparkLog
from procession.deployment.local_pipeline import COMMAND, DRIVER, LocalPipeline
from procession.deployment.settings import Settings
from procession.driver.app_file import load_app
from procession.gateway.control_client import ControlClient
from procession.sdk.transaction_log import committed_ranges, uncommitted
from procession.storage.driver_claim import CURRENT
from procession.supervisor import cleanup
from procession.supervisor.part import Part
from procession.supervisor.restart_policy import RestartPolicy
from procession.supervisor.supervisor import Supervisor

PATIENCE_S = 120.0
POLL_INTERVAL_S = 0.01
# Tests kill a part more often than is usual, so there is no limit on restarts and no growing delay.
POLICY = RestartPolicy(delay_first_s=0.05, delay_max_s=0.05, kills_max=1000)


class Cluster:
    """The supervised parts of one app, as a context manager."""

    def __init__(self, directory: Path, app: str, settings: Settings, patience_s: float = PATIENCE_S) -> None:
        self.directory = directory
        self.patience_s = patience_s
        self.app = directory / "app.py"
        self.app.write_text(app)
        self.graph = load_app(self.app).graph
        self.inputs: list[Path] = []
        self.fault = directory / "fault"
        self.said: list[str] = []
        self.supervisor = Supervisor(directory / "logs", POLICY, self.said.append)
        env = {faults.FILE_VARIABLE: str(self.fault)}
        parts = ["gateway", DRIVER, *(f"sink-{number}" for number in range(len(self.graph.sinks)))]
        self.local = LocalPipeline(
            self.supervisor, self.app, self.graph, directory, directory, settings, env=dict.fromkeys(parts, env)
        )

    def __enter__(self) -> Self:
        self.supervisor.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.supervisor.__exit__(kind, error, trace)

    # Doing

    def numbered(self, count: int) -> list[bytes]:
        """Return `count` lines for the next input. All lines of all inputs differ."""
        return [b"input %d record %d" % (len(self.inputs), number) for number in range(count)]

    def send(self, lines: list[bytes], rate: float | None = None, stream: str | None = None) -> str:
        """Start a source for these lines, and return the name of the part, which ends when all of them are committed.

        The stream has the given name, or that of the file.
        """
        number = len(self.inputs)
        path = self.directory / f"input-{number}.txt"
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        self.inputs.append(path)
        argv = [*COMMAND, "source", "file", str(path), "--to", self.local.address, *self.local.producer_arguments]
        argv += ["--rate", str(rate)] if rate else []
        argv += ["--one-stream", stream, "--state", str(path.with_suffix(".state"))] if stream else []
        self.supervisor.start(Part(f"source-{number}", tuple(argv)))
        return f"source-{number}"

    def arm(self, point: str) -> None:
        """Make the next process that reaches this fault point die there."""
        draft = self.fault.with_suffix(".draft")
        draft.write_text(point)
        draft.rename(self.fault)

    def until_dead(self, part: str) -> None:
        """Wait until the armed fault has killed this part, without restarting it."""
        pid = self.supervisor.pid(part)
        wait_for(lambda: not self.fault.exists(), f"{self.fault.name} to be taken by {part}", self.describe)
        wait_for(lambda: state_of(pid) in ("Z", ""), f"the end of {part}", self.describe)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Run the supervisor until a condition holds."""
        deadline = time.monotonic() + self.patience_s
        while not holds():
            assert time.monotonic() < deadline, f"timed out waiting for {what}\n{self.describe()}"
            assert self.supervisor.watch(POLL_INTERVAL_S), f"everything ended before {what}\n{self.describe()}"

    def send_and_kill(self, point: str, data: bytes) -> None:
        """Send these records to the end, while the driver or a sink is killed at this fault point."""
        self.arm(point)
        source = self.send(data)
        if point.startswith("driver"):
            self.until_dead(DRIVER)
        self.until_done(source)
        assert not self.fault.exists()

    def until_done(self, source: str) -> None:
        """Wait until a source has ended and the end of its stream is committed; then no epoch is open and the output is
        visible.

        A gateway may learn of a commit before the sinks do.
        """
        self.until(lambda: self.supervisor.is_done(source), f"the end of {source}")
        self.until(self._is_quiet, "the last commit")
        self.until(lambda: not any(map(uncommitted, self._all_txnlogs())), "all sinks to know what is decided")

    def _is_quiet(self) -> bool:
        status = self.status()
        return bool(status["committed_end"] == status["next_sequence"])

    # Status and output

    def restarts(self, part: str) -> int:
        return self.supervisor.restarts[part]

    def status(self) -> dict[str, Any]:
        with ControlClient(self.directory / "gateway", timeout_s=10.0) as client:
            return client.status()

    @property
    def fence(self) -> int:
        return int((self.directory / "checkpoint" / CURRENT).read_text())

    def log(self, fence: int | None = None) -> SparkLog:
        return SparkLog(self._copy(fence))

    def rounds(self, fence: int | None = None) -> RoundRecords:
        return RoundRecords(self._copy(fence) / "rounds")

    def _copy(self, fence: int | None) -> Path:
        return self.directory / "checkpoint" / f"{self.fence if fence is None else fence:010d}"

    def txnlogs(self) -> dict[str, Path]:
        directories = self.local.sink_directories
        return {sink: directories[sink] / f"{self.graph.name}-{sink}-0.txnlog" for sink in directories}

    def _all_txnlogs(self) -> list[Path]:
        """Return the transaction logs of all connections."""
        return [path for place in set(self.local.sink_directories.values()) for path in place.glob("*.txnlog")]

    def committed(self, sink: str) -> bytes:
        """Return the visible output of a sink: the ranges that its transaction log commits, which must be in order."""
        return committed(self.txnlogs()[sink].with_suffix(""))

    def prepared(self) -> dict[str, tuple[str, ...]]:
        """Return the transactions that each sink has voted for and that are not decided."""
        return {
            sink: tuple(transaction.txn_id for transaction in uncommitted(path))
            for sink, path in self.txnlogs().items()
            if path.exists()
        }

    def java(self, driver_pid: int | None = None) -> int:
        """Return the JVM of a driver."""
        return java_of(driver_pid or self.supervisor.pid(DRIVER) or -1)

    def describe(self) -> str:
        """Return the last output of every part, for the message of a failed test."""
        logs = sorted((self.directory / "logs").glob("*.log"))
        tails = [f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs]
        return "\n".join(["\n".join(self.said[-10:]), *tails])


def committed(instance: Path) -> bytes:
    """Return the visible bytes of a file sink's instance, `DIR/NAME` without a suffix."""
    data = instance.with_suffix(".data").read_bytes()
    ranges = committed_ranges(instance.with_suffix(".txnlog"))
    assert len(ranges) < 2, f"the committed ranges of {instance} do not follow each other: {ranges}"
    assert all(start == 0 and end <= len(data) for start, end in ranges), f"{instance} has lost committed bytes"
    return b"".join(data[start:end] for start, end in ranges)


def wait_for(
    holds: Callable[[], bool], what: str, tell: Callable[[], str] = str, *, patience_s: float = PATIENCE_S
) -> None:
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, f"timed out waiting for {what}\n{tell()}"
        time.sleep(POLL_INTERVAL_S)


def state_of(pid: int | None) -> str:
    """Return a process's state in one letter, or "" if it does not exist."""
    return next((process.state for process in cleanup.processes() if process.pid == pid), "")


def session_of(pid: int) -> list[int]:
    """Return the living processes of a session."""
    return [process.pid for process in cleanup.processes() if process.session == pid and process.state != "Z"]


def java_of(driver: int) -> int:
    (pid,) = [pid for pid in session_of(driver) if Path(f"/proc/{pid}/comm").read_text().strip() == "java"]
    return pid


def jvms(driver: int) -> list[int]:
    """Return the driver's JVM, then those of its executors, if they have their own."""
    found = [pid for pid in session_of(driver) if Path(f"/proc/{pid}/comm").read_text().strip() == "java"]
    parents = {process.pid: process.parent for process in cleanup.processes()}
    return sorted(found, key=lambda pid: (parents.get(pid) in found, pid))


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Suspend these processes during the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        for pid in pids:
            wait_for(lambda pid=pid: state_of(pid) in ("T", ""), f"process {pid} to stop")  # type: ignore[misc]
        yield
    finally:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue


def read_json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))
