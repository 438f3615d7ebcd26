"""Scenarios of lost machines: all are lost, and never more of them than the others can restore."""

from __future__ import annotations

import random

import pytest

from procession.chaos.machine_scenarios import LOST_MACHINES, SERVICES, WRITERS
from procession.chaos.scenario import FaultAction, FaultStep, ScenarioRun, schedule
from procession.chaos.schedule_check import schedule_problem


def test_every_part_and_every_object_service_is_lost_in_some_scenario() -> None:
    lost = {
        on for scenario in LOST_MACHINES for line in scenario.lines if line.do is FaultAction.LOSE for on in line.on
    }
    assert lost == {*WRITERS, *SERVICES}


@pytest.mark.parametrize("seed", range(20))
def test_no_second_object_service_is_lost_before_the_first_has_its_data_again(seed: int) -> None:
    for scenario in LOST_MACHINES:
        lost: set[str] = set()
        for step in schedule(scenario, random.Random(seed)):
            if step.is_settled:
                lost.clear()
            if step.do is FaultAction.LOSE and step.on in SERVICES:
                lost.add(step.on)
            assert len(lost) <= 1, scenario.name


def test_the_loss_of_a_machine_is_refused_in_a_scenario_without_replicas() -> None:
    steps = (FaultStep(FaultAction.LOSE, "gateway"),)
    assert "replicates no directories" in schedule_problem([ScenarioRun("crash-gateway", steps)])
    assert not schedule_problem([ScenarioRun("machine-lost-gateway", steps)])
