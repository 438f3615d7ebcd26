"""Parcels: manifests on their way through Spark, from the tasks that made them to the tasks that need them.

The one rule: a task behind an exchange opens its parcels only if there is exactly one from every task before it; a
parcel that is missing or comes twice would be records lost or doubled, and fails the epoch by name. Before it the tasks
of one level of the plan; after it those of the next, and at last the driver, which gets every manifest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

import pyarrow as pa

from procession.errors import StorageError
from procession.plan.blueprint import Plan
from procession.storage.runs import Manifest, Run

SCHEMA = "at int, parcel string"
"""What Spark's rows are: the partition that a parcel goes to next, and the parcel."""


@dataclass(frozen=True)
class Parcel:
    """From task `partition` of `tasks` that ran a chain, to a slot of a level: the run that it made for that slot, if
    it had any rows for it. To the driver, which stands behind the last level: the whole manifest."""

    level: int
    slot: int
    chain: int
    partition: int
    tasks: int
    run: Run | None = None
    manifest: str = ""
    is_failed: bool = False
    """The task failed, and the epoch with it: nobody need work on it any more."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Parcel:
        fields = json.loads(text)
        run = fields.pop("run")
        return cls(**fields, run=None if run is None else Run(**run))


def slots(plan: Plan, level: int) -> list[tuple[int, int]]:
    """The tasks of a level: for each slot, the chain and the bucket that it runs."""
    return [(chain.number, bucket) for chain in plan.at_level(level) for bucket in range(chain.tasks)]


def sent(plan: Plan, manifest: Manifest, tasks: int) -> list[Parcel]:
    """What a task of `tasks` sends when it is done: a parcel to each task that it feeds, and its manifest to the
    driver."""
    chain = plan.chains[manifest.stage]
    runs = {(run.to, run.bucket): run for run in manifest.runs}
    parcels = []
    for exchange in chain.feeds:
        name = plan.node(exchange).name
        behind = next(other for other in plan.chains if other.root == exchange)
        first = slots(plan, behind.level).index((behind.number, 0))
        parcels += [
            Parcel(
                behind.level,
                first + bucket,
                chain.number,
                manifest.partition,
                tasks,
                runs.get((name, bucket)),
                is_failed=manifest.failure is not None,
            )
            for bucket in range(behind.tasks)
        ]
    # The driver draws what goes to sinks; the rest is for the tasks.
    sinks = {plan.node(sink).name for sink in chain.sinks}
    told = replace(manifest, runs=tuple(run for run in manifest.runs if run.to in sinks))
    parcels.append(
        Parcel(plan.levels, manifest.partition, chain.number, manifest.partition, tasks, manifest=told.to_json())
    )
    return parcels


def addressed(plan: Plan, level: int, parcel: Parcel) -> int:
    """The partition of this level that a parcel goes to: its own slot, or any if it only passes through."""
    return parcel.slot if parcel.level == level else parcel.slot % max(1, len(slots(plan, level)))


def as_rows(plan: Plan, level: int, parcels: Iterable[Parcel]) -> pa.RecordBatch:
    """Parcels for Spark, on their way to this level."""
    pairs = [(addressed(plan, level, parcel), parcel.to_json()) for parcel in parcels]
    return pa.record_batch({"at": pa.array([at for at, _ in pairs], pa.int32()), "parcel": [text for _, text in pairs]})


def opened(plan: Plan, level: int, slot: int, parcels: Iterable[Parcel]) -> list[Parcel]:
    """The parcels for this slot, by chain and partition: one from each task of each chain that feeds it."""
    chain, _ = slots(plan, level)[slot]
    root = plan.chains[chain].root
    assert root is not None
    found = sorted(parcels, key=lambda parcel: (parcel.chain, parcel.partition))
    if any(parcel.slot != slot for parcel in found):
        raise StorageError(f"task {slot} of level {level} was given a parcel of another: Spark dealt them wrongly")
    for feeding in plan.fed_by(root):
        _check_whole(f"chain {chain}, task {slot}", [parcel for parcel in found if parcel.chain == feeding.number])
    if {parcel.chain for parcel in found} != {feeding.number for feeding in plan.fed_by(root)}:
        raise StorageError(f"task {slot} of level {level} was given parcels of a chain that does not feed it")
    return found


def manifests(plan: Plan, parcels: Sequence[Parcel]) -> list[Manifest]:
    """The manifests of an epoch, by chain and partition, if every task of every chain has told."""
    for chain in plan.chains:
        _check_whole("the driver", [parcel for parcel in parcels if parcel.chain == chain.number])
    told = [Manifest.from_json(parcel.manifest) for parcel in parcels]
    return sorted(told, key=lambda manifest: (manifest.stage, manifest.partition))


def _check_whole(who: str, parcels: Sequence[Parcel]) -> None:
    tasks = {parcel.tasks for parcel in parcels}
    if len(tasks) != 1 or sorted(parcel.partition for parcel in parcels) != list(range(*tasks)):
        came = sorted(parcel.partition for parcel in parcels)
        raise StorageError(f"{who} was told by tasks {came} of {sorted(tasks)}: some are missing, or came twice")
