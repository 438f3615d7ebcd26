"""The gateways of a chaos run join, answer, leave and return under the same name. Spark is not started."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from procession.chaos.chaos_cluster import ChaosCluster
from procession.chaos.scenario import CONTROLS, GATEWAY, GATEWAYS, SECOND, THIRD, TO_GATEWAY, TO_SECOND, TO_THIRD
from procession.gateway.control_client import ControlClient
from procession.storage.log_ranges import FIRST_GATEWAY
from procession.storage.secret import Secret, find_secret

PATIENCE_S = 60.0
"""The longest wait of a test. It only ends a hang."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ChaosCluster]:
    with ChaosCluster(tmp_path) as cluster:
        for name in GATEWAYS:
            cluster.start_gateway(name)
        assert cluster.supervisor.wait_ready()
        yield cluster


def until(cluster: ChaosCluster, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, cluster.log_tails()
        cluster.supervisor.watch(0.05)


def test_a_third_gateway_joins_leaves_and_returns_under_its_name(cluster: ChaosCluster) -> None:
    until(cluster, lambda: cluster.has_joined(SECOND))
    assert cluster.gateways() == [*GATEWAYS]
    for _ in range(2):
        cluster.start_gateway(THIRD)
        until(cluster, lambda: cluster.has_joined(THIRD))
        until(cluster, lambda: cluster.statuses().keys() == {*GATEWAYS, THIRD})
        until(cluster, lambda: cluster.let_go(THIRD))
        until(cluster, lambda: cluster.supervisor.is_done(THIRD))
        assert cluster.gateways() == [*GATEWAYS]
        cluster.supervisor.forget(THIRD)
        assert not cluster.has_joined(THIRD)
    assert not cluster.supervisor.deaths


def test_the_leader_lists_the_addresses_of_proxies_for_all_gateways(cluster: ChaosCluster) -> None:
    """The driver and redirected producers use these addresses, so they connect through a proxy."""
    cluster.start_gateway(THIRD)
    until(cluster, lambda: all(cluster.has_joined(name) for name in (SECOND, THIRD)))
    with ControlClient(cluster.directory / GATEWAY) as leader:
        gateways = {gateway["name"]: gateway for gateway in leader.gateways()}
    address = cluster.proxies.address
    secret = find_secret(cluster.directory, Secret.CONTROL)
    for name, listen, control in zip(
        (FIRST_GATEWAY, SECOND, THIRD), (TO_GATEWAY, TO_SECOND, TO_THIRD), CONTROLS, strict=True
    ):
        assert gateways[name]["listen"] == str(address(listen))
        assert gateways[name]["control"] == str(address(control))
        with ControlClient(gateways[name]["control"], secret) as driver:
            assert driver.status()["next_sequence"] >= 0, "the proxy forwards to a gateway"


def test_a_missing_gateway_is_not_waited_for_and_running_ones_are_observed(cluster: ChaosCluster) -> None:
    until(cluster, lambda: cluster.has_joined(SECOND))  # without a driver, a restarted leader lets no newcomer join
    until(cluster, lambda: cluster.statuses().keys() == {*GATEWAYS})
    cluster.cpu_time()
    cluster.supervisor.hold(GATEWAY)
    until(cluster, lambda: cluster.supervisor.pid(GATEWAY) is None)
    before = time.monotonic()
    assert not cluster.has_joined(SECOND), "only the leader knows who has joined"
    assert not cluster.let_go(SECOND)
    assert cluster.statuses().keys() == {SECOND}
    assert time.monotonic() - before < PATIENCE_S
    assert cluster.cpu_time().ran_s > 0
    cluster.supervisor.release(GATEWAY)
    until(cluster, lambda: cluster.has_joined(SECOND))
