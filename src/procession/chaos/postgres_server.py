"""A PostgreSQL server of our own, for benchmarks and tests: a new cluster in a temporary directory.

Invariant: it touches no other cluster, listens on a free loopback port only, and leaves nothing behind when it is
closed. PostgreSQL refuses to run as root, so it then runs as another user. Upstream: benchmarks and tests; downstream:
PostgreSQL's programs, which `scripts/postgres` installs.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from procession.address import Address, address_of, listening_socket
from procession.errors import ConfigError

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
LOOK_S = 0.02
USERS = ("postgres", "nobody")
"""Who runs the server if we are root."""
SETTINGS = {
    "max_prepared_transactions": "64",
    "wal_level": "logical",
    "max_connections": "64",
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "64MB",
    "log_min_messages": "warning",
    "autovacuum_naptime": "5s",
}


def find_programs() -> Path:
    """The directory of `initdb` and `postgres`, the newest of several. Raises ConfigError."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    if in_path := shutil.which("initdb"):
        return Path(in_path).resolve().parent
    raise ConfigError(
        "PostgreSQL's programs are not installed here.",
        next_step="Run scripts/postgres in a checkout, or install PostgreSQL 15 or newer.",
    )


class PostgresServer:
    """A cluster that is created, started, killed and started again. Use it as a context manager.

    Args:
        settings: Server settings, in addition to `SETTINGS`.
        programs: The directory of PostgreSQL's programs.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, *, programs: Path | None = None) -> None:
        self._programs = programs or find_programs()
        self._settings = SETTINGS | dict(settings or {})
        self._user = _unprivileged_user()
        self.directory = Path(tempfile.mkdtemp(prefix="procession-postgres-"))
        self.log_path = self.directory / "server.log"
        self._data = self.directory / "data"
        with listening_socket(Address("127.0.0.1", 0)) as listener:
            self.port = address_of(listener).port
        self._process: subprocess.Popen[bytes] | None = None
        try:
            if self._user:
                os.chown(self.directory, self._user.pw_uid, self._user.pw_gid)
            self._run("initdb", "-D", str(self._data), "-U", "procession", "-A", "trust", "-E", "UTF8", "--no-sync")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def url(self, database: str = "postgres", user: str = "procession") -> str:
        return f"postgres://{user}@127.0.0.1:{self.port}/{database}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, **settings: str) -> None:
        """Start it, and wait until it accepts connections. `settings` hold from now on."""
        self._settings |= settings
        words = [f"--{name.replace('_', '-')}={value}" for name, value in self._settings.items()]
        # The server shuts down if the process that started it dies.
        command = ["setpriv", "--pdeathsig", "INT", str(self._programs / "postgres")]
        command += ["-D", str(self._data), "-k", str(self.directory)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "-p", str(self.port), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._as_user(),
            )
        self._until_ready()

    def stop(self) -> None:
        """A fast shutdown: open transactions are rolled back, prepared ones stay."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process = None

    def kill(self) -> None:
        """SIGKILL to the server and all of its processes, as a crash of the machine would end them."""
        if self._process is None:
            return
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        pids = [int(word) for word in children.read_text().split()] if children.exists() else []
        for pid in (self._process.pid, *pids):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while any(map(_is_alive, pids)) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        self._process = None

    def close(self) -> None:
        """Kill it and remove its directory."""
        if self.is_running:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        ready = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-U", "procession"]
        while subprocess.run([*ready, "-d", "postgres"], check=False).returncode:
            if not self.is_running or time.monotonic() > deadline:
                said = self.log_path.read_text(errors="replace")[-2000:]
                self.close()
                raise ConfigError(f"The PostgreSQL server did not start: {said}", next_step="Read what it says above.")
            time.sleep(LOOK_S)

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *words], capture_output=True, check=False, **self._as_user()
        )
        if done.returncode:
            raise ConfigError(
                f"{program} ended with status {done.returncode}: {done.stderr.decode(errors='replace').strip()}",
                next_step="Start it by hand with the same words.",
            )

    def _as_user(self) -> dict[str, Any]:
        groups: Sequence[int] = ()
        identity = {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": groups} if self._user else {}
        return {**identity, "cwd": self.directory}


def _is_alive(pid: int) -> bool:
    """Whether the process still runs. One that its parent has not waited for is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _unprivileged_user() -> pwd.struct_passwd | None:
    """Another user, if we are root."""
    if os.getuid():
        return None
    for name in USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ConfigError(
        "PostgreSQL cannot run as root, and there is no other user for it.",
        next_step=f"Create the user {USERS[0]}, or run this as another user.",
    )
