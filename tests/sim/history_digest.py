"""Prints a digest of the history of each seed, in each world: `python -m tests.sim.history_digest SEED...`."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable

from procession.sim.lost_machine_runs import WORLDS, opened
from procession.sim.runner import plan_of, run_plan


def digests(seed: int) -> Iterable[tuple[str, str]]:
    """Return the name of each simulation and a digest of its events."""
    outcome = run_plan(plan_of(seed), is_recorded=True)
    assert outcome.breach is None
    yield "pipeline", digest(str(outcome))
    for name in WORLDS:
        with opened(name, seed, is_recorded=True) as world:
            assert world.run() is None
            history = world.site.event_log, world.site.injected, world.acknowledged, world.writers, world.site.clock.now
            yield name, digest(str(history))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def main(seeds: Iterable[str]) -> None:
    for seed in seeds:
        for world, found in digests(int(seed)):
            print(seed, world, found)


if __name__ == "__main__":
    main(sys.argv[1:])
