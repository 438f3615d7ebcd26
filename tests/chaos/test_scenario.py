"""Scenarios are values: a seed always gives the same schedule, which can be written and read again."""

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
    THIRD,
    TO_THIRD,
    FaultAction,
    FaultStep,
    Scenario,
    ScenarioRun,
    StepPattern,
    schedule,
)
from procession.chaos.scenario_catalogue import BY_NAME, CATALOGUE
from procession.chaos.schedule_check import BY_HARNESS, schedule_problem

SOURCE = Path(__file__).parents[2] / "src" / "procession"
SEED = 20


def steps(scenario: Scenario, seed: int = SEED) -> tuple[FaultStep, ...]:
    return schedule(scenario, random.Random(seed))


def test_the_same_seed_makes_the_same_schedule_and_another_seed_another() -> None:
    mixed = BY_NAME["mixed"]
    assert steps(mixed, 1) == steps(mixed, 1)
    assert steps(mixed, 1) != steps(mixed, 2)


@pytest.mark.parametrize("scenario", CATALOGUE, ids=lambda scenario: scenario.name)
def test_a_run_that_was_written_down_is_read_back_the_same(scenario: Scenario) -> None:
    run = ScenarioRun(scenario.name, steps(scenario))
    assert ScenarioRun.from_dict(json.loads(json.dumps(run.as_dict()))) == run


@pytest.mark.parametrize("scenario", CATALOGUE, ids=lambda scenario: scenario.name)
def test_what_a_scenario_wants_done_can_be_done(scenario: Scenario) -> None:
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
    """But for the third gateway's, which comes and goes."""
    hit = {step.on for step in steps(BY_NAME[name]) if step.do is FaultAction.NETWORK}
    assert hit == {*LINKS} - {TO_THIRD, CONTROL_THIRD}


def test_the_driver_loses_its_connection_to_a_gateway_that_has_just_joined() -> None:
    assert CONTROL_THIRD in {step.on for step in steps(BY_NAME["grow-and-shrink-gateways"])}


def test_every_behaviour_is_described() -> None:
    assert not [name for name in faulty_sink.BEHAVIOURS if f"{name}=" not in (faulty_sink.__doc__ or "")]


def test_names_are_unique_and_every_kind_of_step_is_used() -> None:
    assert len(BY_NAME) == len(CATALOGUE)
    assert {line.do for scenario in CATALOGUE for line in scenario.lines} == set(FaultAction)


def test_each_combination_comes_in_turn_where_a_line_says_so() -> None:
    line = StepPattern(FaultAction.KILL, ("a", "b"), times=2, details=("x", "y"), is_each=True)
    drawn = [(step.on, step.detail) for step in steps(Scenario("s", "", (line,)))]
    assert drawn == [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")] * 2


def test_a_step_says_in_words_what_it_does() -> None:
    assert str(FaultStep(FaultAction.PAUSE, "gateway", seconds=1.5)) == "pause on gateway for 1.5 s"
    assert (
        str(FaultStep(FaultAction.ARM, "sink-left", detail="sink:before-vote")) == "arm sink:before-vote on sink-left"
    )
