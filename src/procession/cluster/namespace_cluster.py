"""Runs a Spark cluster on hosts of this machine: master, workers and host services, each on its own host.

Invariant: the JSON file of a cluster is enough to find the cluster again; the running programs are read from the
hosts. `up` starts only missing programs, so repeating it repairs a cluster. `down` removes everything. The first host
has the master and drivers until `move_driver` chooses another. The last host has gateways, sinks and sources, and the
hosts between have workers. Spark's ports authenticate and encrypt; the secrets are in files of each host. Uses
`cluster/namespace_hosts`.
"""

from __future__ import annotations

import json
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from procession.cluster.cluster_service import POLL_S, Service, text_of
from procession.cluster.namespace_hosts import (
    HOSTS_MAX,
    NamespaceHost,
    check_possible,
    is_linked,
    is_memory_bounded,
    make_hosts,
    namespaces,
    remove_hosts,
)
from procession.errors import ConfigError, UsageError
from procession.format_number import check_format
from procession.spark.java import check_java
from procession.storage.durable import write_durably
from procession.storage.host_runs import DIRECTORY_VARIABLE
from procession.storage.process_lock import locked
from procession.storage.secret import Secret, make_secret, path_of, write_private

ROOT = Path("/var/lib/procession/clusters")
"""The directory of clusters."""
DEFAULT = "cluster"
"""The name of a cluster, unless another is given."""
FILE = "cluster.json"
FORMAT = 2
HOSTS_MIN = 3
REPLICAS = 3
"""Number of object services, if a cluster has replicas."""

MASTER_PORT = 7077
SERVICE_PORT = 7300
REPLICA_PORT = 7400
MASTER, WORKER, SERVICE, REPLICA = "master", "worker", "host-service", "object-service"
REGISTERED = "Successfully registered with master"
START_TIMEOUT_S = 300.0
"""Time-out for programs that hang. It is long because several JVMs start at once; a program that ends is noticed at
once."""

MEGABYTE = 1 << 20
DAEMON_MEMORY = "256m"
SECURITY = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.io.encryption.enabled": "true",
}
"""Spark's properties for security: ports require the cluster's secret; traffic and temporary files are encrypted."""
COPIED = (Secret.CONTROL, Secret.PRODUCERS, Secret.SINKS, Secret.SOS)
"""The secrets of which each host has a copy."""
WORKER_TIMEOUT_S = 20
"""Seconds without a heartbeat after which the master removes a worker."""


@dataclass(frozen=True)
class NamespaceCluster:
    """The hosts of a cluster and the programs on them."""

    name: str
    count: int
    cores: int = 1
    memory_mb: int = 3072
    """The limit of memory of each host."""
    driver_number: int = 1
    """The host of the master and of drivers."""
    has_replicas: bool = False
    """Whether object services on other hosts replicate the directories of drivers."""

    @property
    def directory(self) -> Path:
        return ROOT / self.name

    @property
    def hosts(self) -> list[NamespaceHost]:
        return [NamespaceHost(self.name, number, self.directory / "hosts") for number in range(1, self.count + 1)]

    @property
    def head(self) -> NamespaceHost:
        """The host of Spark's master and of drivers."""
        return self.hosts[self.driver_number - 1]

    @property
    def workers(self) -> list[NamespaceHost]:
        """The hosts of executors."""
        return self.hosts[1:-1]

    @property
    def edge(self) -> NamespaceHost:
        """The host of gateways, sinks and sources."""
        return self.hosts[-1]

    @property
    def replicas(self) -> list[NamespaceHost]:
        """The hosts of object services. None of them is the first host."""
        return self.hosts[1:][-REPLICAS:] if self.has_replicas else []

    @property
    def replica_addresses(self) -> str:
        return ",".join(f"{host.address}:{REPLICA_PORT}" for host in self.replicas)

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

    def up(self, say: Callable[[str], None]) -> NamespaceCluster:
        """Create the hosts and start missing programs. Return when all workers have registered with the master. A
        running cluster keeps its replicas and the host that `move_driver` has chosen."""
        check_java()
        check_possible(self.name)
        with changing(self.name):
            known = find(self.name) if is_up(self.name) else self
            number = known.driver_number if known.driver_number <= self.count else 1
            started = replace(self, driver_number=number, has_replicas=self.has_replicas or known.has_replicas)
            started._up(say)
        return started

    def _up(self, say: Callable[[str], None]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._save()
        make_hosts(self.name, self.count, self.directory / "hosts", self.memory_mb * MEGABYTE)
        if not is_memory_bounded():
            say("the memory of the hosts is not limited: cgroups cannot be written here")
        self._share_secrets()
        self.start()

    def _save(self) -> None:
        document = {"format": FORMAT, "hosts": self.count, "cores": self.cores, "memory_mb": self.memory_mb}
        document |= {"driver": self.driver_number, "replicas": self.has_replicas}
        write_durably(self.directory / FILE, json.dumps(document).encode())

    def move_driver(self, host: NamespaceHost) -> NamespaceCluster:
        """Start the master on another host, where drivers run from now on, and let all workers register with it.

        Does not wait for programs on the former host, and changes nothing there if its link is cut."""
        with changing(self.name):
            for service in self.services():
                is_stopped = service.name == WORKER or (service.name == MASTER and is_linked(service.host))
                if is_stopped and service.host.namespace in set(namespaces(self.name)):
                    service.end()
            moved = replace(self, driver_number=host.number)
            moved._save()
            moved.start(*filter(is_linked, moved.hosts))
        return moved

    def start(self, *hosts: NamespaceHost) -> None:
        """Start the services of these hosts, or of all hosts, that do not run. Return when they are ready."""
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
        made = {which: make_secret(self.directory, which) for which in COPIED}
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

    # --- programs

    def services(self) -> Iterator[Service]:
        """Yield the programs of the cluster."""
        arguments = ("--host", self.head.address, "--port", str(MASTER_PORT), "--webui-port", "0")
        yield self._spark(MASTER, self.head, "master.Master", arguments, "I have been elected leader")
        for host in self.workers:
            room = ("--cores", str(self.cores), "--memory", f"{self.executor_memory_mb + 64}M")
            place = ("--work-dir", str(host.directory / "work"), "--host", host.address, "--webui-port", "0")
            yield self._host_service(host)
            yield self._spark(WORKER, host, "worker.Worker", (*room, *place, self.master), REGISTERED)
        for host in self.replicas:
            yield self._object_service(host)

    def _spark(self, name: str, host: NamespaceHost, main: str, arguments: Sequence[str], ready: str) -> Service:
        from procession.spark.jvm_launch import JAVA_OPTIONS, archive_options, spark_home

        home = spark_home()
        argv = (str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}", *arguments)
        env = self.spark_env(host) | {
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": " ".join((*JAVA_OPTIONS, *archive_options())),
            DIRECTORY_VARIABLE: str(host.directory / "service"),
        }
        service = Service(name, host, argv, env, lambda: ready in text_of(service.log))
        return service

    def _host_service(self, host: NamespaceHost) -> Service:
        directory = host.directory / "service"
        argv = [sys.executable, "-m", "procession", "host", "--dir", str(directory)]
        argv += ["--listen", f"{host.address}:{SERVICE_PORT}"]
        argv += ["--control-cookie-file", str(self.secret(host, Secret.CONTROL))]
        service = Service(SERVICE, host, tuple(argv), {}, lambda: "serving the runs" in text_of(service.log))
        return service

    def _object_service(self, host: NamespaceHost) -> Service:
        argv = [sys.executable, "-m", "procession", "sos", "--dir", str(host.directory / REPLICA)]
        argv += ["--listen", f"{host.address}:{REPLICA_PORT}", "--cookie-file", str(self.secret(host, Secret.SOS))]
        service = Service(REPLICA, host, tuple(argv), {}, lambda: "listening on" in text_of(service.log))
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


def check_size(count: int, *, has_replicas: bool = False) -> None:
    """Raise UsageError if a cluster cannot have this number of hosts."""
    if has_replicas and HOSTS_MIN <= count <= REPLICAS:
        raise UsageError(
            f"Replicas are on {REPLICAS} hosts other than the first, and {count} hosts have only {count - 1}.",
            next_step=f"Use --hosts {REPLICAS + 1} or more.",
        )
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
        size = int(document["hosts"]), int(document["cores"]), int(document["memory_mb"])
        return NamespaceCluster(name, *size, int(document.get("driver", 1)), bool(document.get("replicas", False)))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"There is no cluster {name!r}.", next_step="Make it: procession cluster up --hosts 4."
        ) from error


def is_up(name: str) -> bool:
    """Return whether a cluster of this name was made and not removed."""
    check_possible(name)
    return (ROOT / name / FILE).exists()


def remove(name: str = DEFAULT) -> bool:
    """Remove everything that belongs to a cluster. Return whether there was anything to remove."""
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
