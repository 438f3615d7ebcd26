"""Scenarios with other systems: sinks die around the external commit, systems go away, two sinks race."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from procession.chaos.scenario import SAME_DIRECTORY, FaultAction, FaultStep, Scenario, schedule
from procession.chaos.system_parts import BROKER, DATABASE, SYSTEM_CLUSTERS
from procession.chaos.system_scenarios import AROUND, SYSTEMS

CONNECTORS = Path(__file__).parents[2] / "src" / "procession" / "connectors"
ALL = pytest.mark.parametrize("scenario", SYSTEMS, ids=lambda scenario: scenario.name)


def steps(scenario: Scenario) -> tuple[FaultStep, ...]:
    return schedule(scenario, random.Random(1))


@ALL
def test_a_scenario_has_the_name_of_its_system_and_uses_parts_of_its_cluster(scenario: Scenario) -> None:
    system = scenario.name.partition("-")[0]
    assert system in {*(cluster.name for cluster in SYSTEM_CLUSTERS), "parquet", "delta", "iceberg"}
    assert scenario.cluster in SYSTEM_CLUSTERS
    known = {"", *scenario.cluster.parts, *scenario.cluster.links}
    assert {step.on for step in steps(scenario)} <= known


def test_every_scenario_with_systems_kills_a_sink_or_a_system() -> None:
    for cluster in SYSTEM_CLUSTERS:
        own = [scenario for scenario in SYSTEMS if scenario.cluster is cluster]
        hit = {on for scenario in own for line in scenario.lines for on in line.on}
        assert hit >= {part for part in cluster.parts if part.startswith("sink-")}
        assert hit >= set(cluster.dependants) - {"source-broker"} or not cluster.dependants


def test_every_sink_dies_at_each_point_around_the_commit() -> None:
    armed: dict[str, set[str]] = {}
    for step in (step for scenario in SYSTEMS for step in steps(scenario) if step.do is FaultAction.ARM):
        armed.setdefault(step.on, set()).add(step.detail)
    sinks = {part for cluster in SYSTEM_CLUSTERS for part in cluster.parts if part.startswith("sink-")}
    assert set(armed) == sinks
    assert all(points >= set(AROUND) for sink, points in armed.items() if sink != "sink-keyed")


def test_a_sink_dies_at_the_points_within_the_commit_of_its_system() -> None:
    armed = {step.detail for scenario in SYSTEMS for step in steps(scenario) if step.do is FaultAction.ARM}
    for module in ("kafka_sink", "postgres_session", "postgres_table", "postgres_staging"):
        text = (CONNECTORS / f"{module}.py").read_text()
        assert set(re.findall(r'faults\.point\("(sink:(?:kafka|postgres)[^"]+)"\)', text)) <= armed


@pytest.mark.parametrize("server", [BROKER, DATABASE])
def test_a_server_is_killed_stays_away_and_dies_with_a_sink_and_during_its_recovery(server: str) -> None:
    for scenario in (found for found in SYSTEMS if found.name.endswith(f"-crash-{server}")):
        found = [(step.do, step.on == server, step.is_settled) for step in steps(scenario)]
        assert found == [
            (FaultAction.KILL, True, True),
            (FaultAction.KILL, True, True),
            (FaultAction.GONE, True, True),
            (FaultAction.KILL, False, True),
            (FaultAction.KILL, True, False),
            (FaultAction.KILL, True, True),
            (FaultAction.KILL, False, False),
        ]


@pytest.mark.parametrize("name", ["kafka-network", "postgres-network"])
def test_only_a_part_that_uses_a_link_is_killed_while_the_link_is_down(name: str) -> None:
    (scenario,) = (found for found in SYSTEMS if found.name == name)
    found = steps(scenario)
    for down, kill, again in zip(found[::3], found[1::3], found[2::3], strict=True):
        assert kill.on in scenario.cluster.dependants[down.on]
        assert not kill.is_settled
        assert (again.do, again.on, again.detail) == (down.do, down.on, down.detail)
    assert {step.detail for step in found if step.detail} == {"cut", "silent", "delay:0.3"}


@pytest.mark.parametrize("scenario", [found for found in SYSTEMS if found.name.endswith("-two-sinks")])
def test_two_sinks_race_on_one_directory_and_on_a_copy_within_the_commit(scenario: Scenario) -> None:
    races: dict[str, list[str]] = {}
    for step in steps(scenario):
        assert step.do is FaultAction.RACE
        races.setdefault(step.on, []).append(step.detail)
    for details in races.values():
        assert details[0] == SAME_DIRECTORY
        assert len(details) > 1
