"""The simulator's runner: seeds in, a verdict out, and for a seed that fails a story that a person can read.

The one rule: it only brings what a simulation must not take for itself: chance, from a seed, and the time that it
measures. A seed is a plan (`make_plan`) and a schedule; a plan that was written down is run again as it stands. Before
it: `procession simulate`. After it: `chaos/sim`.
"""

from __future__ import annotations

import gc
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from procession.chaos.sim.breach import Breach
from procession.chaos.sim.plan import Plan, make_plan
from procession.chaos.sim.shrink import shrink
from procession.chaos.sim.world import Outcome, World

SCHEDULE = 0x5EED
"""Plan and schedule of a seed draw from two sources, so that a plan can be made smaller and keep its schedule."""
COLLECT_RUNS = 100
"""Garbage is collected every so many runs: a world is full of circles, and small."""
PROGRESS_S = 10.0


def plan_of(seed: int) -> Plan:
    return make_plan(seed, random.Random(seed))


def run_plan(plan: Plan, *, is_told: bool = False, is_blind: bool = False) -> Outcome:
    return World(plan, random.Random(plan.seed ^ SCHEDULE), is_told=is_told, is_blind=is_blind).run()


@dataclass
class Tally:
    """What many runs came to."""

    runs: int = 0
    records: int = 0
    epochs: int = 0
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, outcome: Outcome) -> None:
        self.runs += 1
        self.records += outcome.records
        self.epochs += outcome.epochs
        self.events += outcome.events
        self.faults.update(fault.kind for fault in outcome.struck)

    @property
    def sentence(self) -> str:
        faults = ", ".join(f"{count:,} {kind}" for kind, count in self.faults.most_common())
        rate = self.runs / self.cpu_seconds if self.cpu_seconds else 0.0
        return (
            f"{self.runs:,} runs, {self.records:,} records, {self.epochs:,} epochs, {self.events:,} events,"
            f" {self.faults.total():,} faults ({faults}) in {self.seconds:,.0f} s: {rate:.0f} runs a second of one core"
        )


@dataclass(frozen=True)
class Failure:
    plan: Plan
    breach: Breach


def simulate(plans: Iterable[Plan], tally: Tally, say: Callable[[str], None] = print) -> Failure | None:
    """Run plans until one fails; `tally` counts along."""
    started, cpu_started, told = time.monotonic(), time.process_time(), time.monotonic()
    gc.collect()
    gc.disable()
    try:
        for plan in plans:
            outcome = run_plan(plan)
            tally.add(outcome)
            if outcome.breach is not None:
                return Failure(plan, outcome.breach)
            if tally.runs % COLLECT_RUNS == 0:
                gc.collect()
                if time.monotonic() - told > PROGRESS_S:
                    told = time.monotonic()
                    say(f"{tally.runs:,} runs, {tally.runs / (told - started):.0f} a second, at seed {plan.seed}")
        return None
    finally:
        gc.enable()
        tally.seconds += time.monotonic() - started
        tally.cpu_seconds += time.process_time() - cpu_started


def run_simulator(
    runs: int, seed: int, *, plan_file: Path | None = None, is_told: bool = False, say: Callable[[str], None] = print
) -> bool:
    """Run so many seeds from `seed` on, or the plan in a file; true if nothing was breached."""
    plans: Iterator[Plan] = (plan_of(seed + number) for number in range(runs))
    if plan_file is not None:
        plans = iter([Plan.from_json(plan_file.read_text())])
    tally = Tally()
    failure = simulate(plans, tally, say)
    if failure is None:
        if is_told:
            plan = Plan.from_json(plan_file.read_text()) if plan_file else plan_of(seed)
            say("\n".join(run_plan(plan, is_told=True).story))
        say(f"clean: {tally.sentence}")
        return True
    say(f"seed {failure.plan.seed}: {failure.breach}")
    say(f"plan: {failure.plan.to_json()}")
    smallest = shrink(failure.plan, lambda plan: run_plan(plan).breach)
    outcome = run_plan(smallest, is_told=True)
    say("\n".join(outcome.story))
    say(f"after {tally.sentence}")
    say(f"shrunk: {outcome.breach}")
    say(f"run it again with --plan FILE, where FILE holds\n{smallest.to_json()}")
    return False
