"""Runs the cluster of a chaos run: a supervisor of real processes, proxies between them, and functions that read
their state.

Invariant: a part that dies is restarted, and its status and last log lines are recorded; the harness decides whether
this death was expected. `chaos/chaos_cluster` and `chaos/system_cluster` define the parts.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from procession import faults
from procession.address import Address, parse_address
from procession.chaos.chaos_gateways import ChaosGateways, GatewayProxies
from procession.chaos.chaos_supervisor import ChaosSupervisor
from procession.chaos.clock_control import ProcessClocks
from procession.chaos.fair_clock import CpuTime, CpuTimeReader
from procession.chaos.proxy import Proxies
from procession.chaos.scenario import BETWEEN, CONTROL, DRIVER, GATEWAYS
from procession.commit.round_files import RoundRecords
from procession.commit.spark_log import SparkLog
from procession.deployment.local_pipeline import COMMAND
from procession.driver.epoch_log import EpochTail
from procession.errors import StorageError
from procession.sdk.ack_log import AckTail
from procession.storage.driver_claim import CURRENT, checkpoint_of
from procession.storage.secret import Secret, make_secret, path_of
from procession.supervisor import cleanup
from procession.supervisor.part import Part
from procession.verify.decided import Decisions
from procession.verify.decisions import DecisionReader

LOG_TAIL_BYTES_MAX = 4000
WORKER_DAEMON = "procession.spark.worker_daemon pyspark.worker"
"""Text in the command of the process that forks Spark's Python workers."""
RESIDENT = "procession.spark.resident_worker"
"""Text in the command of the driver's process for small epochs."""
ANYWHERE = "127.0.0.1:0"
EPOCH_INTERVAL_S = 0.1
EPOCH_RECORDS_MAX = 5_000
SMALL_EPOCH_RECORDS_MAX = 100
"""A low limit, so that both Spark and the resident worker run epochs."""
ANSWER_TIMEOUT_S = 3.0
SINK_REFUSALS_MAX = 1000
"""A high limit, because the driver counts a refusal when a proxy accepts and closes a connection for a sink that is
down."""


class LiveCluster(ABC):
    """A running cluster, as a context manager. All of its files are in `directory`."""

    proxies: Proxies

    def __init__(self, directory: Path, app: str, *, driver: Path | None = None) -> None:
        """Prepare a cluster. `driver` is the directory of the driver, if it is not in `directory`."""
        self.directory = directory
        self._driver_directory = driver or directory
        self.supervisor = ChaosSupervisor(directory / "logs")
        self.behaviour = directory / "behaviour"
        self._app_text = app
        self._app = directory / "app.py"
        self._epochs = EpochTail(self._driver_directory / "epochs.jsonl")
        self._acks = AckTail([])
        self._gateways = ChaosGateways(directory, self.supervisor)
        self._clocks = ProcessClocks(directory / "clocks")
        self._cpu_time = CpuTimeReader()
        self._reader: DecisionReader | None = None
        self._decided: dict[int, int] = {}
        self._fence = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._app.write_text(self._app_text)
        for secret in Secret:
            make_secret(self.directory, secret)
        self._clocks.make()
        self._stack.enter_context(self.proxies)
        self._stack.enter_context(self.supervisor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.proxies.lift_all()
        self.behaviour.unlink(missing_ok=True)
        self._gateways.close()
        self._stack.close()

    @abstractmethod
    def start(self) -> None:
        """Start everything but producers. Return when each part is ready, or when asked to stop."""

    @abstractmethod
    def instances(self) -> dict[str, Path]:
        """Return the path of each output in its sink's directory, without a suffix."""

    # Starting

    def _cookie(self, secret: Secret) -> list[str]:
        return ["--cookie-file", str(path_of(self.directory, secret))]

    def _driver_arguments(self, sinks: Mapping[str, str]) -> list[str]:
        """Return the command of the driver. `sinks` has the link to each sink."""
        driver = [*COMMAND, "driver", str(self._app), "--dir", str(self._driver_directory)]
        driver += ["--gateway", str(self.proxies.address(CONTROL))]
        for sink, link in sinks.items():
            driver += ["--sink", f"{sink}={self.proxies.address(link)}"]
        driver += ["--sink-refusals-max", str(SINK_REFUSALS_MAX)]
        driver += ["--epoch-interval-s", str(EPOCH_INTERVAL_S), "--epoch-records-max", str(EPOCH_RECORDS_MAX)]
        driver += ["--small-epoch-records-max", str(SMALL_EPOCH_RECORDS_MAX)]
        return [*driver, "--answer-timeout-s", str(ANSWER_TIMEOUT_S)]

    @abstractmethod
    def _driver(self, master: str) -> Part:
        """Return the driver, with this master of Spark; empty: local threads."""

    def start_gateway(self, name: str) -> None:
        """Start one more gateway. Its directory may exist from an earlier membership."""
        address = self.proxies.address
        leader = address(BETWEEN) if name != GATEWAYS[0] else address(CONTROL)
        proxies = GatewayProxies(address(f"source-{name}"), address(f"driver-{name}"), leader)
        self.start_part(name, self._gateways.argv(name, proxies), self._gateways.announcement(name))

    def start_part(self, name: str, argv: list[str], announcement: Path) -> None:
        self.supervisor.start(self._part(name, argv, announcement))

    def _part(
        self,
        name: str,
        argv: list[str],
        announcement: Path,
        *,
        spare: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> Part:
        """Return a part that announces in a file that it is ready, and can be armed."""
        environment = {
            faults.FILE_VARIABLE: str(self.fault_file(name)),
            **self._clocks.environment(name),
            **(env or {}),
        }
        stop_rank = 1 if name == DRIVER else 2
        return Part(name, tuple(argv), environment, Announced(announcement), stop_rank=stop_rank, spare=spare)

    def start_source(self, name: str, path: Path, rate: float | None, gateways: Sequence[str]) -> None:
        """Start a producer that sends the file to the first of these gateways that accepts it. It exits when the whole
        file is committed."""
        self.supervisor.forget(name)
        self.supervisor.finite.add(name)
        self._acks.follow(self._ack_log(name))
        self.supervisor.start(self._source(name, path, rate, gateways))

    def move_source(self, name: str, path: Path, rate: float | None, gateways: Sequence[str]) -> None:
        """Make the producer send to these gateways from its next start on."""
        self.supervisor.change(self._source(name, path, rate, gateways))

    def _source(self, name: str, path: Path, rate: float | None, gateways: Sequence[str]) -> Part:
        to = ",".join(str(self.proxies.address(f"source-{gateway}")) for gateway in gateways)
        argv = [*COMMAND, "source", "file", str(path), "--to", to, "--acks", str(self._ack_log(name))]
        argv += self._cookie(Secret.PRODUCERS)
        argv += ["--rate", str(rate)] if rate else []
        return Part(name, tuple(argv), self._clocks.environment(name))

    def _ack_log(self, name: str) -> Path:
        """Return the acknowledgement log of a producer, with the streams of all files that it has sent."""
        return self.directory / f"{name}.acks"

    # Actions. A cluster gets only the steps that its kind supports.

    def start_faulty_producer(self, name: str, path: Path, fault: str) -> None:
        raise NotImplementedError

    def start_second_sink(self, sink: str, *, is_copy: bool) -> None:
        raise NotImplementedError

    def end_second_sink(self, sink: str, *, is_promoted: bool) -> None:
        raise NotImplementedError

    def save_copy(self) -> None:
        raise NotImplementedError

    def restore_copy(self) -> None:
        raise NotImplementedError

    def delete_files(self, name: str) -> None:
        raise NotImplementedError

    def is_filled(self, name: str) -> bool:
        raise NotImplementedError

    def arm(self, name: str, point: str) -> None:
        draft = self.fault_file(name).with_suffix(".draft")
        draft.write_text(point)
        draft.rename(self.fault_file(name))

    def disarm(self, name: str) -> bool:
        """Remove the fault. Return whether it was still armed."""
        try:
            self.fault_file(name).unlink()
        except FileNotFoundError:
            return False
        return True

    def fault_file(self, name: str) -> Path:
        return self.directory / f"fault-{name}"

    def set_clock(self, name: str, off_s: int) -> str:
        """Make the part's time of day jump. Return the reason if that is impossible, else an empty string."""
        if not self._clocks.why_not:
            self._clocks.set(name, off_s)
        return self._clocks.why_not

    def set_clocks_right(self) -> None:
        self._clocks.set_right()

    def signal_all(self, name: str, number: int) -> None:
        """Send a signal to a part's process and all of its descendants."""
        for pid in self._session_of(name):
            self.signal_process(pid, number)

    def signal_process(self, pid: int, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def use_master(self, master: str) -> None:
        """Set Spark's master from the driver's next start on. Empty: local threads."""
        if self.supervisor.has(DRIVER):
            self.supervisor.change(self._driver(master))

    def executors(self) -> list[int]:
        """Return Spark's executors, if they are separate processes."""
        return [pid for pid in self._session_of(DRIVER) if "CoarseGrainedExecutorBackend" in _command_of(pid)]

    def workers(self) -> list[int]:
        """Return the Python workers of Spark's tasks, which their daemon forks, and the driver's resident worker."""
        session = [entry for entry in cleanup.processes() if entry.pid in self._session_of(DRIVER)]
        daemons = {entry.pid for entry in session if WORKER_DAEMON in _command_of(entry.pid) and entry.parent != 1}
        return [entry.pid for entry in session if entry.parent in daemons or RESIDENT in _command_of(entry.pid)]

    def _session_of(self, name: str) -> set[int]:
        leader = self.supervisor.pid(name)
        return {entry.pid for entry in cleanup.processes() if entry.session == leader and entry.state != "Z"}

    # Reading

    @property
    def is_incomplete(self) -> bool:
        """Whether files that the monitor reads are deleted, and not restored yet."""
        return False

    def gateways(self) -> list[str]:
        return self._gateways.names

    def statuses(self) -> dict[str, dict[str, Any]]:
        return self._gateways.statuses()

    def has_joined(self, name: str) -> bool:
        return self._gateways.has_joined(name)

    def let_go(self, name: str) -> bool:
        self.supervisor.finite.add(name)  # even if this request is lost, because an earlier one may have arrived
        return self._gateways.let_go(name)

    def cpu_time(self) -> CpuTime:
        """Return how long all parts ran and how long they waited for a core since the last call."""
        return self._cpu_time.measure({pid for pid in map(self.supervisor.pid, self.names()) if pid is not None})

    def fence(self) -> int:
        """Return the highest fence that was ever seen."""
        self._fence = max(self._fence, self._current_fence())
        return self._fence

    def _current_fence(self) -> int:
        with suppress(OSError, ValueError):
            return int((checkpoint_of(self._driver_directory) / CURRENT).read_text())
        return 0

    def decisions(self, visible: Iterable[tuple[str, int, int]]) -> Decisions:
        if self._reader is None:
            self._reader = DecisionReader(checkpoint_of(self._driver_directory))
        return self._reader.poll(visible)

    def decided_positions(self) -> Mapping[int, int] | None:
        """Return the last committed message id of each stream; None while a driver takes over.

        A round record contains only positions that gateways may not know yet, so earlier positions are kept here."""
        copy = checkpoint_of(self._driver_directory) / f"{self._current_fence():010d}"
        with suppress(StorageError):
            committed = SparkLog(copy).committed
            rounds = RoundRecords(copy / "rounds")
            if rounds.read(committed) is None:
                return None
            self._decided |= rounds.positions(committed)
            return self._decided
        return None

    def acknowledged(self) -> dict[int, int]:
        """Return the last acknowledged message id of each stream, as its producer logged it."""
        return self._acks.poll()

    def new_epochs(self) -> list[dict[str, Any]]:
        return list(self._epochs.new())

    def log_tails(self) -> str:
        """Return the last log lines and the state of every part."""
        logs = sorted((self.directory / "logs").glob("*.log"))
        tails = [f"--- {log.name}\n{_tail(log)}" for log in logs if not log.name.endswith(".old.log")]
        tails += [
            f"--- {instance.name}.txnlog\n{_tail(instance.with_suffix('.txnlog'))}"
            for instance in self.instances().values()
        ]
        states = {entry.pid: entry.state for entry in cleanup.processes()}
        parts = ", ".join(f"{name} {states.get(self.supervisor.pid(name) or 0, 'away')}" for name in self.names())
        return "\n".join([f"processes: {parts}", f"gateways: {json.dumps(self.statuses())}", *tails])

    def state(self, name: str) -> str:
        """Return the state of a part's process in one letter, as the kernel has it; empty if there is none."""
        pid = self.supervisor.pid(name)
        return next((entry.state for entry in cleanup.processes() if entry.pid == pid), "")

    def names(self) -> list[str]:
        return list(self.supervisor._children)


def _tail(path: Path) -> str:
    with suppress(OSError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_TAIL_BYTES_MAX))
        return file.read().decode(errors="replace")
    return ""


def _command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def address_in(path: Path, name: str) -> Callable[[], Address]:
    """Return a function that reads a part's address from its file. It raises ValueError while there is none."""

    def find() -> Address:
        try:
            return parse_address(json.loads(path.read_text())[name])
        except FileNotFoundError as error:
            raise ValueError(f"{path} does not exist yet") from error

    return find


@dataclass(frozen=True, slots=True)
class Announced:
    """A test of readiness: whether the process has written this announcement file."""

    path: Path

    def __call__(self, pid: int) -> bool:
        try:
            return bool(json.loads(self.path.read_text())["pid"] == pid)
        except (FileNotFoundError, ValueError, KeyError):
            return False
