"""The schedule check: whether a schedule that was written down can be carried out. Pure.

The one rule: what nobody could do is said before anything is started, and names the step; a schedule without a step
has nothing to say either. Before it a file that somebody may have edited; after it the harness.
"""

from __future__ import annotations

from collections.abc import Sequence

from procession.chaos.fault_injector import FaultInjector
from procession.chaos.faulty_producer import MANNERS
from procession.chaos.faulty_sink import BEHAVIOURS
from procession.chaos.proxy import ProxyFault
from procession.chaos.scenario import ALL, DRIVER, GATEWAYS, HOMES, LINKS, PARTS, RIGHT, THIRD, Do, Run, Step

BY_HARNESS = frozenset({Do.ROGUE, Do.FORGET, Do.JOIN, Do.MOVE})
"""Steps that the harness itself does; all others are the hands'."""


def objection(runs: Sequence[Run]) -> str:
    """The first thing that cannot be done, and why; nothing if all of it can be."""
    if not runs:
        return "it holds no run"
    for run in runs:
        for step in run.steps:
            if why := _why_not(step):
                return f"{run.scenario!r} cannot do {str(step)!r}: {why}"
    return ""


def _why_not(step: Step) -> str:
    if step.do not in BY_HARNESS and not hasattr(FaultInjector, f"_{step.do.name.lower()}"):
        return "nobody knows how"
    if step.delay_s < 0 or step.seconds < 0:
        return "time does not go back"
    match step.do:
        case Do.NETWORK:
            try:
                ProxyFault.parse(step.detail)
            except ValueError as error:
                return str(error)
            return _one_of(step.on, LINKS)
        case Do.ROGUE:
            return _one_of(step.detail, MANNERS)
        case Do.BEHAVE:
            names = [one.partition("=")[0] for one in step.detail.split(",")]
            return _one_of(step.on, (RIGHT,)) or next(filter(None, (_one_of(name, BEHAVIOURS) for name in names)), "")
        case Do.WORKER | Do.EXECUTOR if not (step.detail in ("", ALL) or step.detail.isdecimal()):
            return f"{step.detail!r} is no number of a process"
        case Do.BAD_SYNC if step.detail and not step.detail.isdecimal():
            return f"{step.detail!r} is no number of a sync"
        case Do.WORKER | Do.EXECUTOR | Do.MASTER:
            return _one_of(step.on, (DRIVER,))
        case Do.CLOCK if not step.detail.lstrip("-").isdigit():
            return f"{step.detail!r} is no number of seconds"
        case Do.FORGET:
            return _one_of(step.detail, ("committed", "prepared"))
        case Do.NOTHING:
            return ""
        case Do.MOVE:
            return _one_of(step.on, tuple(HOMES)) or _one_of(step.detail, (*GATEWAYS, THIRD))
        case Do.JOIN | Do.LEAVE:
            return _one_of(step.on, (*GATEWAYS, THIRD))
        case _:
            return _one_of(step.on, (*PARTS, THIRD))


def _one_of(name: str, names: Sequence[str]) -> str:
    return "" if name in names else f"{name!r} is none of {', '.join(names)}"
