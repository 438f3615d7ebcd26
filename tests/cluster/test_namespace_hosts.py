"""Hosts from network namespaces: what a host sees and reaches, and that nothing of it remains."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.cluster import namespace_hosts
from procession.cluster.host_faults import CUT_S, HostFaults, loss_of
from procession.cluster.namespace_cluster import ROOT, NamespaceCluster, changing, check_size, find, is_up
from procession.cluster.namespace_hosts import (
    NamespaceHost,
    check_possible,
    entered,
    is_linked,
    is_memory_bounded,
    kill_host,
    make_hosts,
    namespaces,
    processes_of,
    remove_hosts,
    set_link,
)
from procession.errors import ConfigError, UsageError
from tests.systems.namespace_cluster import needs_cluster
from tests.walk.commands import command

CLUSTER = f"hosts{os.getpid()}"
MEMORY = 256 << 20

pytestmark = needs_cluster


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NamespaceHost]]:
    try:
        yield make_hosts(CLUSTER, 2, tmp_path_factory.mktemp("cluster") / "hosts", MEMORY)
    finally:
        remove_hosts(CLUSTER)


def on(host: NamespaceHost, *argv: str, visible: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(entered(host, argv, visible), capture_output=True, text=True, check=False)


def test_a_host_sees_its_own_directory_and_no_other(hosts: list[NamespaceHost]) -> None:
    first, second = hosts
    (first.directory / "own.txt").write_text("mine")
    assert on(first, "cat", str(first.directory / "own.txt")).stdout == "mine"
    assert on(second, "cat", str(first.directory / "own.txt")).returncode != 0
    assert on(second, "ls", str(first.root)).stdout.split() == [second.name]


def test_hosts_share_no_temporary_directory(hosts: list[NamespaceHost], tmp_path: Path) -> None:
    (tmp_path / "of-the-machine").write_text("x")
    first, second = hosts
    on(first, "touch", "/tmp/of-the-first")
    assert "of-the-first" in on(first, "ls", "/tmp").stdout
    assert "of-the-first" not in on(second, "ls", "/tmp").stdout
    assert on(first, "cat", str(tmp_path / "of-the-machine")).returncode != 0
    assert on(first, "cat", str(tmp_path / "of-the-machine"), visible=(tmp_path,)).stdout == "x"


LISTEN = """
import socket
server = socket.create_server(("{}", 7001))
print("listening", flush=True)
server.accept()[0].send(b"hello")
"""
CONNECT = "import socket; print(socket.create_connection(('{}', 7001), 1.0).recv(5).decode())"


def test_hosts_reach_each_other_until_a_link_is_cut(hosts: list[NamespaceHost]) -> None:
    first, second = hosts
    server = subprocess.Popen(
        entered(first, ["python3", "-c", LISTEN.format(first.address)]), stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "listening\n"
        set_link(second, is_up=False)
        assert not is_linked(second)
        assert "timed out" in on(second, "python3", "-c", CONNECT.format(first.address)).stderr
        set_link(second, is_up=True)
        assert is_linked(second)
        assert on(second, "python3", "-c", CONNECT.format(first.address)).stdout == "hello\n"
    finally:
        server.kill()
        server.communicate()


def test_the_machine_itself_has_no_link_to_the_hosts(hosts: list[NamespaceHost]) -> None:
    links = subprocess.run(["ip", "-brief", "address"], capture_output=True, text=True, check=True).stdout
    assert namespace_hosts.NETWORK not in links
    assert "port-1" not in links


def test_a_command_on_a_host_keeps_its_process_id_and_ends_with_the_host(hosts: list[NamespaceHost]) -> None:
    process = subprocess.Popen(entered(hosts[0], ["sleep", "600"]))
    deadline = time.monotonic() + 20
    while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.pid in processes_of(hosts[0].namespace)
    kill_host(hosts[0].namespace)
    assert process.wait() == -signal.SIGKILL
    assert processes_of(hosts[0].namespace) == []


def test_the_memory_of_a_host_is_limited(hosts: list[NamespaceHost]) -> None:
    if not is_memory_bounded():
        pytest.skip("cgroups cannot be written here")
    done = on(hosts[0], "python3", "-c", "block = bytearray(512 << 20); block[:] = b'x' * len(block)")
    assert done.returncode == -signal.SIGKILL, done


@pytest.mark.parametrize("killed_after_s", [0.6, 1.2, 2.0])
def test_nothing_is_left_of_a_cluster_whose_start_was_killed(killed_after_s: float, tmp_path: Path) -> None:
    name = f"killed{os.getpid()}"
    starting = subprocess.Popen(command("cluster", "up", "--name", name), stdout=subprocess.DEVNULL)
    try:
        time.sleep(killed_after_s)  # at any moment: `cluster down` removes what was created so far
        starting.kill()
        starting.wait()
    finally:
        subprocess.run(command("cluster", "down", "--name", name), check=True, capture_output=True)
    assert list(namespaces(name)) == []
    assert not is_up(name)
    assert not NamespaceCluster(name, 4).directory.exists()
    again = subprocess.run(command("cluster", "down", "--name", name), check=True, capture_output=True, text=True)
    assert again.stdout == f"there is no cluster {name}; nothing to remove\n"


def test_two_processes_do_not_change_a_cluster_at_the_same_time() -> None:
    name = f"locked{os.getpid()}"
    with changing(name):
        down = subprocess.run(command("cluster", "down", "--name", name), capture_output=True, text=True, check=False)
    assert down.returncode != 0
    assert f"Another process starts or removes cluster '{name}'" in down.stderr
    (ROOT / f"{name}.lock").unlink()


def test_a_cluster_that_is_not_up_is_reported_with_the_command_that_starts_it() -> None:
    with pytest.raises(ConfigError, match="There is no cluster 'nowhere'") as caught:
        find("nowhere")
    assert "cluster up" in (caught.value.next_step or "")


def test_an_invalid_name_or_size_is_refused() -> None:
    with pytest.raises(UsageError, match="not a name"):
        check_possible("../x")
    with pytest.raises(UsageError, match="3 to 64 hosts, not 2"):
        check_size(2)
    with pytest.raises(UsageError, match="no host 'host-9'"):
        NamespaceCluster("x", 4).host("host-9")


def test_only_root_can_make_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="only root"):
        check_possible("cluster")


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="`ip` is missing") as caught:
        check_possible("cluster")
    assert "iproute2" in (caught.value.next_step or "")


def test_a_cluster_of_an_earlier_version_has_its_driver_on_the_first_host() -> None:
    name = f"old{os.getpid()}"
    (ROOT / name).mkdir(parents=True)
    try:
        (ROOT / name / "cluster.json").write_text('{"format": 1, "hosts": 4, "cores": 1, "memory_mb": 3072}')
        assert find(name) == NamespaceCluster(name, 4)
        assert find(name).head.name == "host-1"
    finally:
        shutil.rmtree(ROOT / name)


def test_replicas_are_on_three_hosts_other_than_the_first() -> None:
    cluster = NamespaceCluster("any", 5, driver_number=5, has_replicas=True)
    assert [host.name for host in cluster.replicas] == ["host-3", "host-4", "host-5"]
    assert cluster.replica_addresses.split(",")[0] == f"{cluster.replicas[0].address}:7400"
    assert cluster.master == f"spark://{cluster.hosts[4].address}:7077"
    check_size(4, has_replicas=True)
    with pytest.raises(UsageError, match="3 hosts have only 2"):
        check_size(3, has_replicas=True)


def test_a_link_that_a_fault_has_cut_is_restored_when_its_time_has_passed(hosts: list[NamespaceHost]) -> None:
    now = [100.0]
    cluster = NamespaceCluster(CLUSTER, 3)
    said: list[str] = []
    faults = HostFaults(cluster, said.append, lambda: now[0])
    assert faults.perform("link of host-2")
    assert not is_linked(hosts[1])
    assert said == ["link of host-2 is cut for 5 s"]
    now[0] += CUT_S - 0.1
    faults.poll()
    assert not is_linked(hosts[1])
    now[0] += 0.1
    faults.poll()
    assert is_linked(hosts[1])
    assert faults.performed == ["link of host-2"]


def test_a_lost_host_has_no_process_left_and_a_fault_that_finds_nothing_did_not_happen(
    hosts: list[NamespaceHost],
) -> None:
    *_, edge = make_hosts(CLUSTER, 3, hosts[0].root, MEMORY)
    said: list[str] = []
    faults, loss = HostFaults(NamespaceCluster(CLUSTER, 3), said.append), loss_of(edge)
    assert not faults.perform(loss)
    assert not faults.perform("executors of host-2")
    assert (said, faults.performed) == ([], [])
    process = subprocess.Popen(entered(edge, ["sleep", "600"]))
    while process.pid not in processes_of(edge.namespace):
        assert process.poll() is None
    assert faults.perform(loss)
    assert process.wait() == -signal.SIGKILL
    assert processes_of(edge.namespace) == []
    assert said == ["SIGKILL to all processes of host-3"]
    assert faults.performed == [loss]


def test_a_host_behind_a_cut_link_has_no_other_fault_until_it_is_connected(hosts: list[NamespaceHost]) -> None:
    now = [0.0]
    faults = HostFaults(NamespaceCluster(CLUSTER, 3), lambda _: None, lambda: now[0])
    assert faults.perform("link of host-2")
    assert not faults.perform("all processes of host-2")
    now[0] = CUT_S
    faults.poll()
    assert is_linked(hosts[1])
