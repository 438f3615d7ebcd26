"""Shrinks a failing plan as far as possible, so that a person can read its event log.

Invariant: every smaller plan is run, and is kept only if it also fails. The runner prints the result and its event
log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from procession.sim.fault_plan import FaultPlan, SinkPlan
from procession.sim.oracle import InvariantViolation

TRIES_MAX = 600
SCHEDULES = 3
"""Number of schedules that are tried for each smaller plan."""

Run = Callable[[FaultPlan], InvariantViolation | None]


def shrink(plan: FaultPlan, run: Run, tries_max: int = TRIES_MAX) -> FaultPlan:
    """Return the smallest plan found that still fails; `plan` itself must fail."""
    tries = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(plan):
            for schedule in range(SCHEDULES):
                if (tries := tries + 1) > tries_max:
                    return plan
                moved = replace(candidate, seed=candidate.seed + schedule * 1_000_000_007)
                if run(moved) is not None:
                    plan, is_smaller = moved, True
                    break
            if is_smaller:
                break
    return plan


def _smaller(plan: FaultPlan) -> Iterator[FaultPlan]:
    """Yield plans that are smaller by one step, the largest steps first."""
    faults = plan.faults
    if len(faults) > 3:
        half = len(faults) // 2
        yield plan.with_faults(faults[:half])
        yield plan.with_faults(faults[half:])
    for number in range(len(faults)):
        yield plan.with_faults(faults[:number] + faults[number + 1 :])
    if plan.gateways > 1:
        yield _without(replace(plan, gateways=plan.gateways - 1), plan.gateway_parts[-1])
    if len(plan.streams) > 1:
        yield _without(replace(plan, streams=plan.streams[:-1]), f"producer-{len(plan.streams) - 1}")
    if len(plan.sinks) > 1:
        yield _without(replace(plan, sinks=plan.sinks[:-1]), f"sink-{len(plan.sinks) - 1}")
    for number, stream in enumerate(plan.streams):
        for simpler in (
            replace(stream, has_twin=False),
            replace(stream, replays="no"),
            replace(stream, is_dense=True),
            replace(stream, records=stream.records // 2),
            replace(stream, records=max(0, stream.records - 1)),
        ):
            if simpler != stream:
                yield replace(plan, streams=(*plan.streams[:number], simpler, *plan.streams[number + 1 :]))
    for number, sink in enumerate(plan.sinks):
        if sink != SinkPlan():
            yield replace(plan, sinks=(*plan.sinks[:number], SinkPlan(), *plan.sinks[number + 1 :]))
    for simpler_plan in (
        replace(plan, loss=0.0),
        replace(plan, is_one_machine=False),
        replace(plan, credits_max=16),
        replace(plan, first_home=0),
        replace(plan, tasks=(1,)),
        replace(plan, tasks=plan.tasks[:1]),
    ):
        if simpler_plan != plan:
            yield simpler_plan


def _without(plan: FaultPlan, part: str) -> FaultPlan:
    """Return the plan without the faults of a removed part."""
    return plan.with_faults(tuple(fault for fault in plan.faults if not fault.part.startswith(part)))
