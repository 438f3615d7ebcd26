"""The host service of an executor's machine, started from the shipped environment unless it runs already.

Invariant: the service is a process in its own session, so it outlives the executor that started it. Executors of one
application on one machine share it. Each writes its process id into the service's directory, and the service ends some
time after the last of them. The secret is in a file that Spark has fetched for the executor; it is copied to a private
file at once. Used by `spark/worker_daemon`; `storage/host_service` is the service.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from procession.errors import ConfigError
from procession.format_number import check_format
from procession.storage.durable import make_directory, storage_error
from procession.storage.host_runs import DIRECTORY_VARIABLE, announced_host
from procession.storage.secret import Secret, make_private, path_of, write_private
from procession.storage.shipped_tls import TlsFiles, shipped_arguments

SHIPPED_FILE = "procession-executor.json"
"""The file that Spark puts into the working directory of each executor."""
FORMAT = 2
"""Format of that file. Format 1 had no TLS."""
LOCAL_DIRECTORIES = (("SPARK_EXECUTOR_DIRS", os.pathsep), ("LOCAL_DIRS", ","), ("SPARK_LOCAL_DIRS", ","))
"""Variables with the directories of an application on an executor's machine, and their separators: of a standalone
worker, of YARN, and of Kubernetes."""
EXECUTORS = "executors"
"""Folder with a file for each executor that uses the service."""
LOG = "host-service.log"
HELD = "Another process holds"
"""Beginning of the error of a service whose directory another service holds (`storage/durable`)."""
START_TIMEOUT_S = 60.0
POLL_S = 0.05
REACH_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class ShippedFile:
    """The data that an executor gets from the driver, in addition to its environment."""

    secret: bytes = field(repr=False)
    driver: str
    """A host name or address of the driver. An executor uses it to find which of its own addresses others can reach."""
    tls: TlsFiles | None = None

    def to_json(self) -> bytes:
        fields = {"format": FORMAT, "secret": self.secret.hex(), "driver": self.driver}
        return json.dumps(fields | ({} if self.tls is None else {"tls": asdict(self.tls)})).encode()

    @classmethod
    def read(cls, path: Path) -> ShippedFile:
        """Read the file, and make it readable only by its owner. Raises ConfigError if it is missing or damaged."""
        try:
            with suppress(PermissionError):
                path.chmod(0o600)
            found = json.loads(path.read_bytes())
            check_format(path, found.get("format"), FORMAT)
            tls = TlsFiles.parse(found["tls"]) if "tls" in found else None
            return cls(bytes.fromhex(found["secret"]), str(found["driver"]), tls)
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"The executor on {socket.gethostname()} has no file {SHIPPED_FILE} from the driver.",
                next_step="Start the pipeline with `procession submit`, which ships it.",
            ) from error


def join_service(environment: Mapping[str, str], place: Path, *, patience_s: float = START_TIMEOUT_S) -> Path:
    """Return the directory of this machine's host service, for an executor that works in `place`. Starts the service if
    none runs. Raises ConfigError if it does not start."""
    if directory := environment.get(DIRECTORY_VARIABLE):
        return Path(directory)
    shipped = ShippedFile.read(place / SHIPPED_FILE)
    directory_found = service_directory(environment, shipped.secret)
    make_private(directory_found)
    _register(directory_found, os.getpid())
    secret = path_of(directory_found, Secret.CONTROL)
    write_private(secret, shipped.secret)
    if shipped.tls is not None:
        shipped.tls.keep(directory_found)
    deadline = time.monotonic() + patience_s
    while not is_serving(directory_found):
        _start(directory_found, own_address(shipped.driver), secret, deadline)
    return directory_found


def service_directory(environment: Mapping[str, str], secret: bytes) -> Path:
    """Return the directory of the service: one for each secret, among the application's local directories."""
    local = tempfile.gettempdir()
    for variable, separator in LOCAL_DIRECTORIES:
        if named := [name for name in environment.get(variable, "").split(separator) if name]:
            local = named[0]
            break
    key = hashlib.sha256(b"procession host service" + secret).hexdigest()[:16]
    return Path(local) / f"procession-host-{key}"


def own_address(other: str) -> str:
    """Return the address of this machine that `other` can reach: the source address of packets to it."""
    try:
        family, _, _, _, address = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends no packet
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"{socket.gethostname()} cannot resolve or reach {other}: {error.strerror}.",
            next_step="Name an address that all machines of the cluster can reach.",
        ) from error


def is_serving(directory: Path) -> bool:
    """Whether the service of this directory accepts connections."""
    try:
        host, _, port = announced_host(directory).location.rpartition("://")[2].rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), REACH_TIMEOUT_S).close()
        return True
    except (ConfigError, OSError, ValueError):
        return False


def has_executors(directory: Path) -> bool:
    """Whether a process that uses the service of this directory is alive."""
    with suppress(OSError):
        return any(_started(int(path.name)) == path.read_text() for path in (directory / EXECUTORS).glob("[0-9]*"))
    return False


def _register(directory: Path, pid: int) -> None:
    path = directory / EXECUTORS / str(pid)
    make_directory(path.parent)
    try:
        path.write_text(_started(pid))
    except OSError as error:
        raise storage_error(path, "write", error) from error


def _started(pid: int) -> str:
    """Return the start time of a process, which distinguishes it from a later process with the same id. Empty: it does
    not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _start(directory: Path, address: str, secret: Path, deadline: float) -> None:
    """Start the service. Returns when it serves, or when the faster service of another process serves."""
    listen = f"[{address}]:0" if ":" in address else f"{address}:0"
    argv = [sys.executable, "-m", "procession", "host", "--dir", str(directory), "--listen", listen]
    argv += ["--control-cookie-file", str(secret), "--with-executors"]
    argv += shipped_arguments(directory)
    log_path = directory / LOG
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=directory
        )
    while not is_serving(directory):
        if process.poll() is not None and HELD not in _last_line(log_path):
            raise ConfigError(
                f"The host service on {socket.gethostname()} does not start: {_last_line(log_path)}",
                next_step=f"Look at {log_path} there.",
            )
        if time.monotonic() > deadline:
            process.kill()
            raise ConfigError(
                f"The host service on {socket.gethostname()} did not start in time.",
                next_step=f"Look at {log_path} there.",
            )
        time.sleep(POLL_S)


def _last_line(path: Path) -> str:
    with suppress(OSError):
        lines = path.read_text(errors="replace").splitlines()
        messages = [line.removeprefix("error: ") for line in lines if line.strip() and not line.startswith("  Next: ")]
        return messages[-1].strip() if messages else "it says nothing"
    return "it says nothing"
