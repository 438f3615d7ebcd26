"""Starts servers of other systems for chaos scenarios, benchmarks and tests.

Invariant: a server has its own temporary directory and listens only on free loopback ports. It keeps its data across
a kill and a restart, ends with the process that started it, and removes everything when it is closed. The subclasses
(`chaos/kafka_server`, `chaos/postgres_server`, `chaos/store_server`) define the command and the test of readiness.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from procession.address import Address, address_of, listening_socket
from procession.errors import ConfigError

STOP_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.02
CONNECT_TIMEOUT_S = 1.0
LAST_LINES_BYTES = 2000
HOST = "127.0.0.1"


class SystemServer(ABC):
    """A server that is started, killed and started again on the same data. Use it as a context manager.

    A supervisor can run its `command` instead; `is_ready` tells when it answers."""

    title: ClassVar[str]
    """The server's name in messages, such as "The Kafka broker"."""
    start_timeout_s: ClassVar[float]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    owner_death_signal: ClassVar[str] = "KILL"
    """The signal that the server gets when the process that started it dies."""

    def __init__(self, name: str, settings: Mapping[str, str], *, identity: Sequence[str] = ()) -> None:
        """Prepare a server. `identity` has setpriv's options for the user of the server."""
        self._identity = tuple(identity)
        self._settings = dict(settings)
        self.directory = Path(tempfile.mkdtemp(prefix=f"procession-{name}-"))
        self.log_path = self.directory / "server.log"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _make(self) -> None:
        """Create the server's storage."""

    def command(self) -> list[str]:
        """Return the command that runs the server in the foreground, with the current settings, until its starter
        dies."""
        return ["setpriv", "--pdeathsig", self.owner_death_signal, *self._identity, *self._program()]

    @abstractmethod
    def _program(self) -> list[str]: ...

    @abstractmethod
    def is_ready(self, pid: int = 0) -> bool:
        """Return whether the server answers. Called repeatedly, so it does not wait for long."""

    def change(self, settings: Mapping[str, str]) -> None:
        """Add these settings from the next start on."""
        self._settings |= settings

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, **settings: str) -> None:
        """Start the server, and wait until it answers. `settings` apply from now on; `__` in a name stands for a
        dot."""
        if settings:
            self.change({name.replace("__", "."): value for name, value in settings.items()})
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + self.start_timeout_s
        while not self.is_ready():
            if not self.is_running or time.monotonic() > deadline:
                last_lines = self.log_path.read_bytes()[-LAST_LINES_BYTES:].decode(errors="replace").strip()
                self.kill()
                raise ConfigError(f"{self.title} did not start: {last_lines}", next_step="Read its messages above.")
            time.sleep(POLL_INTERVAL_S)

    def stop(self) -> None:
        """Shut the server down in order."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(self.stop_signal)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process = None

    def kill(self) -> None:
        """Send SIGKILL to all processes of the server, as in a crash of the machine."""
        if self._process is None:
            return
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children")
        pids = [int(word) for word in children.read_text().split()] if children.exists() else []
        for process_id in (pid, *pids):
            try:
                os.kill(process_id, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while any(map(_is_alive, pids)) and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        self._process = None

    def close(self) -> None:
        """Kill the server and remove its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, command: list[str], what: str, next_step: str) -> None:
        """Run a program that prepares the server."""
        argv = ["setpriv", *self._identity, *command] if self._identity else command
        done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=self.directory)
        if done.returncode:
            raise ConfigError(f"{what}: {(done.stderr or done.stdout).strip()}", next_step=next_step)


def free_port() -> int:
    """Return a port of the loopback host that is not in use."""
    with listening_socket(Address(HOST, 0)) as listener:
        return address_of(listener).port


def is_listening(port: int) -> bool:
    """Return whether a process accepts connections at this port of the loopback host."""
    try:
        socket.create_connection((HOST, port), CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _is_alive(pid: int) -> bool:
    """Return whether the process still runs. A zombie counts as dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
