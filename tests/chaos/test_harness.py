"""Scenarios on one cluster of real processes, and planted violations that the harness must find.

Each scenario runs briefly with a fixed seed: three in every test run, all in `make test-all`. `make chaos` runs them in
full. The planted violations come last, because the cluster cannot be used after them.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from _pytest.mark.structures import ParameterSet

from procession.chaos.chaos_cluster import ChaosCluster
from procession.chaos.chaos_workload import Load
from procession.chaos.harness import Harness
from procession.chaos.history import History
from procession.chaos.output_monitor import MonitoredOutputs
from procession.chaos.scenario import (
    GATEWAY,
    LEFT,
    RIGHT,
    SOURCES,
    STANDARD,
    FaultAction,
    FaultStep,
    ScenarioRun,
    schedule,
)
from procession.chaos.scenario_catalogue import BY_NAME
from procession.verify.verdict import Outcome

SEED = 3
STEPS_MAX = 3
SECONDS_MAX = 1.5
LOAD = Load(rate=200.0, seconds=10.0, faulty_producer_records=300)
DEADLINE_S = 120.0
"""Long, because other tests may run on the same machine. The test of a stall sets a shorter one."""


SHORT = ("crash-sink-in-a-round", "network-truncates", "producer-repeats")
"""The scenarios of every test run. Only `make test-all` kills the driver, because its restart takes long."""


OF_THE_MACHINE = ("the harness itself was stopped", "was left out")
"""Notes about the machine: it was busy, or has no C compiler. Every other note reports a step without effect."""


def scenarios() -> list[ParameterSet]:
    """Return every scenario of the standard cluster, the short selection first, so that a test run starts one cluster.

    `test_systems` has the scenarios with other systems.
    """
    own = [name for name, scenario in BY_NAME.items() if scenario.cluster is STANDARD]
    names = [*SHORT, *(name for name in own if name not in SHORT)]
    return [pytest.param(name, marks=() if name in SHORT else pytest.mark.slow) for name in names]


def brief(name: str) -> ScenarioRun:
    """Return the first steps of a scenario, shortened; for network faults one step for each link."""
    steps = schedule(BY_NAME[name], random.Random(SEED))
    on_links = {step.on: step for step in steps if step.do is FaultAction.NETWORK}
    chosen = tuple(on_links.values()) if len(on_links) > 2 else steps[:STEPS_MAX]
    return ScenarioRun(name, tuple(replace(step, seconds=min(step.seconds, SECONDS_MAX)) for step in chosen))


class World:
    """The cluster, and the output that all tests so far have committed on it."""

    def __init__(self, cluster: ChaosCluster) -> None:
        self.cluster = cluster
        self.outputs = MonitoredOutputs(cluster.instances(), cluster.decisions)

    def harness(self, deadline_s: float = DEADLINE_S, show: Callable[[History], None] = lambda _: None) -> Harness:
        return Harness(self.cluster, seed=SEED, load=LOAD, deadline_s=deadline_s, outputs=self.outputs, show=show)

    def send_nothing_more(self) -> None:
        for name in SOURCES:
            self.cluster.supervisor.forget(name)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ChaosCluster(tmp_path_factory.mktemp("chaos")) as cluster:
        cluster.start()
        yield World(cluster)


@pytest.mark.parametrize("name", scenarios())
def test_every_record_is_committed_once_in_order_under_every_fault(world: World, name: str) -> None:
    history = world.harness().run([brief(name)])
    assert history.outcome is Outcome.CLEAN, (
        f"{history.sentence()}\n{[failure.log_tails for failure in history.failures]}"
    )
    assert not [note for note in history.notes if not any(cause in note for cause in OF_THE_MACHINE)]
    assert history.committed > 0
    assert not history.recoveries.down
    assert [verdict.outcome for verdict in history.verdicts.values()] == [Outcome.CLEAN] * 2


NOTHING = ScenarioRun("none", (FaultStep(FaultAction.NOTHING, delay_s=600.0),))


@pytest.mark.parametrize(
    ("part", "number", "sentence"),
    [
        pytest.param(LEFT, signal.SIGTERM, "sink-left ended with status 0", marks=pytest.mark.slow),
        (GATEWAY, signal.SIGKILL, "gateway ended with signal 9"),
    ],
)
def test_a_death_that_no_step_caused_is_a_failure(
    world: World, part: str, number: signal.Signals, sentence: str
) -> None:
    def kill_once(history: History) -> None:
        pid = world.cluster.supervisor.pid(part)
        if history.spans and pid is not None and not victims:
            victims.append(pid)
            os.kill(pid, number)

    victims: list[int] = []
    history = world.harness(show=kill_once).run([NOTHING])
    assert history.outcome is Outcome.VIOLATED
    assert history.failures[0].kind == "death"
    assert history.failures[0].sentence.startswith(f"{sentence}, and no injected fault")
    world.send_nothing_more()


@pytest.mark.slow
def test_a_stall_is_a_failure_with_the_last_log_lines_of_every_part(world: World) -> None:
    world.cluster.supervisor.hold(LEFT)
    history = world.harness(deadline_s=5.0).run([NOTHING])
    world.cluster.supervisor.release(LEFT)
    world.send_nothing_more()
    assert history.outcome is Outcome.VIOLATED
    (failure,) = history.failures
    assert failure.kind == "stall"
    assert "nothing was committed, and no fault was active, for 5 s" in failure.sentence
    for part in (GATEWAY, "driver", LEFT, RIGHT):
        assert f"--- {part}.log" in failure.log_tails


@pytest.mark.slow
def test_a_planted_duplicate_is_a_violation(world: World) -> None:
    history = world.harness().run(
        [ScenarioRun("planted", (FaultStep(FaultAction.BEHAVE, RIGHT, detail="double=1", seconds=600.0),))]
    )
    assert history.outcome is Outcome.VIOLATED
    (failure,) = history.failures
    assert failure.kind == "violation"
    assert "right: " in failure.sentence
    assert "1 doubled" in failure.sentence
