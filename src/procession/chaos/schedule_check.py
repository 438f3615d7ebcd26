"""The schedule check: whether a recorded schedule can be run. Pure.

Invariant: an invalid step is reported before anything is started, with its name. A schedule without a step is invalid
too, because somebody may have edited the file.
"""

from __future__ import annotations

from collections.abc import Sequence

from procession.chaos.fault_injector import FaultInjector
from procession.chaos.faulty_producer import MANNERS
from procession.chaos.faulty_sink import BEHAVIOURS
from procession.chaos.proxy import ProxyFault
from procession.chaos.scenario import (
    ALL,
    DRIVER,
    GATEWAYS,
    HOMES,
    LINKS,
    PARTS,
    RIGHT,
    THIRD,
    FaultAction,
    FaultStep,
    ScenarioRun,
)

BY_HARNESS = frozenset({FaultAction.ROGUE, FaultAction.FORGET, FaultAction.JOIN, FaultAction.MOVE})
"""Steps that the harness does itself; the fault injector does all others."""


def objection(runs: Sequence[ScenarioRun]) -> str:
    """Return the first invalid step, and why; empty if all are valid."""
    if not runs:
        return "it has no runs"
    for run in runs:
        for step in run.steps:
            if why := _why_not(step):
                return f"{run.scenario!r} cannot do {str(step)!r}: {why}"
    return ""


def _why_not(step: FaultStep) -> str:
    if step.do not in BY_HARNESS and not hasattr(FaultInjector, f"_{step.do.name.lower()}"):
        return "this action is unknown"
    if step.delay_s < 0 or step.seconds < 0:
        return "a time is negative"
    match step.do:
        case FaultAction.NETWORK:
            try:
                ProxyFault.parse(step.detail)
            except ValueError as error:
                return str(error)
            return _one_of(step.on, LINKS)
        case FaultAction.ROGUE:
            return _one_of(step.detail, MANNERS)
        case FaultAction.BEHAVE:
            names = [one.partition("=")[0] for one in step.detail.split(",")]
            return _one_of(step.on, (RIGHT,)) or next(filter(None, (_one_of(name, BEHAVIOURS) for name in names)), "")
        case FaultAction.WORKER | FaultAction.EXECUTOR if not (step.detail in ("", ALL) or step.detail.isdecimal()):
            return f"{step.detail!r} is not a number of a process"
        case FaultAction.BAD_SYNC if step.detail and not step.detail.isdecimal():
            return f"{step.detail!r} is not a number of a sync"
        case FaultAction.WORKER | FaultAction.EXECUTOR | FaultAction.MASTER:
            return _one_of(step.on, (DRIVER,))
        case FaultAction.CLOCK if not step.detail.lstrip("-").isdigit():
            return f"{step.detail!r} is not a number of seconds"
        case FaultAction.FORGET:
            return _one_of(step.detail, ("committed", "prepared"))
        case FaultAction.NOTHING:
            return ""
        case FaultAction.MOVE:
            return _one_of(step.on, tuple(HOMES)) or _one_of(step.detail, (*GATEWAYS, THIRD))
        case FaultAction.JOIN | FaultAction.LEAVE:
            return _one_of(step.on, (*GATEWAYS, THIRD))
        case _:
            return _one_of(step.on, (*PARTS, THIRD))


def _one_of(name: str, names: Sequence[str]) -> str:
    return "" if name in names else f"{name!r} is none of {', '.join(names)}"
