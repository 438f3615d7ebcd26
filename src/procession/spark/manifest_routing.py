"""Routes manifests through Spark, from the task that writes a manifest to the tasks that read it.

A manifest travels in an envelope (`RoutedManifest`) with the address of a task. Invariant: a task after an exchange
opens its envelopes only if there is exactly one from every task that feeds it. The driver accepts an epoch only if all
readers of a task read the same attempt of it. A missing or duplicate envelope, or an envelope of another attempt,
would lose or duplicate records, so the epoch fails. The driver gets every manifest.

An envelope to a wide level (`Plan.is_wide`) is for all tasks of a chain. The driver collects these envelopes and ships
them with the function of the level (`spark/query`). So there is one envelope per task, not one per pair of tasks.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

import pyarrow as pa

from procession.errors import RoundError, StorageError
from procession.operators.end_of_input import StreamChange
from procession.planner.plan import Plan
from procession.storage.inline_runs import CELL_BYTES_MAX, CellStore
from procession.storage.run_store import EVERY_BUCKET, Manifest, Run, RunStore


@dataclass(frozen=True)
class RoutedManifest:
    """An envelope from task `partition` of the `tasks` of a chain, addressed to a slot of a level.

    It contains the run for that slot, if the task has rows for the slot. An envelope for the driver, which comes
    after the last level, holds the whole manifest."""

    level: int
    slot: int
    chain: int
    partition: int
    tasks: int
    run: Run | None = None
    manifest: str = ""
    is_failed: bool = False
    """The task failed, and with it the epoch: later tasks skip their work."""
    attempt: int = 0
    """The task attempt that sent the envelope."""
    changes: tuple[tuple[int, int, bool, int], ...] = ()
    """Stream changes in the log that the sending task has read; used by later tasks, not by the driver."""
    piece: int = 0
    pieces: int = 1
    """A run inside envelopes is split into cells, one per row. This envelope has cell `piece` of `pieces`."""
    width: int = 1
    """The envelope is for this many slots, from `slot` on."""
    cell: bytes | None = field(default=None, repr=False)

    def to_json(self) -> str:
        """Encode everything except the cell, which has its own column."""
        fields = asdict(replace(self, cell=None))
        del fields["cell"]
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, cell: bytes | None = None) -> RoutedManifest:
        fields = json.loads(text)
        run, changes = fields.pop("run"), tuple(map(tuple, fields.pop("changes")))
        return cls(**fields, run=None if run is None else Run(**run), changes=changes, cell=cell)


def slots(plan: Plan, level: int) -> list[tuple[int, int]]:
    """Return the tasks of a level: the chain and the bucket that each slot runs."""
    return [(chain.number, bucket) for chain in plan.at_level(level) for bucket in range(chain.tasks)]


def slot_count(plan: Plan, level: int) -> int:
    return sum(chain.tasks for chain in plan.at_level(level))


def wide_exchanges(plan: Plan, chain: int) -> frozenset[str]:
    """Return the exchanges for which the tasks of this chain send one envelope to all tasks, by their ids."""
    behind = (other for other in plan.chains if other.root in plan.chains[chain].feeds)
    return frozenset(
        plan.node(other.root).id for other in behind if other.root is not None and plan.is_wide(other.level)
    )


def sent(plan: Plan, manifest: Manifest, tasks: int) -> list[RoutedManifest]:
    """Return what a finished task of `tasks` sends: an envelope to each task that it feeds, and its manifest to the
    driver. For a wide exchange, one envelope is for all tasks after it."""
    chain = plan.chains[manifest.stage]
    runs = {(run.to, run.bucket): run for run in manifest.runs}
    envelopes = []
    for exchange in chain.feeds:
        to = plan.node(exchange).id
        behind = next(other for other in plan.chains if other.root == exchange)
        first = slots(plan, behind.level).index((behind.number, 0))
        is_wide = plan.is_wide(behind.level)
        envelopes += [
            RoutedManifest(
                behind.level,
                first + max(bucket, 0),
                chain.number,
                manifest.partition,
                tasks,
                runs.get((to, bucket)),
                is_failed=manifest.failure is not None,
                attempt=manifest.attempt,
                changes=manifest.changes,
                width=behind.tasks if is_wide else 1,
            )
            for bucket in ([EVERY_BUCKET] if is_wide else range(behind.tasks))
        ]
    # The driver gets only the runs for sinks; the other runs are for tasks.
    sinks = {plan.node(sink).id for sink in chain.sinks}
    for_driver = replace(manifest, runs=tuple(run for run in manifest.runs if run.to in sinks), changes=())
    envelopes.append(
        RoutedManifest(
            plan.levels,
            manifest.partition,
            chain.number,
            manifest.partition,
            tasks,
            manifest=for_driver.to_json(),
            attempt=manifest.attempt,
        )
    )
    return envelopes


def loaded(envelopes: Iterable[RoutedManifest], store: RunStore | CellStore) -> Iterator[RoutedManifest]:
    """Add the cells of the runs to the envelopes, one envelope per cell, if the store holds cells. After a whole
    manifest, which goes to the driver, yield the cells of its runs."""
    for envelope in envelopes:
        if not isinstance(store, CellStore):
            yield envelope
        elif envelope.run is not None:
            yield from _in_pieces(envelope, store.cells(envelope.run))
        else:
            yield envelope
            for run in Manifest.from_json(envelope.manifest).runs if envelope.manifest else ():
                yield from _in_pieces(replace(envelope, manifest="", run=run), store.cells(run))


def _in_pieces(envelope: RoutedManifest, cells: Sequence[bytes]) -> Iterator[RoutedManifest]:
    for piece, cell in enumerate(cells):
        yield replace(envelope, piece=piece, pieces=len(cells), cell=cell)


def unloaded(envelopes: Iterable[RoutedManifest], store: RunStore | CellStore) -> list[RoutedManifest]:
    """Put the cells into the store. Return one envelope per run."""
    whole: list[RoutedManifest] = []
    pieces: dict[str, list[RoutedManifest]] = {}
    for envelope in envelopes:
        if envelope.run is None or envelope.cell is None:
            whole.append(envelope)
        else:
            pieces.setdefault(envelope.run.file, []).append(envelope)
    for file, found in pieces.items():
        found.sort(key=lambda envelope: envelope.piece)
        first = found[0]
        if [envelope.piece for envelope in found] != list(range(first.pieces)):
            arrived = [envelope.piece for envelope in found]
            raise StorageError(f"run {file} has {first.pieces} cells, but cells {arrived} arrived")
        assert isinstance(store, CellStore)
        store.put(file, (envelope.cell for envelope in found if envelope.cell is not None))
        whole.append(replace(first, piece=0, pieces=1, cell=None))
    return whole


def addressed(plan: Plan, level: int, envelope: RoutedManifest) -> int:
    """Return the partition of this level that an envelope goes to: its slot, or any if it is for a later level."""
    return envelope.slot if envelope.level == level else envelope.partition % max(1, slot_count(plan, level))


def is_shared(level: int, envelope: RoutedManifest) -> bool:
    """Return whether an envelope is for many tasks of this level."""
    return envelope.level == level and envelope.width > 1


def as_rows(plan: Plan, level: int, envelopes: Iterable[RoutedManifest]) -> Iterator[pa.RecordBatch]:
    """Encode envelopes to this level as Spark rows: many small envelopes per batch, or a few with cells."""
    found: list[RoutedManifest] = []
    size = 0
    for envelope in envelopes:
        found.append(envelope)
        size += len(envelope.cell or b"")
        if size >= CELL_BYTES_MAX:
            yield _batch(plan, level, found)
            found, size = [], 0
    if found:
        yield _batch(plan, level, found)


def _batch(plan: Plan, level: int, envelopes: Sequence[RoutedManifest]) -> pa.RecordBatch:
    columns = {
        "at": pa.array([addressed(plan, level, envelope) for envelope in envelopes], pa.int32()),
        "envelope": pa.array([envelope.to_json() for envelope in envelopes], pa.string()),
        "cell": pa.array([envelope.cell for envelope in envelopes], pa.binary()),
    }
    return pa.record_batch(columns)


def from_rows(batch: pa.RecordBatch) -> Iterator[RoutedManifest]:
    """Decode the envelopes in Spark's rows. A row without an envelope only starts a task."""
    for text, cell in zip(batch.column("envelope").to_pylist(), batch.column("cell").to_pylist(), strict=True):
        if text is not None:
            yield RoutedManifest.from_json(text, cell)


def attempts_digest(envelopes: Iterable[RoutedManifest]) -> int:
    """Return a digest of the task attempts that sent these envelopes."""
    return _digest((envelope.chain, envelope.partition, envelope.attempt) for envelope in envelopes)


def changes_in(envelopes: Iterable[RoutedManifest]) -> tuple[StreamChange, ...]:
    """Return the stream changes that the sending tasks know, deduplicated."""
    return tuple(sorted({StreamChange(*change) for envelope in envelopes for change in envelope.changes}))


def _digest(tries: Iterable[tuple[int, int, int]]) -> int:
    return zlib.crc32(json.dumps(sorted(tries)).encode())


def opened(plan: Plan, level: int, slot: int, envelopes: Iterable[RoutedManifest]) -> list[RoutedManifest]:
    """Return the envelopes for this slot by chain and partition: one from each task of each chain that feeds it.

    Raises StorageError if an envelope is missing, duplicated or addressed to another slot."""
    chain, _ = slots(plan, level)[slot]
    root = plan.chains[chain].root
    assert root is not None
    mine = (_narrowed(envelope, slot) for envelope in envelopes)
    found = sorted(mine, key=lambda envelope: (envelope.chain, envelope.partition))
    if any(envelope.slot != slot for envelope in found):
        raise StorageError(
            f"task {slot} of level {level} got an envelope for another task: Spark partitioned them wrongly"
        )
    for feeding in plan.fed_by(root):
        _check_whole(
            f"chain {chain}, task {slot}", [envelope for envelope in found if envelope.chain == feeding.number]
        )
    if {envelope.chain for envelope in found} != {feeding.number for feeding in plan.fed_by(root)}:
        raise StorageError(f"task {slot} of level {level} got envelopes from a chain that does not feed it")
    return found


def _narrowed(envelope: RoutedManifest, slot: int) -> RoutedManifest:
    """Return the envelope for one slot from an envelope for many slots."""
    if envelope.width == 1 or not 0 <= slot - envelope.slot < envelope.width:
        return envelope
    run = None if envelope.run is None else replace(envelope.run, bucket=slot - envelope.slot)
    return replace(envelope, slot=slot, width=1, run=run)


def manifests(plan: Plan, envelopes: Sequence[RoutedManifest], runs: RunStore | None = None) -> list[Manifest]:
    """Return the manifests of an epoch, by chain and partition.

    Raises an error unless every task of every chain sent one manifest and all readers used the same attempts. Runs
    that arrived in cells are put into the store, from which the driver emits them."""
    cells = CellStore()
    with_runs = [envelope for envelope in unloaded(envelopes, cells) if envelope.run is not None]
    envelopes = [envelope for envelope in envelopes if envelope.manifest]
    for chain in plan.chains:
        _check_whole("the driver", [envelope for envelope in envelopes if envelope.chain == chain.number])
    reported = [Manifest.from_json(envelope.manifest) for envelope in envelopes]
    _check_tries(plan, reported)
    for envelope in with_runs:
        assert envelope.run is not None
        assert runs is not None
        runs.land(reported[0].epoch, envelope.run, cells.read(reported[0].epoch, envelope.run))
    return sorted(reported, key=lambda manifest: (manifest.stage, manifest.partition))


def _check_tries(plan: Plan, reported: Sequence[Manifest]) -> None:
    """Check that all tasks read the same attempt of each task, because two attempts may have different output."""
    if any(manifest.failure is not None for manifest in reported):
        return  # the epoch fails for another reason
    for chain in plan.chains:
        if chain.root is None:
            continue
        feeding = {other.number for other in plan.fed_by(chain.root)}
        tries = _digest(
            (sender.stage, sender.partition, sender.attempt) for sender in reported if sender.stage in feeding
        )
        for manifest in reported:
            if manifest.stage == chain.number and manifest.inputs_digest != tries:
                raise RoundError(
                    f"task {manifest.partition} of chain {chain.number} read the output of another attempt of a task"
                    " before it: Spark re-ran a stage whose output was already in use; the epoch is run again",
                    epoch=manifest.epoch,
                )


def _check_whole(task: str, envelopes: Sequence[RoutedManifest]) -> None:
    tasks = {envelope.tasks for envelope in envelopes}
    if len(tasks) != 1 or sorted(envelope.partition for envelope in envelopes) != list(range(*tasks)):
        arrived = sorted(envelope.partition for envelope in envelopes)
        raise StorageError(
            f"{task} got envelopes from tasks {arrived} of {sorted(tasks)}: some are missing or duplicates"
        )
