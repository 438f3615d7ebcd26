"""Runs a PostgreSQL server for chaos scenarios, benchmarks and tests: a new cluster in a temporary directory.

Invariant: as in `chaos/system_server`; other clusters are not changed. PostgreSQL refuses to run as root, so it runs
as another user then. Upstream: the scenarios, benchmarks and tests; downstream: PostgreSQL's programs, which
`scripts/postgres` installs.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from procession.chaos.system_server import HOST, SystemServer
from procession.errors import ConfigError

USERS = ("postgres", "nobody")
"""Users to run the server if this process runs as root."""
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
    """Return the directory of `initdb` and `postgres`; if there are several, the newest version. Raises
    ConfigError."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    if in_path := shutil.which("initdb"):
        return Path(in_path).resolve().parent
    raise ConfigError(
        "PostgreSQL's programs are not installed here.",
        next_step="Run scripts/postgres in a checkout, or install PostgreSQL 15 or newer.",
    )


class PostgresServer(SystemServer):
    """A cluster that is created, started, killed and started again. Use it as a context manager.

    `stop` is a fast shutdown: open transactions are rolled back, prepared ones stay.

    Args:
        settings: Server settings, in addition to `SETTINGS`.
        programs: The directory of PostgreSQL's programs.
    """

    title = "The PostgreSQL server"
    start_timeout_s = 30.0
    stop_signal = signal.SIGINT
    owner_death_signal = "INT"

    def __init__(self, settings: Mapping[str, str] | None = None, *, programs: Path | None = None) -> None:
        self._programs = programs or find_programs()
        self._user = _unprivileged_user()
        identity: tuple[str, ...] = ()
        if self._user is not None:
            identity = ("--reuid", str(self._user.pw_uid), "--regid", str(self._user.pw_gid), "--clear-groups")
        super().__init__("postgres", SETTINGS | dict(settings or {}), identity=identity)

    def _make(self) -> None:
        self._data = self.directory / "data"
        if self._user:
            os.chown(self.directory, self._user.pw_uid, self._user.pw_gid)
        arguments = ["-D", str(self._data), "-U", "procession", "-A", "trust", "-E", "UTF8", "--no-sync"]
        self._run(
            [str(self._programs / "initdb"), *arguments], "initdb failed", "Start it by hand with the same arguments."
        )

    def url(self, database: str = "postgres", user: str = "procession", address: str = "") -> str:
        """Return the URL of a database; through a proxy, if its address is given."""
        return f"postgres://{user}@{address or self.address}/{database}"

    def _program(self) -> list[str]:
        settings = [f"--{name.replace('_', '-')}={value}" for name, value in self._settings.items()]
        place = ["-D", str(self._data), "-k", str(self.directory), "-p", str(self.port)]
        # All processes of the server inherit the lock. If only the first process is killed, PostgreSQL refuses to
        # start until the others have ended, so the next start waits for the lock.
        lock = ["flock", "--no-fork", "--exclusive", str(self.directory / "processes.lock")]
        return [*lock, str(self._programs / "postgres"), *place, *settings]

    def is_ready(self, pid: int = 0) -> bool:
        ready = [str(self._programs / "pg_isready"), "-q", "-h", HOST, "-p", str(self.port), "-U", "procession"]
        return not subprocess.run([*ready, "-d", "postgres"], check=False).returncode


def _unprivileged_user() -> pwd.struct_passwd | None:
    """Return a user to run the server if this process runs as root, else None."""
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
