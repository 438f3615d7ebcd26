"""Machines are lost with their disks, on a cluster of real processes with three object services.

The short tests start no cluster. `make test-all` runs each scenario briefly with a fixed seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from procession.chaos.chaos_workload import Load
from procession.chaos.harness import Harness
from procession.chaos.machine_cluster import is_member
from procession.chaos.machine_scenarios import LOST_MACHINES, MACHINES
from procession.chaos.scenario import FaultAction, ScenarioRun, schedule
from procession.chaos.systems import RunningCluster, running
from procession.sos.volume_rules import ObjectHead, ObjectState, QuorumConfig, VolumeState
from procession.verify.verdict import Outcome

SEED = 5
STEPS_MAX = 6
LOAD = Load(rate=150.0, seconds=10.0)
DEADLINE_S = 120.0
A, B, C = (bytes([number]) * 16 for number in range(3))


def copy(identity: bytes, members: tuple[bytes, ...], *, is_joint: bool = False) -> VolumeState:
    config = QuorumConfig(members, 2)
    head = ObjectHead(0, 0, 0, config, (config,) if is_joint else ())
    return VolumeState(identity, objects={1: ObjectState(head, 0, 0, 0)})


def test_a_copy_counts_again_when_it_is_a_member_and_the_membership_change_is_complete() -> None:
    assert is_member(copy(A, (A, B, C)))
    assert not is_member(copy(A, (A, B, C), is_joint=True))
    assert not is_member(copy(A, (B, C)))
    assert not is_member(VolumeState(A))
    assert not is_member(None)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running(MACHINES, tmp_path_factory.mktemp("machines"), lambda: None) as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("name", [scenario.name for scenario in LOST_MACHINES])
def test_every_record_is_committed_once_in_order_whichever_machine_is_lost(cluster: RunningCluster, name: str) -> None:
    scenario = next(scenario for scenario in LOST_MACHINES if scenario.name == name)
    run = ScenarioRun(name, schedule(scenario, random.Random(SEED))[:STEPS_MAX])
    outputs, workload = cluster.outputs, cluster.make_workload
    harness = Harness(
        cluster.cluster,
        seed=SEED,
        load=LOAD,
        deadline_s=DEADLINE_S,
        outputs=outputs,
        parts=MACHINES,
        make_workload=workload,
    )
    history = harness.run([run])
    assert history.outcome is Outcome.CLEAN, (
        f"{history.sentence()}\n{[failure.log_tails for failure in history.failures]}"
    )
    assert sum(history.losses.values()) == sum(step.do is FaultAction.LOSE for step in run.steps)
    assert not history.recoveries.down
