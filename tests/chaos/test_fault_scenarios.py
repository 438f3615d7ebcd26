"""Scenarios of other faults: undisturbed, while a part is killed, in both directions, and undone at the end."""

from __future__ import annotations

import random

import pytest

from procession.chaos.fault_scenarios import FAULT_SCENARIOS
from procession.chaos.faulty_producer import PRODUCER_FAULTS
from procession.chaos.proxy import HAS_WAY, ProxyFault
from procession.chaos.scenario import RIGHT, FaultAction, FaultStep, schedule

NAMED = {scenario.name: scenario for scenario in FAULT_SCENARIOS}
SEEDS = range(20)


def steps(name: str, seed: int = 1) -> tuple[FaultStep, ...]:
    return schedule(NAMED[name], random.Random(seed))


@pytest.mark.parametrize("name", [name for name in NAMED if name.startswith("network-")])
def test_a_part_is_killed_during_each_fault_of_the_network(name: str) -> None:
    for seed in SEEDS:
        found = steps(name, seed)
        assert [step.do for step in found] == [FaultAction.NETWORK, FaultAction.KILL] * (len(found) // 2)
        for fault, kill in zip(found[::2], found[1::2], strict=True):
            assert not kill.is_settled
            assert kill.delay_s < fault.seconds or not fault.seconds


@pytest.mark.parametrize("name", [name for name in NAMED if name.startswith("network-")])
def test_a_fault_of_one_direction_happens_in_both_on_links_that_are_alone(name: str) -> None:
    faults = [(step.on, ProxyFault.parse(step.detail)) for step in steps(name) if step.do is FaultAction.NETWORK]
    ways = {(on, step.detail.partition(":")[2]) for (on, _), step in zip(faults, steps(name)[::2], strict=True)}
    if faults[0][1].kind in HAS_WAY:
        assert {way for _, way in ways} == {"up", "down"}
        assert {on for on, way in ways if way == "up"} & {on for on, way in ways if way == "down"} == {
            "driver-gateway",
            "driver-gateway-1",
            "gateway-gateway",
        }


@pytest.mark.parametrize(
    "name", ["sink-aborts-once", "sink-aborts-on-content", "sink-slow", "sink-hangs", "sink-closes"]
)
def test_each_behaviour_of_a_sink_comes_once_alone_and_once_with_a_kill(name: str) -> None:
    found = steps(name)
    assert [step.do for step in found] == [FaultAction.BEHAVE, FaultAction.BEHAVE, FaultAction.KILL] * (len(found) // 3)
    assert all(step.on == RIGHT for step in found if step.do is FaultAction.BEHAVE)
    alone, disturbed = ([step.detail for step in found[start::3]] for start in (0, 1))
    assert alone == disturbed
    assert len(set(alone)) == len(alone)


def test_every_fault_of_a_producer_happens_while_parts_are_killed() -> None:
    happened = set()
    for name in (name for name in NAMED if name.startswith("producer-")):
        kinds = [step.do for step in steps(name)]
        assert kinds[-2:] == [FaultAction.KILL] * 2
        happened |= {step.detail for step in steps(name) if step.do is FaultAction.FAULTY_PRODUCER}
    assert happened == set(PRODUCER_FAULTS)


@pytest.mark.parametrize("name", [name for name in NAMED if "clock" in name])
def test_every_clock_is_right_again_at_the_end(name: str) -> None:
    last = {step.on: step.detail for step in steps(name) if step.do is FaultAction.CLOCK}
    assert len(last) == 4
    assert set(last.values()) == {"0"}


def test_syncs_fail_at_different_places() -> None:
    failed = {step.detail for seed in SEEDS for step in steps("disk-fails-to-sync", seed)}
    assert failed == {str(number) for number in range(1, 9)}
