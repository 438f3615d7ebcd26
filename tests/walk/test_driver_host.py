"""The host of a driver is lost with everything on it: the driver continues on another host from the replicas, and the
output is that of the same pipeline in one process."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from procession.cluster.namespace_cluster import NamespaceCluster, find
from procession.cluster.namespace_hosts import kill_host, set_link
from procession.deployment.cluster_pipeline import DRIVERS, driver_directory
from procession.exit_status import Status
from procession.storage.driver_claim import checkpoint_of, read_claim
from tests.systems.namespace_cluster import needs_cluster
from tests.systems.namespace_cluster import running as running_cluster
from tests.walk.commands import Running, running
from tests.walk.commands import command as command_line
from tests.walk.test_namespace_cluster import APPS, FAULTS_TIMEOUT_S, Job, lose_an_executor, lose_the_link

pytestmark = [needs_cluster, pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def cluster_with_replicas() -> Iterator[NamespaceCluster]:
    with running_cluster(has_replicas=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(cluster_with_replicas: NamespaceCluster) -> Iterator[NamespaceCluster]:
    """Return the cluster, with the driver on its first host."""
    try:
        yield cluster_with_replicas
    finally:
        first = cluster_with_replicas.head
        for host in cluster_with_replicas.hosts:
            set_link(host, is_up=True)
        moved = find(cluster_with_replicas.name)
        if moved.head != first:
            moved.move_driver(first)
        find(cluster_with_replicas.name).start()


def lose_the_driver_host(cluster: NamespaceCluster, command: Running) -> None:
    """Cut the host's link, kill all its processes, and delete its disk."""
    set_link(cluster.head, is_up=False)
    kill_host(cluster.head.namespace)
    command.process.terminate()
    command.wait()
    shutil.rmtree(cluster.head.directory / DRIVERS)


def lose_an_executor_and_the_driver_host(cluster: NamespaceCluster, command: Running) -> None:
    lose_an_executor(cluster, command)
    lose_the_driver_host(cluster, command)


def lose_a_link_and_the_driver_host(cluster: NamespaceCluster, command: Running) -> None:
    lose_the_link(cluster, command)
    lose_the_driver_host(cluster, command)


def lose_the_gateway_and_the_driver_host(cluster: NamespaceCluster, command: Running) -> None:
    """Kill all processes of both hosts at once. The gateways' host keeps its disk and comes back."""
    kill_host(cluster.edge.namespace)
    lose_the_driver_host(cluster, command)


CASES = [(kind, lose_the_driver_host) for kind in APPS]
CASES += [("joined", lose_an_executor_and_the_driver_host), ("keyed", lose_a_link_and_the_driver_host)]
CASES += [("windowed", lose_the_gateway_and_the_driver_host)]


@pytest.mark.parametrize(("kind", "lose"), CASES)
def test_a_driver_continues_on_another_host_when_its_own_is_lost_with_its_disk(
    cluster: NamespaceCluster, tmp_path: Path, kind: str, lose: Callable[[NamespaceCluster, Running], None]
) -> None:
    job = Job(cluster, tmp_path, kind, lose.__name__.replace("_", "-"))
    with running(*job.arguments, cwd=tmp_path) as command:
        job.await_middle(command)
        fence = read_claim(checkpoint_of(driver_directory(cluster, job.name)))
        lose(cluster, command)
    before = job.output()
    moving = command_line("cluster", "driver", cluster.edge.name, "--name", cluster.name)
    moved = subprocess.run(moving, capture_output=True, text=True, check=False)
    assert moved.returncode == 0, moved.stderr
    restoring = moved.stdout.split("--restore-from ")[1].strip().replace("PIPELINE", job.name)
    with running(*job.arguments, "--restore-from", restoring, cwd=tmp_path) as command:
        assert command.wait(FAULTS_TIMEOUT_S) == Status.DONE, command.said
    assert job.output() == job.expected()
    assert job.output().startswith(before), "visible output stays"
    assert read_claim(checkpoint_of(driver_directory(find(cluster.name), job.name))) > fence
    assert not (cluster.head.directory / DRIVERS).exists(), "nothing was on the lost host"
