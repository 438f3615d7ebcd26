"""Scenarios are values: a seed always gives the same schedule, which can be written and read again."""

from __future__ import annotations

import random

from procession.chaos.scenario import FaultAction, FaultStep, Scenario, StepPattern, schedule
from procession.chaos.scenario_catalogue import BY_NAME

SEED = 20


def steps(scenario: Scenario, seed: int = SEED) -> tuple[FaultStep, ...]:
    return schedule(scenario, random.Random(seed))


def test_the_same_seed_makes_the_same_schedule_and_another_seed_another() -> None:
    mixed = BY_NAME["mixed"]
    assert steps(mixed, 1) == steps(mixed, 1)
    assert steps(mixed, 1) != steps(mixed, 2)


def test_a_line_with_is_each_uses_every_combination_in_turn() -> None:
    line = StepPattern(FaultAction.KILL, ("a", "b"), times=2, details=("x", "y"), is_each=True)
    drawn = [(step.on, step.detail) for step in steps(Scenario("s", "", (line,)))]
    assert drawn == [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")] * 2


def test_a_step_is_printed_in_words() -> None:
    assert str(FaultStep(FaultAction.PAUSE, "gateway", seconds=1.5)) == "pause on gateway for 1.5 s"
    assert (
        str(FaultStep(FaultAction.ARM, "sink-left", detail="sink:before-vote")) == "arm sink:before-vote on sink-left"
    )
