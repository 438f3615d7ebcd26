"""Manages a program on one host of a cluster. The program continues when the command that started it has ended.

Invariant: the state of the program is read from its file with the process id and from the host's processes.
`cluster/namespace_cluster` lists the programs of a cluster.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from procession.cluster.namespace_hosts import NamespaceHost, entered, processes_of
from procession.errors import ConfigError

END_TIMEOUT_S = 10.0
POLL_S = 0.1


@dataclass(frozen=True)
class Service:
    """A program of the cluster on one of its hosts."""

    name: str
    host: NamespaceHost
    argv: tuple[str, ...]
    env: dict[str, str]
    is_ready: Callable[[], bool]

    @property
    def log(self) -> Path:
        return self.host.directory / "logs" / f"{self.name}.log"

    @property
    def pid_file(self) -> Path:
        return self.host.directory / f"{self.name}.pid"

    @property
    def pid(self) -> int | None:
        """The process id of the running program. None if it does not run."""
        try:
            pid = int(self.pid_file.read_text())
        except (OSError, ValueError):
            return None
        return pid if pid in processes_of(self.host.namespace) else None

    def start(self) -> subprocess.Popen[bytes]:
        """Start the program. It continues when this process ends."""
        self.log.parent.mkdir(exist_ok=True, mode=0o700)
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                entered(self.host, self.argv),
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
            )
        self.pid_file.write_text(str(process.pid))
        return process

    def end(self) -> None:
        """Kill the program, if it runs, and wait until it has ended."""
        deadline = time.monotonic() + END_TIMEOUT_S
        while (pid := self.pid) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"The {self.name} on {self.host.name}, process {pid}, does not end.",
                    next_step=f"See in /proc/{pid}/stack what it waits for, then repeat this.",
                )
            time.sleep(POLL_S)

    def last_line(self) -> str:
        """Return the last line of its log that is not part of a trace."""
        with suppress(OSError):
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
            return next((line for line in reversed(lines) if line and not line.startswith("at ")), "")
        return ""


def text_of(path: Path) -> str:
    """Return the text of a file. Empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
