"""The simulator's runner: seeds in, a verdict out, and for a seed that fails a story that a person can read.

The one rule: it only brings what a simulation must not take for itself: chance, from a seed, and the time and the
processes that it takes. A seed is a plan (`make_plan`) and a schedule; a plan that was written down is run again as it
stands. Seeds are run in blocks, by one process or several, and heard of in their order: what is said does not depend on
how many there are, and the failure that is told is that of the lowest seed. Before it: `procession simulate`. After it:
`sim`.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from procession.sim.fault_plan import Plan, make_plan
from procession.sim.run_totals import Tally
from procession.sim.shrink import shrink
from procession.sim.violation import Breach
from procession.sim.world import Outcome, World

SCHEDULE = 0x5EED
"""Plan and schedule of a seed draw from two sources, so that a plan can be made smaller and keep its schedule."""
BLOCK_RUNS = 100
"""So many seeds a process takes at once. Garbage is collected after each block: a run leaves little of it. An interrupt
waits for the blocks that are being run."""
PROGRESS_S = 10.0

Say = Callable[[str], None]


def plan_of(seed: int) -> Plan:
    return make_plan(seed, random.Random(seed))


def run_plan(plan: Plan, *, is_told: bool = False, is_blind: bool = False) -> Outcome:
    world = World(plan, random.Random(plan.seed ^ SCHEDULE), is_told=is_told, is_blind=is_blind)
    outcome = world.run()
    world.dismantle()
    return outcome


def cores() -> int:
    """How many processes are worth while here."""
    return len(os.sched_getaffinity(0))


# Blocks of seeds


@dataclass(frozen=True)
class Done:
    """What a block came to: it ends with the first seed that fails."""

    tally: Tally
    failing: int | None = None


def run_block(seeds: range) -> Done:
    tally, started = Tally(), time.process_time()
    failing = None
    gc.disable()
    try:
        for seed in seeds:
            outcome = run_plan(plan_of(seed))
            tally.add(outcome)
            if outcome.breach is not None:
                failing = seed
                break
    finally:
        gc.collect()
        gc.enable()
        tally.cpu_seconds = time.process_time() - started
    return Done(tally, failing)


def _run_block(seeds: range) -> Done:
    """In a process that only does this: what a block leaves is remembered for all runs (`MEMORY`), and no garbage. To
    look through it after each block would take longer and longer."""
    done = run_block(seeds)
    gc.freeze()
    return done


def _blocks(seeds: range) -> Iterator[range]:
    return (seeds[number : number + BLOCK_RUNS] for number in range(0, len(seeds), BLOCK_RUNS))


@contextmanager
def _done(seeds: range, jobs: int) -> Iterator[Iterator[Done]]:
    """The blocks of these seeds, done, in their order."""
    if jobs == 1 or len(seeds) <= BLOCK_RUNS:
        gc.collect()
        gc.freeze()  # what was imported is no garbage, and is much
        try:
            yield map(_run_block, _blocks(seeds))
        finally:
            gc.unfreeze()
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin)
    try:
        # Only we hear an interrupt, and let the others finish: they inherit that it is not for them.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        done = pool.map(_run_block, _blocks(seeds))
        signal.signal(signal.SIGINT, before)
        yield done
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    gc.collect()
    gc.freeze()


# What is said


@dataclass(frozen=True)
class Failure:
    """A plan that fails, and the smallest found that does: with the story of that one."""

    plan: Plan
    breach: Breach
    smallest: Plan
    outcome: Outcome

    @classmethod
    def of(cls, plan: Plan) -> Failure:
        breach = run_plan(plan).breach
        assert breach is not None, f"seed {plan.seed} failed, and does not fail again"
        smallest = shrink(plan, lambda candidate: run_plan(candidate).breach)
        return cls(plan, breach, smallest, run_plan(smallest, is_told=True))


@dataclass
class Report:
    first_seed: int
    tally: Tally = field(default_factory=Tally)
    failure: Failure | None = None
    is_stopped: bool = False
    seconds: float = 0.0
    story: tuple[str, ...] = ()
    """Of the first run, if somebody asked for it."""

    @property
    def verdict(self) -> str:
        if self.failure is not None:
            return "violated"
        if self.is_stopped:
            return "stopped"
        return "clean" if self.tally.records else "unknown"

    @property
    def next_seed(self) -> int:
        """All before it are run."""
        return self.first_seed + self.tally.runs

    def lines(self) -> Iterator[str]:
        yield from self.story
        figures = f"{self.tally.sentence}, in {self.seconds:,.0f} s"
        if self.failure is None:
            yield f"{self.verdict}: {figures}"
            if self.verdict == "unknown":
                yield "no sink had a record to show: that says nothing"
            if self.is_stopped:
                yield f"the next seed is {self.next_seed}"
            return
        yield f"seed {self.failure.plan.seed}: {self.failure.breach}"
        yield f"plan: {self.failure.plan.to_json()}"
        yield from self.failure.outcome.story
        yield f"after {figures}"
        yield f"shrunk: {self.failure.outcome.breach}"
        yield "run it again with --plan FILE, where FILE holds"
        yield self.failure.smallest.to_json()

    def as_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = {"verdict": self.verdict, "first_seed": self.first_seed, "next_seed": self.next_seed}
        told |= self.tally.as_dict() | {"seconds": round(self.seconds, 3)}
        if self.story:
            told["story"] = list(self.story)
        if self.failure is not None:
            told["failure"] = {
                "seed": self.failure.plan.seed,
                "invariant": self.failure.breach.invariant,
                "sentence": self.failure.breach.sentence,
                "plan": self.failure.plan.as_dict(),
                "smallest": self.failure.smallest.as_dict(),
                "breach": str(self.failure.outcome.breach),
                "story": list(self.failure.outcome.story),
            }
        return told


def _silent(_line: str) -> None:
    """Nobody listens."""


def run_seeds(first: int, runs: int, *, jobs: int = 1, is_told: bool = False, say: Say = _silent) -> Report:
    """Run so many seeds from `first` on, until one fails or somebody interrupts; `say` hears how far we are."""
    report, started, told = Report(first), time.monotonic(), time.monotonic()
    failing = None
    try:
        with _done(range(first, first + runs), jobs) as blocks:
            say(f"{runs:,} runs from seed {first} on, by {jobs} {'process' if jobs == 1 else 'processes'}")
            for done in blocks:
                report.tally.merge(done.tally)
                failing = done.failing
                if failing is not None:
                    say(f"seed {failing} fails; looking for a smaller plan that does")
                    break
                if time.monotonic() - told > PROGRESS_S:
                    told = time.monotonic()
                    rate = report.tally.runs / (told - started)
                    say(f"{report.tally.runs:,} runs, {rate:.0f} a second, up to seed {report.next_seed - 1}")
    except KeyboardInterrupt:
        report.is_stopped = True
    if failing is not None:
        report.failure = Failure.of(plan_of(failing))
    elif is_told:
        report.story = run_plan(plan_of(first), is_told=True).story
    report.seconds = time.monotonic() - started
    return report


def run_again(plan: Plan, *, is_told: bool = False) -> Report:
    """Run a plan that was written down."""
    report, started, cpu_started = Report(plan.seed), time.monotonic(), time.process_time()
    outcome = run_plan(plan, is_told=is_told)
    report.tally.add(outcome)
    report.tally.cpu_seconds = time.process_time() - cpu_started
    if outcome.breach is not None:
        report.failure = Failure.of(plan)
    report.story = outcome.story if report.failure is None else ()
    report.seconds = time.monotonic() - started
    return report
