"""A Spark cluster on hosts of this machine: master, workers and host services, each on its own host.

Invariant: what is in `cluster.json` is enough to find the cluster again; what runs is read from the hosts themselves.
`up` starts only what is missing, so repeating it repairs a cluster. `down` removes everything. The first host is for
the master and for drivers, the last one for gateways, sinks and sources, those between have workers. Spark's ports
authenticate and encrypt; the secrets are in files of each host. Uses `supervisor/namespace_hosts`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from procession.errors import ConfigError, UsageError
from procession.format_number import check_format
from procession.spark.java import check_java
from procession.storage.durable import write_durably
from procession.storage.host_runs import DIRECTORY_VARIABLE
from procession.storage.secret import Secret, make_secret, path_of, write_private
from procession.supervisor.namespace_hosts import (
    HOSTS_MAX,
    NamespaceHost,
    check_possible,
    entered,
    is_linked,
    is_memory_bounded,
    make_hosts,
    namespaces,
    processes_of,
    remove_hosts,
)
from procession.supervisor.run_claim import locked

ROOT = Path("/var/lib/procession/clusters")
"""The directory of clusters."""
DEFAULT = "cluster"
"""The name of a cluster, unless another is given."""
FILE = "cluster.json"
FORMAT = 1
HOSTS_MIN = 3

MASTER_PORT = 7077
SERVICE_PORT = 7300
MASTER, WORKER, SERVICE = "master", "worker", "host-service"
REGISTERED = "Successfully registered with master"
START_TIMEOUT_S = 90.0
POLL_S = 0.1

MEGABYTE = 1 << 20
DAEMON_MEMORY = "256m"
SECURITY = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.io.encryption.enabled": "true",
}
"""Properties of Spark: its ports require the cluster's secret, traffic and temporary files are encrypted."""
WORKER_TIMEOUT_S = 20
"""Seconds after which the master gives a worker up that sends no heartbeat."""


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
        """Start the program. It runs on when this process ends."""
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

    def last_line(self) -> str:
        """Return the last line of its log that is not part of a trace."""
        with suppress(OSError):
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
            return next((line for line in reversed(lines) if line and not line.startswith("at ")), "")
        return ""


@dataclass(frozen=True)
class NamespaceCluster:
    """The hosts of a cluster, and what runs on them."""

    name: str
    count: int
    cores: int = 1
    memory_mb: int = 3072
    """The limit of memory of each host."""

    @property
    def directory(self) -> Path:
        return ROOT / self.name

    @property
    def hosts(self) -> list[NamespaceHost]:
        return [NamespaceHost(self.name, number, self.directory / "hosts") for number in range(1, self.count + 1)]

    @property
    def head(self) -> NamespaceHost:
        """The host of Spark's master and of drivers."""
        return self.hosts[0]

    @property
    def workers(self) -> list[NamespaceHost]:
        """The hosts of executors."""
        return self.hosts[1:-1]

    @property
    def edge(self) -> NamespaceHost:
        """The host of gateways, sinks and sources."""
        return self.hosts[-1]

    @property
    def master(self) -> str:
        """The address of Spark's master."""
        return f"spark://{self.head.address}:{MASTER_PORT}"

    @property
    def executor_memory_mb(self) -> int:
        """The heap of an executor. The rest of a host is for Python workers, mapped files and Spark's worker."""
        return self.memory_mb // 3

    def host(self, name: str) -> NamespaceHost:
        """Return the host of this name. Raises UsageError if there is none."""
        found = {host.name: host for host in self.hosts}
        if name not in found:
            raise UsageError(f"There is no host {name!r}.", next_step=f"Use one of {', '.join(found)}.")
        return found[name]

    def secret(self, host: NamespaceHost, which: Secret) -> Path:
        """Return the file with the copy of a secret on this host."""
        return path_of(host.directory, which)

    # --- up and down

    def up(self, say: Callable[[str], None]) -> None:
        """Make the hosts and start what is missing. Returns when all workers have registered with the master."""
        check_java()
        check_possible(self.name)
        with changing(self.name):
            self._up(say)

    def _up(self, say: Callable[[str], None]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        document = {"format": FORMAT, "hosts": self.count, "cores": self.cores, "memory_mb": self.memory_mb}
        write_durably(self.directory / FILE, json.dumps(document).encode())
        make_hosts(self.name, self.count, self.directory / "hosts", self.memory_mb * MEGABYTE)
        if not is_memory_bounded():
            say("the memory of the hosts is not limited: cgroups cannot be written here")
        self._share_secrets()
        self.start()

    def start(self, *hosts: NamespaceHost) -> None:
        """Start the services of these hosts, or of all, that do not run. Returns when they are ready."""
        chosen = [service for service in self.services() if not hosts or service.host in hosts]
        started = [(service, service.start()) for service in chosen if service.pid is None]
        deadline = time.monotonic() + START_TIMEOUT_S
        while waited_for := [(service, process) for service, process in started if not service.is_ready()]:
            for service, process in waited_for:
                is_ended = process.poll() is not None
                if is_ended or time.monotonic() > deadline:
                    how = "ended" if is_ended else f"was not ready within {START_TIMEOUT_S:g} s"
                    raise ConfigError(
                        f"The {service.name} on {service.host.name} {how}: {service.last_line()}",
                        next_step=f"Look at {service.log}, then run `procession cluster up` again, or `down`.",
                    )
            time.sleep(POLL_S)

    def _share_secrets(self) -> None:
        """Give every host a copy of the secrets, and Spark's properties with its secret."""
        made = {which: make_secret(self.directory, which) for which in (Secret.CONTROL, Secret.PRODUCERS, Secret.SINKS)}
        spark_secret = self.directory / "secrets" / "spark"
        if not spark_secret.exists():
            write_private(spark_secret, secrets.token_hex(32).encode())
        properties = SECURITY | {
            "spark.authenticate.secret": spark_secret.read_text().strip(),
            "spark.worker.timeout": str(WORKER_TIMEOUT_S),
        }
        for host in self.hosts:
            for which, secret in made.items():
                write_private(self.secret(host, which), secret)
            text = "".join(f"{name} {value}\n" for name, value in properties.items())
            write_private(host.directory / "conf" / "spark-defaults.conf", text.encode())

    def down(self) -> bool:
        """Remove hosts, processes and directories. Return whether there was anything to remove."""
        return remove(self.name)

    # --- what runs

    def services(self) -> Iterator[Service]:
        """Yield the programs of the cluster."""
        arguments = ("--host", self.head.address, "--port", str(MASTER_PORT), "--webui-port", "0")
        yield self._spark(MASTER, self.head, "master.Master", arguments, "I have been elected leader")
        for host in self.workers:
            room = ("--cores", str(self.cores), "--memory", f"{self.executor_memory_mb + 64}M")
            place = ("--work-dir", str(host.directory / "work"), "--host", host.address, "--webui-port", "0")
            yield self._host_service(host)
            yield self._spark(WORKER, host, "worker.Worker", (*room, *place, self.master), REGISTERED)

    def _spark(self, name: str, host: NamespaceHost, main: str, arguments: Sequence[str], ready: str) -> Service:
        from procession.spark.session import JAVA_OPTIONS, archive_options, spark_home

        home = spark_home()
        argv = (str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}", *arguments)
        env = self.spark_env(host) | {
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": " ".join((*JAVA_OPTIONS, *archive_options())),
            DIRECTORY_VARIABLE: str(host.directory / "service"),
        }
        service = Service(name, host, argv, env, lambda: ready in _text(service.log))
        return service

    def _host_service(self, host: NamespaceHost) -> Service:
        directory = host.directory / "service"
        argv = [sys.executable, "-m", "procession", "host", "--dir", str(directory)]
        argv += ["--listen", f"{host.address}:{SERVICE_PORT}"]
        argv += ["--control-cookie-file", str(self.secret(host, Secret.CONTROL))]
        service = Service(SERVICE, host, tuple(argv), {}, lambda: "serving the runs" in _text(service.log))
        return service

    def spark_env(self, host: NamespaceHost) -> dict[str, str]:
        """Return the environment of Spark's processes on this host."""
        return {
            "SPARK_CONF_DIR": str(host.directory / "conf"),
            "SPARK_LOCAL_DIRS": str(host.directory / "scratch"),
            "SPARK_LOCAL_IP": host.address,
            "SPARK_LOCAL_HOSTNAME": host.address,
        }

    def status(self) -> list[dict[str, Any]]:
        """Return for each host its address, directory, link, and the process ids of its services."""
        services = list(self.services())
        return [
            {
                "host": host.name,
                "address": host.address,
                "directory": str(host.directory),
                "is_linked": is_linked(host),
                "services": {service.name: service.pid for service in services if service.host == host}
                if host.namespace in set(namespaces(self.name))
                else {},
            }
            for host in self.hosts
        ]


def check_size(count: int) -> None:
    """Raise UsageError if a cluster cannot have this number of hosts."""
    if not HOSTS_MIN <= count <= HOSTS_MAX:
        raise UsageError(
            f"A cluster has {HOSTS_MIN} to {HOSTS_MAX} hosts, not {count}.",
            next_step="Use --hosts 4: the master and drivers, two workers, and gateways with sinks.",
        )


def find(name: str = DEFAULT) -> NamespaceCluster:
    """Return the cluster of this name. Raises ConfigError if it is not up."""
    check_possible(name)
    path = ROOT / name / FILE
    try:
        document = json.loads(path.read_text())
        check_format(path, document.get("format"), FORMAT)
        return NamespaceCluster(name, int(document["hosts"]), int(document["cores"]), int(document["memory_mb"]))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"There is no cluster {name!r}.", next_step="Make it: procession cluster up --hosts 4."
        ) from error


def is_up(name: str) -> bool:
    """Whether a cluster of this name was made and not removed."""
    check_possible(name)
    return (ROOT / name / FILE).exists()


def remove(name: str = DEFAULT) -> bool:
    """Remove all that is left of a cluster. Return whether there was anything."""
    with changing(name):
        removed = remove_hosts(name)
        is_known = (ROOT / name).exists()
        if is_known:
            shutil.rmtree(ROOT / name)
    return is_known or removed > 0


@contextmanager
def changing(name: str) -> Iterator[None]:
    """Hold the lock of a cluster. Raises ConfigError if another process starts or removes it just now."""
    ROOT.mkdir(parents=True, exist_ok=True, mode=0o700)

    def refusal() -> ConfigError:
        return ConfigError(
            f"Another process starts or removes cluster {name!r}.",
            next_step="Wait until it has ended, then repeat this.",
        )

    with locked(ROOT / f"{name}.lock", refusal):
        yield


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
