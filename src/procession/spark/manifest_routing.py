"""Manifest routing: manifests on their way through Spark, from the tasks that made them to those that need them.

The one rule: a task behind an exchange opens its parcels only if there is exactly one from every task before it, and
the driver takes an epoch only if all who read of a task have read of the same try at it; a parcel that is missing, or
comes twice, or is of another try, would be records lost or doubled, and fails the epoch by name. Before it the tasks of
one level of the plan; after it those of the next, and at last the driver, which gets every manifest.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

import pyarrow as pa

from procession.errors import RoundError, StorageError
from procession.operators.end_of_input import Change
from procession.planner.plan import Plan
from procession.storage.inline_runs import CELL_BYTES_MAX, CellStore
from procession.storage.run_store import Manifest, Run, RunStore

SCHEMA = "at int, parcel string, cell binary"
"""What Spark's rows are: the partition that a parcel goes to next, the parcel, and, with exchange="spark", a piece of
its run."""


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
    attempt: int = 0
    """Which try at the task sent it."""
    changes: tuple[tuple[int, int, bool, int], ...] = ()
    """What the log told of streams, as the task that sent it knows: to the tasks behind, not to the driver."""
    piece: int = 0
    pieces: int = 1
    """A run that goes along in cells has a row for each: this one, of so many."""
    cell: bytes | None = field(default=None, repr=False)

    def to_json(self) -> str:
        """All but the cell, which has a column of its own."""
        fields = asdict(replace(self, cell=None))
        del fields["cell"]
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, cell: bytes | None = None) -> Parcel:
        fields = json.loads(text)
        run, changes = fields.pop("run"), tuple(map(tuple, fields.pop("changes")))
        return cls(**fields, run=None if run is None else Run(**run), changes=changes, cell=cell)


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
        to = plan.node(exchange).id
        behind = next(other for other in plan.chains if other.root == exchange)
        first = slots(plan, behind.level).index((behind.number, 0))
        parcels += [
            Parcel(
                behind.level,
                first + bucket,
                chain.number,
                manifest.partition,
                tasks,
                runs.get((to, bucket)),
                is_failed=manifest.failure is not None,
                attempt=manifest.attempt,
                changes=manifest.changes,
            )
            for bucket in range(behind.tasks)
        ]
    # The driver draws what goes to sinks; the rest is for the tasks.
    sinks = {plan.node(sink).id for sink in chain.sinks}
    told = replace(manifest, runs=tuple(run for run in manifest.runs if run.to in sinks), changes=())
    parcels.append(
        Parcel(
            plan.levels,
            manifest.partition,
            chain.number,
            manifest.partition,
            tasks,
            manifest=told.to_json(),
            attempt=manifest.attempt,
        )
    )
    return parcels


def loaded(parcels: Iterable[Parcel], store: RunStore | CellStore) -> Iterator[Parcel]:
    """Parcels with the cells of their runs, if it is cells that the store has: one for each cell. The runs of a whole
    manifest, which the driver is to have, follow it."""
    for parcel in parcels:
        if not isinstance(store, CellStore):
            yield parcel
        elif parcel.run is not None:
            yield from _in_pieces(parcel, store.cells(parcel.run))
        else:
            yield parcel
            for run in Manifest.from_json(parcel.manifest).runs if parcel.manifest else ():
                yield from _in_pieces(replace(parcel, manifest="", run=run), store.cells(run))


def _in_pieces(parcel: Parcel, cells: Sequence[bytes]) -> Iterator[Parcel]:
    for piece, cell in enumerate(cells):
        yield replace(parcel, piece=piece, pieces=len(cells), cell=cell)


def unloaded(parcels: Iterable[Parcel], store: RunStore | CellStore) -> list[Parcel]:
    """Parcels again, one for each run; their cells are in the store."""
    whole: list[Parcel] = []
    pieces: dict[str, list[Parcel]] = {}
    for parcel in parcels:
        if parcel.run is None or parcel.cell is None:
            whole.append(parcel)
        else:
            pieces.setdefault(parcel.run.file, []).append(parcel)
    for file, found in pieces.items():
        found.sort(key=lambda parcel: parcel.piece)
        first = found[0]
        if [parcel.piece for parcel in found] != list(range(first.pieces)):
            came = [parcel.piece for parcel in found]
            raise StorageError(f"of the {first.pieces} cells of run {file} there came {came}")
        assert isinstance(store, CellStore)
        store.put(file, (parcel.cell for parcel in found if parcel.cell is not None))
        whole.append(replace(first, piece=0, pieces=1, cell=None))
    return whole


def addressed(plan: Plan, level: int, parcel: Parcel) -> int:
    """The partition of this level that a parcel goes to: its own slot, or any if it only passes through."""
    return parcel.slot if parcel.level == level else parcel.slot % max(1, len(slots(plan, level)))


def as_rows(plan: Plan, level: int, parcels: Iterable[Parcel]) -> Iterator[pa.RecordBatch]:
    """Parcels for Spark, on their way to this level; many small ones at a time, or a few with cells."""
    found: list[Parcel] = []
    size = 0
    for parcel in parcels:
        found.append(parcel)
        size += len(parcel.cell or b"")
        if size >= CELL_BYTES_MAX:
            yield _batch(plan, level, found)
            found, size = [], 0
    if found:
        yield _batch(plan, level, found)


def _batch(plan: Plan, level: int, parcels: Sequence[Parcel]) -> pa.RecordBatch:
    columns = {
        "at": pa.array([addressed(plan, level, parcel) for parcel in parcels], pa.int32()),
        "parcel": pa.array([parcel.to_json() for parcel in parcels], pa.string()),
        "cell": pa.array([parcel.cell for parcel in parcels], pa.binary()),
    }
    return pa.record_batch(columns)


def from_rows(batch: pa.RecordBatch) -> Iterator[Parcel]:
    """Parcels as Spark brought them."""
    for text, cell in zip(batch.column("parcel").to_pylist(), batch.column("cell").to_pylist(), strict=True):
        yield Parcel.from_json(text, cell)


def heard(parcels: Iterable[Parcel]) -> int:
    """Which tries at their tasks these parcels came from, as one number."""
    return _digest((parcel.chain, parcel.partition, parcel.attempt) for parcel in parcels)


def changes_in(parcels: Iterable[Parcel]) -> tuple[Change, ...]:
    """What the log told of streams: every task before has told what it knows of it, most of them the same."""
    return tuple(sorted({Change(*change) for parcel in parcels for change in parcel.changes}))


def _digest(tries: Iterable[tuple[int, int, int]]) -> int:
    return zlib.crc32(json.dumps(sorted(tries)).encode())


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


def manifests(plan: Plan, parcels: Sequence[Parcel], runs: RunStore | None = None) -> list[Manifest]:
    """The manifests of an epoch, by chain and partition, if every task of every chain has told, and of one try only.
    Runs that came along in cells are put into the store, for whoever emits them."""
    cells = CellStore()
    landing = [parcel for parcel in unloaded(parcels, cells) if parcel.run is not None]
    parcels = [parcel for parcel in parcels if parcel.manifest]
    for chain in plan.chains:
        _check_whole("the driver", [parcel for parcel in parcels if parcel.chain == chain.number])
    told = [Manifest.from_json(parcel.manifest) for parcel in parcels]
    _check_tries(plan, told)
    for parcel in landing:
        assert parcel.run is not None
        assert runs is not None
        runs.land(told[0].epoch, parcel.run, cells.read(told[0].epoch, parcel.run))
    return sorted(told, key=lambda manifest: (manifest.stage, manifest.partition))


def _check_tries(plan: Plan, told: Sequence[Manifest]) -> None:
    """What a task gave when it was run again may differ from what it gave before: nobody may have read of both."""
    if any(manifest.failure is not None for manifest in told):
        return  # nothing will be taken of it
    for chain in plan.chains:
        if chain.root is None:
            continue
        feeding = {other.number for other in plan.fed_by(chain.root)}
        tries = _digest((one.stage, one.partition, one.attempt) for one in told if one.stage in feeding)
        for manifest in told:
            if manifest.stage == chain.number and manifest.heard != tries:
                raise RoundError(
                    f"task {manifest.partition} of chain {chain.number} has read what another try at a task before it"
                    " had made: Spark ran a stage again after its output had been used; the epoch is run again",
                    epoch=manifest.epoch,
                )


def _check_whole(who: str, parcels: Sequence[Parcel]) -> None:
    tasks = {parcel.tasks for parcel in parcels}
    if len(tasks) != 1 or sorted(parcel.partition for parcel in parcels) != list(range(*tasks)):
        came = sorted(parcel.partition for parcel in parcels)
        raise StorageError(f"{who} was told by tasks {came} of {sorted(tasks)}: some are missing, or came twice")
