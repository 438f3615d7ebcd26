"""Searches for the first seed whose run breaks an invariant, for simulations of replicas."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from procession.sim.lost_machine_runs import SCHEDULE
from procession.sim.oracle import InvariantViolation
from procession.sim.replica_world import make_replica_plan

MakeWorld = Callable[..., AbstractContextManager[Any]]


def first_breach(make_world: MakeWorld, seeds: range) -> tuple[int, InvariantViolation] | None:
    for seed in seeds:
        with make_world(make_replica_plan(random.Random(seed)), random.Random(seed ^ SCHEDULE)) as world:
            if (found := world.run()) is not None:
                return seed, found
    return None


def event_log(make_world: MakeWorld, seed: int) -> list[str]:
    """Return the events of one run."""
    with make_world(make_replica_plan(random.Random(seed)), random.Random(seed), is_recorded=True) as world:
        world.run()
        return list(world.site.event_log or ())
