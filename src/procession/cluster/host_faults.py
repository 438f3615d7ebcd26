"""Injects faults into the hosts of a cluster, as they happen to machines, for `procession demo --cluster --crash`.

Invariant: a fault that finds nothing to kill or to cut does not happen, and `perform` says so. A service of the cluster
that was killed is restarted at once; the supervisor or Spark restarts the processes of the pipeline. After `restore`
every link is up and every service of the cluster runs. Uses `cluster/namespace_hosts` and `cluster/namespace_cluster`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from procession.cluster.cluster_service import Service
from procession.cluster.namespace_cluster import SERVICE, WORKER, NamespaceCluster
from procession.cluster.namespace_hosts import NamespaceHost, kill_host, processes_of, set_link
from procession.errors import ConfigError

EXECUTOR = b"CoarseGrainedExecutorBackend"
CUT_S = 5.0
"""Time for which a link is cut."""


class HostFaults:
    """The faults of one cluster, by name. As a context it restores the hosts at its end."""

    def __init__(
        self, cluster: NamespaceCluster, say: Callable[[str], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._say = say
        self._now = now
        self._cut: dict[NamespaceHost, float] = {}
        """The hosts whose links are cut, with the time of reconnection."""
        self._started: dict[tuple[str, str], tuple[Service, subprocess.Popen[bytes]]] = {}
        """The restarted services, by host and name."""
        self._faults: dict[str, tuple[NamespaceHost, Callable[[NamespaceHost], bool]]] = {}
        self.performed: list[str] = []
        """The names of the faults that have happened."""
        for host in cluster.workers:
            self._faults[f"executors of {host.name}"] = host, self._kill_executors
            self._faults[f"{SERVICE} of {host.name}"] = host, partial(self._kill_service, SERVICE)
        for host in (cluster.workers[-1], cluster.edge):
            self._faults[f"link of {host.name}"] = host, self._cut_link
        first = cluster.workers[0]
        self._faults[f"Spark's worker of {first.name}"] = first, partial(self._kill_service, WORKER)
        for host in (first, cluster.edge):
            self._faults[loss_of(host)] = host, self._lose

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    @property
    def names(self) -> list[str]:
        return list(self._faults)

    def perform(self, name: str) -> bool:
        """Let this fault happen. Return False, without a change, if there is nothing to kill or to cut just now."""
        host, fault = self._faults[name]
        if host in self._cut or not fault(host):  # a service behind a cut link could not start again
            return False
        self._say(f"{name} is cut for {CUT_S:g} s" if host in self._cut else f"SIGKILL to {name}")
        self.performed.append(name)
        return True

    def poll(self) -> None:
        """Connect the links that were cut for `CUT_S`. Raise ConfigError if a restarted service has ended."""
        for host in [host for host, until in self._cut.items() if self._now() >= until]:
            del self._cut[host]
            set_link(host, is_up=True)
        for service, process in self._started.values():
            if process.poll() is not None:
                raise ConfigError(
                    f"The {service.name} on {service.host.name} does not restart: {service.last_line()}",
                    next_step=f"Look at {service.log}, then run `procession cluster up`.",
                )

    def restore(self) -> None:
        """Undo all faults."""
        for host in self._cut:
            set_link(host, is_up=True)
        self._cut.clear()
        self._cluster.start()

    def _cut_link(self, host: NamespaceHost) -> bool:
        set_link(host, is_up=False)
        self._cut[host] = self._now() + CUT_S
        return True

    def _kill_executors(self, host: NamespaceHost) -> bool:
        executors = executors_on(host)
        for pid in executors:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(executors)

    def _kill_service(self, name: str, host: NamespaceHost) -> bool:
        is_killed = False
        for service in self._cluster.services():
            if service.host == host and service.name == name and service.pid is not None:
                service.end()
                is_killed = True
        self._start_missing(host)
        return is_killed

    def _lose(self, host: NamespaceHost) -> bool:
        is_killed = bool(processes_of(host.namespace))
        kill_host(host.namespace)
        self._start_missing(host)
        return is_killed

    def _start_missing(self, host: NamespaceHost) -> None:
        """Start the services of this host that do not run. Does not wait, because the pipeline needs its supervisor."""
        for service in self._cluster.services():
            if service.host == host and service.pid is None:
                self._started[host.name, service.name] = service, service.start()


def loss_of(host: NamespaceHost) -> str:
    """Return the name of the fault that ends all processes of a host at once."""
    return f"all processes of {host.name}"


def executors_on(host: NamespaceHost) -> list[int]:
    """Return the processes of Spark's executors on a host."""
    found = []
    for pid in processes_of(host.namespace):
        with suppress(OSError):
            if EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found
