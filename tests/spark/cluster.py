"""Runs the tasks of a plan without Spark: the same tasks and envelopes, in a random order."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from procession.commit.emitter import payloads, runs_for
from procession.planner.compatibility import keyed_stages
from procession.planner.plan import Plan
from procession.spark.epoch_tasks import distribute, run_first
from procession.spark.exchange import ExchangeLevel
from procession.spark.manifest_routing import RoutedManifest, addressed, from_rows, is_shared, manifests, slots
from procession.spark.tasks import Attempt, Task
from procession.storage.log import IngressLog
from procession.storage.run_store import Manifest, RunStore
from procession.storage.state_version import StateVersion


@dataclass
class Remembered:
    """The versions of states that epochs have committed, as the round records name them."""

    versions: dict[int, dict[str, StateVersion]] = field(default_factory=dict)

    def states(self, epoch: int) -> dict[str, StateVersion]:
        return self.versions[epoch]

    def add(self, plan: Plan, reported: list[Manifest]) -> None:
        self.versions[reported[0].epoch] = versions_of(plan, reported)


def versions_of(plan: Plan, reported: list[Manifest]) -> dict[str, StateVersion]:
    return {
        name: StateVersion(tuple(manifest.states or () for manifest in reported if manifest.stage == chain), kind)
        for chain, (name, kind) in keyed_stages(plan).items()
    }


@dataclass(frozen=True)
class Context:
    """A fake of Spark's task context."""

    epoch: int
    partition: int
    attempt: int = 1

    def partitionId(self) -> int:  # noqa: N802  (Spark's name)
        return self.partition

    def getLocalProperty(self, name: str) -> str:  # noqa: N802  (Spark's name)
        return str(self.epoch)

    def attemptNumber(self) -> int:  # noqa: N802  (Spark's name)
        return 3

    def taskAttemptId(self) -> int:  # noqa: N802  (Spark's name)
        return self.attempt


def write_log(directory: Path, batch: pa.RecordBatch) -> None:
    with IngressLog(directory) as log:
        if batch.num_rows:
            log.append(batch)
        log.sync()


def run_epoch(task: Task, epoch: int, start: int, end: int, chance: random.Random) -> list[Manifest]:
    """Run one epoch: the tasks of every level in random order, with shuffled envelopes and some tasks run twice."""
    plan = task.plan
    envelopes: list[RoutedManifest] = []
    ranges = distribute(start, end, plan.chains[0].tasks)
    chance.shuffle(ranges)
    for share in ranges:
        for attempt in range(chance.randint(1, 2)):
            made = list(run_first(task, Attempt(epoch, share.number, attempt), share))
        envelopes += made
    for level in range(1, plan.levels):
        envelopes = list(_hop(task, epoch, level, envelopes, chance))
    return manifests(plan, envelopes, RunStore(task.runs_directory))


def _hop(task: Task, epoch: int, level: int, envelopes: list[RoutedManifest], chance: random.Random) -> Any:
    order = list(range(len(slots(task.plan, level))))
    chance.shuffle(order)
    for slot in order:
        shared = [envelope for envelope in envelopes if is_shared(level, envelope)]
        mine = [
            envelope
            for envelope in envelopes
            if addressed(task.plan, level, envelope) == slot and not is_shared(level, envelope)
        ]
        chance.shuffle(mine)
        chance.shuffle(shared)
        for attempt in range(chance.randint(1, 2)):
            out = list(ExchangeLevel(task, level, shared).run(Context(epoch, slot, attempt), mine))  # type: ignore[arg-type]
        yield from (envelope for batch in out for envelope in from_rows(batch))


def written(plan: Plan, runs: Path, epochs: list[list[Manifest]]) -> dict[str, bytes]:
    """Return what the sinks get in these epochs, by connection."""
    store = RunStore(runs)
    return {
        participant.name: b"".join(
            b"".join(column.to_pylist())
            for epoch in epochs
            for column in payloads(store, epoch[0].epoch, runs_for(participant.sink.name, participant.bucket, epoch))
        )
        for participant in plan.graph.participants
    }
