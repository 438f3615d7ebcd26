"""Processes for tests, forked from one that has already imported the modules, so that a start takes a few milliseconds
of CPU time instead of half a second.

Invariant: a process has the environment, directory and standard error stream that it is given, and its own random
numbers; it ends as a started Python would. The server has one thread when it forks, so OpenBLAS and Arrow's allocator
are told to start none. It ends with the test process, and its children end with it.
"""

from __future__ import annotations

import atexit
import importlib
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

MODULES = ("procession.gateway.server", "procession.merge.event_time", "procession.tls", "uvloop")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


@dataclass(frozen=True)
class Start:
    """A program, and the environment of a process that runs it."""

    code: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    directory: str
    log: str
    """The file for its standard error stream."""


class PreparedProcess:
    """A process that the server has forked; like `subprocess.Popen`."""

    def __init__(self, code: str, *arguments: str, env: dict[str, str], log: Path) -> None:
        self.returncode: int | None = None
        start = Start(code, arguments, env, str(Path.cwd()), str(log))
        self.pid = _server().ask(start)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = _server().ask(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(self.pid)
                try:
                    poll = select.poll()
                    poll.register(descriptor, select.POLLIN)
                    poll.poll(None if left_s is None else left_s * 1000)
                finally:
                    os.close(descriptor)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Server:
    """The process that forks. It answers a `Start` with a process, and a process id with its exit status."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        command = [sys.executable, "-m", "tests.prepared_processes", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command,
            cwd=Path(__file__).parent.parent,
            env=os.environ | ONE_THREAD,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._lock = threading.Lock()
        atexit.register(self.close)

    def ask(self, request: Start | int) -> int:
        with self._lock:
            self._connection.send(request)
            answer: int = self._connection.recv()
            return answer

    def close(self) -> None:
        self._connection.close()
        self._process.wait()


@cache
def _server() -> Server:
    return Server()


def serve(connection: Connection) -> Start:
    """Fork processes until the connection is closed. Returns in a child, with what it must run."""
    running: set[int] = set()
    while True:
        try:
            request = connection.recv()
        except EOFError:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            sys.exit()
        if isinstance(request, Start):
            if (pid := os.fork()) == 0:
                connection.close()
                return request
            running.add(pid)
            connection.send(pid)
        else:
            pid, status = os.waitpid(request, os.WNOHANG)
            running.discard(pid)
            connection.send(os.waitstatus_to_exitcode(status) if pid else None)


def become(start: Start) -> None:
    """Turn this process into a new one."""
    os.environ.clear()
    os.environ.update(start.environment)
    os.chdir(start.directory)
    with open(start.log, "w") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    random.seed()
    importlib.reload(sys.modules["procession.faults"])  # it reads the environment when it is loaded
    sys.argv = ["-c", *start.arguments]


if __name__ == "__main__":
    for name in MODULES:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not be forked"
    # The class under the name with which the test process pickles it.
    from tests.prepared_processes import serve as serve_starts

    chosen = serve_starts(Connection(int(sys.argv[1])))
    become(chosen)
    exec(compile(chosen.code, "<string>", "exec"), {"__name__": "__main__"})
