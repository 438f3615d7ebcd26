"""Scenarios with real brokers, databases and tables at the ends, each briefly and by a fixed seed.

Every test run has one short round with Kafka and one with PostgreSQL; `make test-all` has all of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from _pytest.mark.structures import ParameterSet

from procession.chaos.chaos_workload import Load
from procession.chaos.harness import Harness
from procession.chaos.scenario import ClusterParts, FaultStep, ScenarioRun, schedule
from procession.chaos.scenario_catalogue import BY_NAME
from procession.chaos.system_parts import (
    KAFKA_CLUSTER,
    LAKE_CLUSTER,
    POSTGRES_CLUSTER,
    STORE_CLUSTER,
    SYSTEM_CLUSTERS,
)
from procession.chaos.systems import RunningCluster, running
from procession.verify.verdict import Outcome
from tests.systems import kafka_broker, postgres_server
from tests.systems.kafka_broker import needs_kafka
from tests.systems.postgres_server import needs_postgres
from tests.systems.s3_server import needs_s3

SEED = 5
STEPS_MAX = 4
LOAD = Load(rate=150.0, seconds=10.0)
DEADLINE_S = 120.0
OF_THE_MACHINE = "the harness itself was stopped"

SHORT = {
    "kafka-crash-around-the-commit": ("sink:before-commit", "sink:kafka-sent", "sink:kafka-committed"),
    "postgres-crash-around-the-commit": ("sink:before-vote", "sink:before-commit", "sink:after-output-commit"),
}
"""The scenarios of every test run: a sink dies before, within and after the commit. The values are fault points."""
MARKS = {
    KAFKA_CLUSTER.name: (needs_kafka, needs_postgres),
    POSTGRES_CLUSTER.name: (needs_postgres,),
    LAKE_CLUSTER.name: (),
    STORE_CLUSTER.name: (needs_s3,),
}


def scenarios() -> Iterator[ParameterSet]:
    """Yield all scenarios with systems, grouped by cluster, the short ones of a cluster first."""
    for cluster in SYSTEM_CLUSTERS:
        own = [name for name, scenario in BY_NAME.items() if scenario.cluster is cluster]
        for name in sorted(own, key=lambda name: name not in SHORT):
            marks = [*MARKS[cluster.name], *([] if name in SHORT else [pytest.mark.slow])]
            yield pytest.param(cluster, name, id=name, marks=marks)


def brief(name: str) -> ScenarioRun:
    """Return the first steps of a scenario; of a short one, its steps on one sink."""
    steps: tuple[FaultStep, ...] = schedule(BY_NAME[name], random.Random(SEED))
    if name in SHORT:
        steps = tuple(step for step in steps if step.detail in SHORT[name] and step.on == steps[0].on)
    return ScenarioRun(name, steps[:STEPS_MAX])


@dataclass(frozen=True)
class World:
    parts: ClusterParts
    started: RunningCluster


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    parts: ClusterParts = request.param
    if parts is KAFKA_CLUSTER:
        kafka_broker.installed()
    if parts in (KAFKA_CLUSTER, POSTGRES_CLUSTER):
        postgres_server.programs()
    with running(parts, tmp_path_factory.mktemp(parts.name), lambda: None) as started:
        yield World(parts, started)


@pytest.mark.parametrize(("world", "name"), list(scenarios()), indirect=["world"])
def test_every_record_is_committed_once_in_order_under_every_fault_of_the_systems(world: World, name: str) -> None:
    started = world.started
    harness = Harness(
        started.cluster,
        seed=SEED,
        load=LOAD,
        deadline_s=DEADLINE_S,
        outputs=started.outputs,
        parts=world.parts,
        make_workload=started.make_workload,
    )
    history = harness.run([brief(name)])
    assert history.outcome is Outcome.CLEAN, (
        f"{history.sentence()}\n{[failure.log_tails for failure in history.failures]}"
    )
    assert not [note for note in history.notes if OF_THE_MACHINE not in note]
    assert history.committed > 0
    assert history.decided > 0
    assert not history.recoveries.down
