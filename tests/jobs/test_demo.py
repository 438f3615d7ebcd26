"""The schedule of a crash run of the demo, and its verdict in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from procession.cluster.host_faults import loss_of
from procession.cluster.namespace_cluster import NamespaceCluster
from procession.deployment.settings import Settings
from procession.jobs.demo import Crashes, Demo, sentence
from procession.supervisor.supervisor import Supervisor

NAMES = ("driver", "gateway", "all processes of host-4")
FIGURES: dict[str, Any] = {
    "records": 1_000,
    "committed": 1_000,
    "lost": 0,
    "doubled": 0,
    "disordered": 0,
    "outcome": "clean",
    "epochs": 7,
    "seconds": 2.5,
    "records_per_second": 400,
    "latency_ms": {"p50": 3.0, "p99": None},
    "restarts": 5,
    "host_faults": [],
}


def test_each_crash_happens_once_while_records_are_committed_and_its_time_is_that_of_the_seed() -> None:
    def crash(name: str) -> bool:
        happened.append((name, committed))
        return True

    runs = []
    for seed in (1, 1, 2):
        happened: list[tuple[str, int]] = []
        crashes = Crashes(seed, 1_000, dict.fromkeys(NAMES, crash))
        assert sorted(crashes.left) == sorted(NAMES)
        for committed in range(1_000):
            crashes.poll(committed)
        assert sorted(name for name, _ in happened) == sorted(NAMES)
        assert all(at > 0 for _, at in happened)
        assert crashes.left == []
        runs.append(happened)
    assert runs[0] == runs[1] != runs[2]


def test_a_crash_without_a_process_to_kill_is_retried_and_otherwise_reported_as_missing() -> None:
    answers = [False, False, True]
    crashes = Crashes(1, 100, {"executors of host-2": lambda _: answers.pop(0)})
    crashes.poll(99)
    crashes.poll(99)
    assert crashes.left == ["executors of host-2"]
    crashes.poll(99)
    assert crashes.left == []
    assert answers == []


def test_nothing_happens_before_the_first_record_is_committed() -> None:
    crashes = Crashes(1, 1, dict.fromkeys(NAMES, lambda _: True))
    crashes.poll(0)
    assert len(crashes.left) == len(NAMES)


@pytest.mark.parametrize("is_crashing", [True, False])
def test_a_crash_run_on_a_cluster_contains_every_fault_of_its_hosts(tmp_path: Path, is_crashing: bool) -> None:
    cluster = NamespaceCluster("any", 4)
    demo = Demo(1_000, Settings(), is_crashing=is_crashing, cluster=cluster)
    faults = demo.host_faults()
    crashes = demo.crashes(["gateway", "driver"], Supervisor(tmp_path), faults)
    if not is_crashing:
        assert (faults, crashes.left) == (None, [])
        return
    assert faults is not None
    assert {loss_of(cluster.workers[0]), loss_of(cluster.edge)} < set(faults.names)
    assert sorted(crashes.left) == sorted(["gateway", "driver", *faults.names])


def test_the_verdict_names_the_faults_of_hosts_if_there_were_some() -> None:
    assert sentence(FIGURES).endswith("; 5 restarts")
    named = sentence(FIGURES | {"host_faults": ["link of host-3", "all processes of host-4"]})
    assert named.endswith("; 5 restarts; faults of hosts: link of host-3, all processes of host-4")
