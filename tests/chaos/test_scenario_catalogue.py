"""The catalogue of scenarios: each can be written down and read again, and each of its steps can be done."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from procession.chaos import faulty_sink
from procession.chaos.fault_injector import FaultInjector
from procession.chaos.faulty_producer import PRODUCER_FAULTS, FaultyProducer
from procession.chaos.proxy import ProxyFault
from procession.chaos.scenario import (
    CONTROL_THIRD,
    GATEWAYS,
    HOMES,
    LINKS,
    RIGHT,
    SAME_DIRECTORY,
    STANDARD,
    THIRD,
    TO_THIRD,
    FaultAction,
    FaultStep,
    Scenario,
    ScenarioRun,
    schedule,
)
from procession.chaos.scenario_catalogue import BY_NAME, CATALOGUE, cluster_of
from procession.chaos.schedule_check import BY_HARNESS, schedule_problem

SOURCE = Path(__file__).parents[2] / "src" / "procession"
SEED = 20


def steps(scenario: Scenario) -> tuple[FaultStep, ...]:
    return schedule(scenario, random.Random(SEED))


@pytest.mark.parametrize("scenario", CATALOGUE, ids=lambda scenario: scenario.name)
def test_a_schedule_that_was_written_is_read_back_unchanged(scenario: Scenario) -> None:
    run = ScenarioRun(scenario.name, steps(scenario))
    assert ScenarioRun.from_dict(json.loads(json.dumps(run.as_dict()))) == run


@pytest.mark.parametrize("scenario", CATALOGUE, ids=lambda scenario: scenario.name)
def test_every_step_of_a_scenario_can_be_performed(scenario: Scenario) -> None:
    points = set(re.findall(r'faults\.point\("([^"]+)"\)', "".join(path.read_text() for path in SOURCE.rglob("*.py"))))
    assert steps(scenario)
    assert not schedule_problem([ScenarioRun(scenario.name, steps(scenario))])
    for step in steps(scenario):
        match step.do:
            case FaultAction.NETWORK:
                assert step.on in scenario.cluster.links
                ProxyFault.parse(step.detail)
            case FaultAction.BEHAVE:
                assert step.on == RIGHT
                assert step.detail.partition("=")[0] in faulty_sink.BEHAVIOURS
            case FaultAction.ARM:
                assert step.on in scenario.cluster.parts
                assert step.detail in points | {"disk:torn"}
            case FaultAction.RACE:
                assert step.on in scenario.cluster.parts
                assert step.detail in points | {SAME_DIRECTORY}
            case FaultAction.FAULTY_PRODUCER:
                assert step.detail in PRODUCER_FAULTS
                assert hasattr(FaultyProducer, f"_{step.detail}")
            case FaultAction.NOTHING:
                pass
            case FaultAction.MOVE:
                assert step.on in HOMES
                assert step.detail in (*GATEWAYS, THIRD)
            case _:
                assert step.on in (*scenario.cluster.parts, THIRD)
        assert step.do in BY_HARNESS or hasattr(FaultInjector, f"_{step.do.name.lower()}")


@pytest.mark.parametrize("name", [name for name in BY_NAME if name.startswith("network-")])
def test_a_network_fault_hits_every_pair_of_parts(name: str) -> None:
    """The links of the third gateway are excluded, because it joins and leaves."""
    hit = {step.on for step in steps(BY_NAME[name]) if step.do is FaultAction.NETWORK}
    assert hit == {*LINKS} - {TO_THIRD, CONTROL_THIRD}


def test_the_driver_loses_its_connection_to_a_gateway_that_has_just_joined() -> None:
    assert CONTROL_THIRD in {step.on for step in steps(BY_NAME["grow-and-shrink-gateways"])}


def test_every_behaviour_is_described() -> None:
    assert not [name for name in faulty_sink.BEHAVIOURS if f"{name}=" not in (faulty_sink.__doc__ or "")]


def test_names_are_unique_and_every_kind_of_step_is_used() -> None:
    assert len(BY_NAME) == len(CATALOGUE)
    assert {line.do for scenario in CATALOGUE for line in scenario.lines} == set(FaultAction)


@pytest.mark.parametrize("scenario", CATALOGUE, ids=lambda scenario: scenario.name)
def test_a_scenario_runs_on_its_own_cluster(scenario: Scenario) -> None:
    assert cluster_of(scenario.name) is scenario.cluster


def test_a_schedule_that_was_written_by_hand_runs_on_the_standard_cluster() -> None:
    assert cluster_of("by hand") is STANDARD
