"""The simulator's runner: runs seeds, returns a verdict, and for a failed seed a readable event log.

Invariant: it only provides what a simulation must not have itself: randomness from a seed, time and processes. A seed
gives a plan (`make_plan`) and a schedule; a saved plan is run as it is. Seeds are run in blocks, by one process or
several, and reported in order, so the output does not depend on the number of processes, and the reported failure is
that of the lowest seed.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from typing import Any

from procession.sim.fault_plan import FaultPlan, make_plan
from procession.sim.oracle import InvariantViolation
from procession.sim.run_totals import RunTotals
from procession.sim.shrink import shrink
from procession.sim.world import World, WorldOutcome

SCHEDULE = 0x5EED
"""The plan and the schedule of a seed use two generators, so that a plan can be reduced and keep its schedule."""
BLOCK_RUNS = 100
"""Seeds per block. Garbage is collected after each block. An interrupt waits for the current blocks."""
PROGRESS_S = 10.0

Say = Callable[[str], None]


def plan_of(seed: int) -> FaultPlan:
    return make_plan(seed, random.Random(seed))


def run_plan(plan: FaultPlan, *, is_recorded: bool = False, is_blind: bool = False) -> WorldOutcome:
    world = World(plan, random.Random(plan.seed ^ SCHEDULE), is_recorded=is_recorded, is_blind=is_blind)
    outcome = world.run()
    world.dismantle()
    return outcome


def cores() -> int:
    """Return the number of useful processes on this machine."""
    return len(os.sched_getaffinity(0))


# Blocks of seeds


@dataclass(frozen=True)
class BlockResult:
    """The result of a block, which ends at the first seed that fails."""

    tally: RunTotals
    failing: int | None = None


def run_block(seeds: range) -> BlockResult:
    tally, started = RunTotals(), time.process_time()
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
    return BlockResult(tally, failing)


def _run_block(seeds: range) -> BlockResult:
    """Runs a block in a process that does nothing else. The objects that a block leaves are caches for all runs
    (`MEMORY`). They are frozen, so that the garbage collector does not scan more and more of them."""
    done = run_block(seeds)
    gc.freeze()
    return done


def _blocks(seeds: range) -> Iterator[range]:
    return (seeds[number : number + BLOCK_RUNS] for number in range(0, len(seeds), BLOCK_RUNS))


@contextmanager
def _done(seeds: range, jobs: int) -> Iterator[Iterator[BlockResult]]:
    """Yield the results of the blocks of these seeds, in order."""
    if jobs == 1 or len(seeds) <= BLOCK_RUNS:
        gc.collect()
        gc.freeze()  # excludes the many imported objects from collection
        try:
            yield map(_run_block, _blocks(seeds))
        finally:
            gc.unfreeze()
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin)
    try:
        # Only this process handles SIGINT. The workers inherit SIG_IGN and finish their blocks.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        done = pool.map(_run_block, _blocks(seeds))
        signal.signal(signal.SIGINT, before)
        yield done
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    threading.Thread(target=_end_with_parent, name="end with the parent", daemon=True).start()
    gc.collect()
    gc.freeze()


def _end_with_parent() -> None:
    """End this process when the one that started it ends, even if that was killed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


# What is said


@dataclass(frozen=True)
class FailedPlan:
    """A plan that fails, and the smallest plan found that still fails, with its event log."""

    plan: FaultPlan
    breach: InvariantViolation
    smallest: FaultPlan
    outcome: WorldOutcome

    @classmethod
    def of(cls, plan: FaultPlan) -> FailedPlan:
        breach = run_plan(plan).breach
        assert breach is not None, f"seed {plan.seed} failed, and does not fail again"
        smallest = shrink(plan, lambda candidate: run_plan(candidate).breach)
        return cls(plan, breach, smallest, run_plan(smallest, is_recorded=True))


@dataclass
class SimulationReport:
    first_seed: int
    tally: RunTotals = field(default_factory=RunTotals)
    failure: FailedPlan | None = None
    is_stopped: bool = False
    seconds: float = 0.0
    event_log: tuple[str, ...] = ()
    """The event log of the first run, if requested."""

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
        yield from self.event_log
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
        yield from self.failure.outcome.event_log
        yield f"after {figures}"
        yield f"shrunk: {self.failure.outcome.breach}"
        yield "run it again with --plan FILE, where FILE holds"
        yield self.failure.smallest.to_json()

    def as_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"verdict": self.verdict, "first_seed": self.first_seed, "next_seed": self.next_seed}
        document |= self.tally.as_dict() | {"seconds": round(self.seconds, 3)}
        if self.event_log:
            document["events"] = list(self.event_log)
        if self.failure is not None:
            document["failure"] = {
                "seed": self.failure.plan.seed,
                "invariant": self.failure.breach.invariant,
                "sentence": self.failure.breach.sentence,
                "plan": self.failure.plan.as_dict(),
                "smallest": self.failure.smallest.as_dict(),
                "breach": str(self.failure.outcome.breach),
                "events": list(self.failure.outcome.event_log),
            }
        return document


def _silent(_line: str) -> None:
    """Discards the text."""


def run_seeds(
    first: int, runs: int, *, jobs: int = 1, is_recorded: bool = False, say: Say = _silent
) -> SimulationReport:
    """Run seeds from `first` on, until one fails or the user interrupts. `say` gets the progress."""
    report, started, reported = SimulationReport(first), time.monotonic(), time.monotonic()
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
                if time.monotonic() - reported > PROGRESS_S:
                    reported = time.monotonic()
                    rate = report.tally.runs / (reported - started)
                    say(f"{report.tally.runs:,} runs, {rate:.0f} a second, up to seed {report.next_seed - 1}")
    except KeyboardInterrupt:
        report.is_stopped = True
    if failing is not None:
        report.failure = FailedPlan.of(plan_of(failing))
    elif is_recorded:
        report.event_log = run_plan(plan_of(first), is_recorded=True).event_log
    report.seconds = time.monotonic() - started
    return report


def run_again(plan: FaultPlan, *, is_recorded: bool = False) -> SimulationReport:
    """Run a saved plan."""
    report, started, cpu_started = SimulationReport(plan.seed), time.monotonic(), time.process_time()
    outcome = run_plan(plan, is_recorded=is_recorded)
    report.tally.add(outcome)
    report.tally.cpu_seconds = time.process_time() - cpu_started
    if outcome.breach is not None:
        report.failure = FailedPlan.of(plan)
    report.event_log = outcome.event_log if report.failure is None else ()
    report.seconds = time.monotonic() - started
    return report
