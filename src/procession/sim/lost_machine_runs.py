"""Runs the worlds in which machines are lost with their disks: `sim/replica_world` and `sim/directory_world`.

Invariant: a seed gives a plan and a schedule, and is run in both worlds; the reported failure is that of the lowest
seed. A report without an acknowledged write proves nothing.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from procession.sim.directory_world import directory_world
from procession.sim.oracle import InvariantViolation
from procession.sim.replica_world import ReplicaWorld, make_replica_plan, replica_world
from procession.sim.run_totals import runs_verdict
from procession.sim.seed_blocks import cpu_s, now_s, run_blocks, seeded

SCHEDULE = 0x5EED
"""Added to the seed of a plan for the seed of the schedule, so that the two differ."""
PROGRESS_S = 10.0

OpenWorld = Callable[..., AbstractContextManager[ReplicaWorld]]
WORLDS: Mapping[str, OpenWorld] = {"volume": replica_world, "directory": directory_world}


@dataclass
class LossTotals:
    """The counts of many runs."""

    runs: int = 0
    acknowledged: int = 0
    """Number of writes that were acknowledged to their writers after a quorum had them."""
    writers: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    cpu_seconds: float = 0.0

    def add(self, world: ReplicaWorld) -> None:
        self.runs += 1
        self.acknowledged += world.acknowledged
        self.writers += world.writers
        self.faults.update(fault.kind for fault in world.site.injected)

    def merge(self, other: LossTotals) -> None:
        self.runs += other.runs
        self.acknowledged += other.acknowledged
        self.writers += other.writers
        self.faults.update(other.faults)
        self.cpu_seconds += other.cpu_seconds

    @property
    def sentence(self) -> str:
        faults = ", ".join(f"{count:,} {kind}" for kind, count in self.faults.most_common())
        return (
            f"{self.runs:,} runs, {self.acknowledged:,} acknowledged writes, {self.writers:,} writers,"
            f" {self.faults.total():,} faults ({faults})"
        )


@dataclass(frozen=True)
class LossBreach:
    """The first run that failed."""

    seed: int
    world: str
    breach: InvariantViolation
    event_log: tuple[str, ...]


@dataclass
class LossReport:
    first_seed: int
    totals: LossTotals = field(default_factory=LossTotals)
    failure: LossBreach | None = None
    is_stopped: bool = False
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        return runs_verdict(
            has_failed=self.failure is not None, is_stopped=self.is_stopped, has_output=self.totals.acknowledged > 0
        )

    @property
    def next_seed(self) -> int:
        """The first seed that was not run; all earlier seeds are clean."""
        if self.failure is not None:
            return self.failure.seed
        return self.first_seed + self.totals.runs // len(WORLDS)

    def lines(self) -> Iterator[str]:
        if self.failure is not None:
            yield from self.failure.event_log
            yield f"seed {self.failure.seed}, {self.failure.world}: {self.failure.breach}"
        yield f"{self.verdict}: {self.totals.sentence}, in {self.seconds:,.0f} s; the next seed is {self.next_seed}"

    def as_dict(self) -> dict[str, Any]:
        totals = self.totals
        document: dict[str, Any] = {
            "verdict": self.verdict,
            "first_seed": self.first_seed,
            "next_seed": self.next_seed,
            "runs": totals.runs,
            "acknowledged": totals.acknowledged,
            "writers": totals.writers,
            "faults": dict(totals.faults.most_common()),
            "cpu_s": round(totals.cpu_seconds, 3),
            "seconds": round(self.seconds, 3),
        }
        if self.failure is not None:
            document["failure"] = {
                "seed": self.failure.seed,
                "world": self.failure.world,
                "breach": str(self.failure.breach),
                "events": list(self.failure.event_log),
            }
        return document


def opened(name: str, seed: int, *, is_recorded: bool = False) -> AbstractContextManager[ReplicaWorld]:
    """Open the world of a seed."""
    plan = make_replica_plan(seeded(seed))
    return WORLDS[name](plan, seeded(seed ^ SCHEDULE), is_recorded=is_recorded)


def run_loss_block(seeds: range) -> tuple[LossTotals, tuple[int, str] | None]:
    """Run these seeds in all worlds until one fails. A failure has the seed and the name of the world."""
    totals, started = LossTotals(), cpu_s()
    failing = None
    gc.disable()
    try:
        for seed in seeds:
            for name in WORLDS:
                with opened(name, seed) as world:
                    found = world.run()
                    totals.add(world)
                if found is not None:
                    failing = seed, name
                    break
            if failing is not None:
                break
    finally:
        gc.collect()
        gc.enable()
        totals.cpu_seconds = cpu_s() - started
    return totals, failing


def run_losses(first: int, seeds: int, *, jobs: int = 1, say: Callable[[str], None] = lambda line: None) -> LossReport:
    """Run seeds from `first` on, until one fails or the user interrupts. `say` gets the progress."""
    report, started, reported = LossReport(first), now_s(), now_s()
    failing = None
    try:
        with run_blocks(range(first, first + seeds), jobs, run_loss_block) as blocks:
            by = "process" if jobs == 1 else "processes"
            say(f"{seeds * len(WORLDS):,} runs from seed {first} on, by {jobs} {by}")
            for totals, failing in blocks:
                report.totals.merge(totals)
                if failing is not None:
                    break
                if now_s() - reported > PROGRESS_S:
                    reported = now_s()
                    rate = report.totals.runs / (reported - started)
                    say(f"{report.totals.runs:,} runs, {rate:.0f} a second, up to seed {report.next_seed - 1}")
    except KeyboardInterrupt:
        report.is_stopped = True
    if failing is not None:
        seed, name = failing
        with opened(name, seed, is_recorded=True) as world:
            breach = world.run()
            assert breach is not None, f"seed {seed} failed, and does not fail again"
            report.failure = LossBreach(seed, name, breach, tuple(world.site.event_log or ()))
    report.seconds = now_s() - started
    return report
