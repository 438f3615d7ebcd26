"""The simulator finds each planted bug within twenty thousand runs, and finds nothing without one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from procession.sim.fault_plan import FaultPlan
from procession.sim.oracle import InvariantViolation
from procession.sim.runner import plan_of, run_plan
from tests.sim.planted import BUGS, Bug

RUNS_MAX = 20_000
NEIGHBOURS_MAX = 500
STEPS_APART_MAX = 25
PLANS = Path(__file__).parent / "plans"


def first_breach(start: int, runs: int, *, is_blind: bool = False) -> InvariantViolation | None:
    for seed in range(start, start + runs):
        if (breach := run_plan(plan_of(seed), is_blind=is_blind).breach) is not None:
            return breach
    return None


def neighbours(bug: Bug) -> Iterator[FaultPlan]:
    """Yield the plan that found this bug, then plans with its faults at other steps and with other schedules.

    After a change of the simulator, these plans find a rare bug much sooner than random plans do.
    """
    plan = FaultPlan.from_json((PLANS / f"{bug.plant.__name__}.json").read_text())
    yield plan
    chance = random.Random(0)
    for _ in range(NEIGHBOURS_MAX):
        apart = [chance.randint(-STEPS_APART_MAX, STEPS_APART_MAX) for _ in plan.faults]
        faults = [
            replace(fault, step=max(1, fault.step + steps)) for fault, steps in zip(plan.faults, apart, strict=True)
        ]
        yield replace(plan, seed=chance.getrandbits(32), faults=tuple(faults))


def cases(bugs: Iterable[Bug]) -> list[ParameterSet]:
    return [pytest.param(bug, id=bug.plant.__name__, marks=[pytest.mark.slow] if bug.is_slow else []) for bug in bugs]


@pytest.mark.parametrize("bug", cases(BUGS))
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    if bug.has_plan:
        breach = next(filter(None, (run_plan(plan).breach for plan in neighbours(bug))), None)
    else:
        breach = first_breach(bug.seed, RUNS_MAX - bug.seed)
    assert breach is not None
    assert not breach.sentence.startswith("an exception"), f"the planted bug itself fails: {breach}"


@pytest.mark.parametrize("bug", cases(bug for bug in BUGS if bug.blind_seed is not None))
def test_a_planted_bug_is_found_from_outside(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses only the output of sinks, the acknowledgements of producers and stops; not the checks of internal rules."""
    assert bug.blind_seed is not None
    bug.plant(monkeypatch)
    breach = first_breach(bug.blind_seed, RUNS_MAX - bug.blind_seed, is_blind=True)
    assert breach is not None
    assert not breach.sentence.startswith("an exception"), f"the planted bug itself fails: {breach}"


def test_without_a_planted_bug_nothing_is_found_from_outside() -> None:
    assert first_breach(0, 50, is_blind=True) is None


def test_at_least_ten_bugs_are_planted() -> None:
    assert len({bug.plant for bug in BUGS}) >= 10


def test_without_a_planted_bug_nothing_is_found() -> None:
    assert first_breach(0, 150) is None


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.has_plan], ids=lambda bug: bug.plant.__name__)
def test_without_a_planted_bug_nothing_is_found_near_a_plan(bug: Bug) -> None:
    assert [run_plan(plan).breach for plan in islice(neighbours(bug), 20)] == [None] * 20
