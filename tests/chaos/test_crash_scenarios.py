"""Scenarios of crashes: every part dies, alone and with others, and at every fault point that it comes to."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest

from procession.chaos.crash_scenarios import CRASHES
from procession.chaos.scenario import DRIVER, GATEWAY, LEFT, PARTS, RIGHT, FaultAction, FaultStep, schedule

SOURCE = Path(__file__).parents[2] / "src" / "procession"
NAMED = {scenario.name: scenario for scenario in CRASHES}
ELSEWHERE = {
    "driver:claimed": "at a start; races of drivers are there",
    "driver:idle": "between epochs; a driver is killed at any time",
    "gateway:after-order": "with event-time order only",
    "gateway:before-order": "with event-time order only",
    "gateway:after-retired": "after an hour without records",
    "gateway:before-retired": "after an hour without records",
}
"""Fault points that a pipeline without event-time order does not come to, or that need another scenario."""


def steps(name: str, seed: int = 1) -> tuple[FaultStep, ...]:
    return schedule(NAMED[name], random.Random(seed))


def points_of(part: str, *folders: str) -> set[str]:
    texts = [path.read_text() for folder in folders for path in (SOURCE / folder).rglob("*.py")]
    return set(re.findall(rf'faults\.point\("({part}:[^"]+)"\)', "".join(texts)))


def test_gateway_and_driver_die_at_each_fault_point_that_they_come_to() -> None:
    armed = {step.detail for name in NAMED for step in steps(name) if step.do is FaultAction.ARM}
    found = points_of("gateway", "gateway") | points_of("driver", "driver", "commit", "spark")
    assert len(found) > 10
    assert {point for point in armed if not point.startswith("sink:")} == found - set(ELSEWHERE)
    assert found >= set(ELSEWHERE)


def test_a_sink_dies_at_each_fault_point_of_the_protocol() -> None:
    armed = {(step.on, step.detail) for step in steps("crash-sink-in-a-round")}
    protocol = {"sink:before-vote", "sink:after-vote-before-reply", "sink:before-commit", "sink:after-commit"}
    assert armed == set(itertools.product((LEFT, RIGHT), protocol))
    assert protocol <= points_of("sink", "sdk")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *itertools.permutations([DRIVER, LEFT, GATEWAY], 2),
        *itertools.permutations([LEFT, RIGHT], 2),
        *itertools.permutations([GATEWAY, "source-0"], 2),
        *itertools.permutations([DRIVER, "source-0"], 2),
        *itertools.permutations([LEFT, "source-0"], 2),
    ],
)
def test_every_kind_of_part_dies_while_every_other_comes_back(first: str, second: str) -> None:
    kinds = [part.removeprefix("sink-").removesuffix("-0") for part in (first, second)]
    found = steps("crash-{}-then-{}".format(*kinds))
    assert [step.on for step in found] == [first, second] * (len(found) // 2)
    assert all(step.is_settled is (step.on == first) for step in found)
    assert all(step.delay_s <= 1.0 for step in found)


def test_a_power_failure_kills_everything_at_once() -> None:
    kills = [step for step in steps("crash-all") if step.do is FaultAction.KILL]
    assert [step.on for step in kills] == list(PARTS)
    assert all(step.delay_s == 0 and not step.is_settled for step in kills)


@pytest.mark.parametrize("name", [name for name in NAMED if "recovering" in name])
def test_a_part_is_killed_again_before_it_has_recovered(name: str) -> None:
    found = steps(name)
    for first in (number for number, step in enumerate(found) if step.is_settled):
        assert [step.on for step in found[first : first + 3]] == [found[first].on] * 3
        assert not any(step.is_settled for step in found[first + 1 : first + 3])
