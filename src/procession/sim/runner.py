"""Runs seeds of the simulator, and returns a verdict and, for a failed seed, a readable event log.

Invariant: only the runner uses what a simulation must not use itself: random seeds, time and processes. A seed gives
a plan (`make_plan`) and a schedule; a saved plan is run unchanged. Seeds are run in blocks (`sim/seed_blocks`) and
reported in order, so the output does not depend on the number of processes, and the reported failure is that of the
lowest seed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from procession.sim.fault_plan import FaultPlan, make_plan
from procession.sim.oracle import InvariantViolation
from procession.sim.run_totals import RunTotals, runs_verdict
from procession.sim.seed_blocks import cpu_s, now_s, run_blocks, seeded
from procession.sim.shrink import shrink
from procession.sim.world import World, WorldOutcome

SCHEDULE = 0x5EED
"""Added to a seed for the generator of the schedule. The plan has another generator, so a reduced plan keeps the
schedule."""
PROGRESS_S = 10.0

Say = Callable[[str], None]


def plan_of(seed: int) -> FaultPlan:
    return make_plan(seed, seeded(seed))


def run_plan(plan: FaultPlan, *, is_recorded: bool = False, is_blind: bool = False) -> WorldOutcome:
    world = World(plan, seeded(plan.seed ^ SCHEDULE), is_recorded=is_recorded, is_blind=is_blind)
    outcome = world.run()
    world.dismantle()
    return outcome


# Blocks of seeds


@dataclass(frozen=True)
class BlockResult:
    """The result of a block, which ends at the first seed that fails."""

    tally: RunTotals
    failing: int | None = None


def run_block(seeds: range) -> BlockResult:
    tally, started = RunTotals(), cpu_s()
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
        tally.cpu_seconds = cpu_s() - started
    return BlockResult(tally, failing)


# Reports


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
        return runs_verdict(
            has_failed=self.failure is not None, is_stopped=self.is_stopped, has_output=self.tally.records > 0
        )

    @property
    def next_seed(self) -> int:
        """The first seed that was not run."""
        return self.first_seed + self.tally.runs

    def lines(self) -> Iterator[str]:
        yield from self.event_log
        figures = f"{self.tally.sentence}, in {self.seconds:,.0f} s"
        if self.failure is None:
            yield f"{self.verdict}: {figures}"
            if self.verdict == "unknown":
                yield "no sink had a record to show, so this proves nothing"
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
    """Discard the text."""


def run_seeds(
    first: int, runs: int, *, jobs: int = 1, is_recorded: bool = False, say: Say = _silent
) -> SimulationReport:
    """Run seeds from `first` on, until one fails or the user interrupts. `say` gets the progress."""
    report, started, reported = SimulationReport(first), now_s(), now_s()
    failing = None
    try:
        with run_blocks(range(first, first + runs), jobs, run_block) as blocks:
            say(f"{runs:,} runs from seed {first} on, by {jobs} {'process' if jobs == 1 else 'processes'}")
            for done in blocks:
                report.tally.merge(done.tally)
                failing = done.failing
                if failing is not None:
                    say(f"seed {failing} fails; looking for a smaller plan that does")
                    break
                if now_s() - reported > PROGRESS_S:
                    reported = now_s()
                    rate = report.tally.runs / (reported - started)
                    say(f"{report.tally.runs:,} runs, {rate:.0f} a second, up to seed {report.next_seed - 1}")
    except KeyboardInterrupt:
        report.is_stopped = True
    if failing is not None:
        report.failure = FailedPlan.of(plan_of(failing))
    elif is_recorded:
        report.event_log = run_plan(plan_of(first), is_recorded=True).event_log
    report.seconds = now_s() - started
    return report


def run_again(plan: FaultPlan, *, is_recorded: bool = False) -> SimulationReport:
    """Run a saved plan."""
    report, started, cpu_started = SimulationReport(plan.seed), now_s(), cpu_s()
    outcome = run_plan(plan, is_recorded=is_recorded)
    report.tally.add(outcome)
    report.tally.cpu_seconds = cpu_s() - cpu_started
    if outcome.breach is not None:
        report.failure = FailedPlan.of(plan)
    report.event_log = outcome.event_log if report.failure is None else ()
    report.seconds = now_s() - started
    return report
