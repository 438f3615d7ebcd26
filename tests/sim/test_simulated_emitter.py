"""An emitter on a simulated host. Whatever dies, the output is complete and visible once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from procession.commit.emitter_session import EmitterSession
from procession.sim.fault_plan import FaultPlan, PlannedFault
from procession.sim.runner import SCHEDULE, plan_of
from procession.sim.seed_blocks import seeded
from procession.sim.simulated_emitter import EMITTER
from procession.sim.world import World, WorldOutcome

KINDS = ("kill", "kill", "cut", "power", "pause", "half-close", "stop")


def with_faults(plan: FaultPlan) -> FaultPlan:
    """Return the plan with faults of the emitter: one for each fault of another part, at the same step."""
    more = [
        PlannedFault(EMITTER, fault.step, KINDS[number % len(KINDS)], fault.seconds, fault.delay_s)
        for number, fault in enumerate(plan.faults)
        if not fault.is_at_edge
    ]
    return replace(plan, faults=(*plan.faults, *more))


def run(seed: int, *, is_recorded: bool = False) -> WorldOutcome:
    plan = with_faults(plan_of(seed))
    world = World(plan, seeded(plan.seed ^ SCHEDULE), is_recorded=is_recorded, has_emitter=True)
    outcome = world.run()
    world.dismantle()
    return outcome


def first_breach(seeds: range) -> str | None:
    for seed in seeds:
        if (breach := run(seed).breach) is not None:
            return f"seed {seed}: {breach}"
    return None


def test_the_output_is_complete_and_visible_once_whatever_dies() -> None:
    assert first_breach(range(60)) is None


@pytest.mark.slow
def test_the_output_is_complete_and_visible_once_in_many_runs() -> None:
    assert first_breach(range(60, 20_000)) is None


def test_a_run_depends_on_its_seed_only() -> None:
    for seed in range(3):
        assert run(seed, is_recorded=True).event_log == run(seed, is_recorded=True).event_log != ()


def test_runs_have_faults_of_the_emitter_within_rounds() -> None:
    kinds = {fault.kind for seed in range(20) for fault in run(seed).injected if fault.part == EMITTER}
    assert {"kill", "cut"} <= kinds


def test_an_emitter_that_confirms_what_it_did_not_send_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: the emitter sends phase 2 as an abort."""
    do = EmitterSession._do

    def inverted(self: EmitterSession, request: object) -> None:
        changed = replace(request, commit=False) if hasattr(request, "commit") else request  # type: ignore[type-var]
        do(self, changed)  # type: ignore[arg-type]

    monkeypatch.setattr(EmitterSession, "_do", inverted)
    assert first_breach(range(5)) is not None
