"""Checks whether a recorded schedule can be run.

Invariant: an invalid step is reported by name before any process is started. A schedule without a step is invalid
too, because a user may have edited the file.
"""

from __future__ import annotations

from collections.abc import Sequence

from procession.chaos.fault_injector import FaultInjector
from procession.chaos.faulty_producer import PRODUCER_FAULTS
from procession.chaos.faulty_sink import BEHAVIOURS
from procession.chaos.proxy import ProxyFault
from procession.chaos.scenario import (
    ALL,
    DRIVER,
    GATEWAYS,
    HOMES,
    RIGHT,
    SAME_DIRECTORY,
    STANDARD,
    THIRD,
    ClusterParts,
    FaultAction,
    FaultStep,
    ScenarioRun,
)
from procession.chaos.scenario_catalogue import cluster_of

BY_HARNESS = frozenset(
    {
        FaultAction.FAULTY_PRODUCER,
        FaultAction.FORGET,
        FaultAction.JOIN,
        FaultAction.LOSE,
        FaultAction.MOVE,
        FaultAction.RACE,
    }
)
"""Steps that the harness performs itself; the fault injector performs all others."""
ANYWHERE = frozenset({FaultAction.LOSE, FaultAction.RACE})
STANDARD_ONLY = (BY_HARNESS - ANYWHERE) | {FaultAction.LEAVE, FaultAction.BEHAVE, FaultAction.MASTER}
"""Steps that need the parts of the standard cluster."""


def schedule_problem(runs: Sequence[ScenarioRun]) -> str:
    """Return the first invalid step with the reason; empty if all are valid."""
    if not runs:
        return "it has no runs"
    for run in runs:
        cluster = cluster_of(run.scenario)
        for step in run.steps:
            if why := _why_not(step, cluster):
                return f"{run.scenario!r} cannot do {str(step)!r}: {why}"
    return ""


def _why_not(step: FaultStep, cluster: ClusterParts) -> str:
    if step.do not in BY_HARNESS and not hasattr(FaultInjector, f"_{step.do.name.lower()}"):
        return "this action is unknown"
    if step.delay_s < 0 or step.seconds < 0:
        return "a time is negative"
    if (step.do is FaultAction.RACE and cluster is STANDARD) or (step.do in STANDARD_ONLY and cluster is not STANDARD):
        return f"the cluster {cluster.name!r} cannot do that"
    if step.do is FaultAction.LOSE and not cluster.services:
        return f"the cluster {cluster.name!r} replicates no directories"
    match step.do:
        case FaultAction.NETWORK:
            try:
                ProxyFault.parse(step.detail)
            except ValueError as error:
                return str(error)
            return _one_of(step.on, cluster.links)
        case FaultAction.RACE if step.detail != SAME_DIRECTORY and not step.detail.startswith("sink:"):
            return f"{step.detail!r} is neither {SAME_DIRECTORY} nor a fault point of a sink"
        case FaultAction.RACE:
            return _one_of(step.on, [part for part in cluster.parts if part.startswith("sink-")])
        case FaultAction.FAULTY_PRODUCER:
            return _one_of(step.detail, PRODUCER_FAULTS)
        case FaultAction.BEHAVE:
            names = [setting.partition("=")[0] for setting in step.detail.split(",")]
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
            return _one_of(step.on, (*cluster.parts, *((THIRD,) if cluster is STANDARD else ())))


def _one_of(name: str, names: Sequence[str]) -> str:
    return "" if name in names else f"{name!r} is none of {', '.join(names)}"
