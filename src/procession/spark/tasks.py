"""Runs a chain's task: reads a log range or the runs of an exchange, runs the chain, publishes a manifest of its
runs.

Invariant: the same input gives the same manifest in every attempt. A failure that the user or the operator must act on
is returned in the manifest, because a retry does not help. Any other failure fails the task, and Spark retries it.
Tasks run in Spark's Python workers, read through `storage/log` or `merge/kway`, and write through
`storage/run_store`.
"""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from procession.errors import ProcessionError, RoundError
from procession.merge.event_time import NO_REFERENCE
from procession.merge.interleave import RowPlaces, interleaved, row_ranges
from procession.merge.kway import merged
from procession.operators.chain import CHAIN_RECORDS_MAX, Chain
from procession.operators.chain_rows import ChainRows
from procession.operators.end_of_input import StreamChange, StreamChanges
from procession.operators.operator import NO_STATES
from procession.operators.stage_rows import Numbers
from procession.operators.value_codec import ValueCodec
from procession.planner.graph import Exchange, Graph, Node
from procession.planner.plan import Plan
from procession.planner.strategies import is_whole
from procession.spark.async_map import await_all
from procession.spark.manifest_routing import wide_exchanges
from procession.spark.stopwatch import Stopwatch
from procession.spark.task_state import TaskStateStore
from procession.storage.flight_reader import FlightAccess, open_log
from procession.storage.flight_reader import RowReader as LogRows
from procession.storage.host_runs import HostRuns
from procession.storage.inline_runs import CellStore
from procession.storage.log_ranges import FIRST_GATEWAY, LogLocation, LogRange, sequence_of
from procession.storage.run_store import Manifest, Run, RunStore
from procession.storage.segment import (
    INGRESS,
    KIND_EOS,
    KIND_LATE,
    ORDERED,
    RECORD_KINDS,
    REFERENCE_KINDS,
    LogUse,
)
from procession.storage.shared_files import Folder, SharedFiles
from procession.storage.state_store import TaskStates
from procession.storage.table_copies import check_copy

TIMES = 33
"""Number of event-time quantiles in a manifest."""

GATHER_BYTES_MAX = 8 * 1024 * 1024
"""Maximum number of log bytes in one pass of the chain."""

FIRST_CHAIN = 0


@dataclass(frozen=True)
class Attempt:
    """One attempt of a task."""

    epoch: int
    partition: int
    number: int
    """Unique among all attempts of the epoch. File names contain it."""
    is_last: bool = True
    """Whether Spark fails the job if this attempt fails. The last attempt also returns failures that a retry might
    avoid."""


class CommittedTables(Protocol):
    """The table versions that epochs have committed: the round records."""

    def sides(self, epoch: int) -> Mapping[str, str]:
        """Return the table copies that the epoch after this one reads, by their original file."""


@dataclass(frozen=True)
class TaskTables:
    """Finds the table copies that an epoch reads. `first` holds them until a round record names them."""

    directory: Path
    rounds: CommittedTables
    first: Mapping[str, str]
    shared: SharedFiles | None = None
    """The driver's file service, if tasks cannot read the driver's directory."""

    def of(self, epoch: int) -> dict[str, Path]:
        named = {**self.first, **(self.rounds.sides(epoch - 1) if epoch else {})}
        directory = self.directory
        if self.shared is not None:
            directory = self.shared.copied(Folder.TABLES, set(named.values()))
            self.shared.forget_tables(set(named.values()))
        copies = {path: directory / name for path, name in named.items()}
        for copy in copies.values():
            check_copy(copy)
        return copies


class EpochLayout(Protocol):
    """Finds the records of an epoch in the gateways' logs."""

    def ranges(self, epoch: int) -> tuple[int, tuple[LogRange, ...]]:
        """Return the number of the first record, and the log ranges, one after the other."""


@dataclass(frozen=True)
class Task:
    """Everything that a worker needs to run any chain of a plan."""

    plan: Plan
    log_directory: Path
    """The log of the first gateway, used if an epoch names no log ranges."""
    runs_directory: Path
    keeping: TaskStateStore | None = None
    """The states of keyed stages. Required if the plan has such stages."""
    access: FlightAccess = field(default_factory=FlightAccess)
    """The credentials for gateways on other machines."""
    tables: TaskTables | None = None
    """The copies of tables that may change. Without them, each task reads the original files."""
    hosts: HostRuns | None = None
    """The executors' host services, which store runs instead of `runs_directory`; None if not used."""
    layout: EpochLayout | None = None
    """Finds the records of an epoch. Required with `hosts`."""
    failures_max: int = 1
    """Number of failures of a task after which Spark fails the job."""
    rows: LogRows | None = None
    """The rows of the only log, if in this process. Otherwise a task reads each log from its location."""

    @property
    def graph(self) -> Graph:
        return self.plan.graph

    @property
    def _use(self) -> LogUse:
        """The gateway log that the task reads."""
        return INGRESS if self.graph.event_time is None else ORDERED

    def store(self) -> RunStore | CellStore:
        """Return the store in which one task attempt reads and writes its runs."""
        return self.driver_store() if self.hosts is None else self.hosts.store()

    def driver_store(self) -> RunStore | CellStore:
        """Return the store of runs that are in the driver."""
        return CellStore() if self.graph.exchange is Exchange.SPARK else RunStore(self.runs_directory)

    def run_range(
        self,
        attempt: Attempt,
        first: int,
        last: int,
        store: RunStore | CellStore | None = None,
        pieces: tuple[LogRange, ...] = (),
    ) -> Manifest:
        """Run the first chain on the records with the numbers [first, last), which are in these log ranges.

        Without ranges, the records are those of the first gateway's log."""
        if not pieces and first < last:
            pieces = (self._piece(first, last),)
        summary, stream_changes = Summary(), StreamChanges() if self.plan.follows_streams else None
        empty = Manifest(
            attempt.epoch, FIRST_CHAIN, attempt.partition, first, last, attempt=attempt.number, pieces=pieces
        )

        def rows() -> Iterator[ChainRows]:
            number = first
            for batch in gathered(self._rows_of(pieces)):
                numbers = np.arange(number, number + batch.num_rows, dtype=np.int64)
                number += batch.num_rows
                if stream_changes is not None:
                    stream_changes.add(batch, numbers, batch.column("kind").to_numpy() == KIND_EOS)
                records, of_records = _of_kinds(batch, (*RECORD_KINDS, KIND_LATE), numbers)
                is_ordered = self._use is ORDERED
                references = _references(batch) if is_ordered else _of_kinds(batch, REFERENCE_KINDS, numbers)[0]
                summary.add(records, references)
                are_late = records.column("kind").to_numpy() == KIND_LATE
                summary.late += int(np.count_nonzero(are_late))
                yield ChainRows.of_ingress(records, of_records, are_late if are_late.any() else None)

        def summarized() -> Manifest:
            changes = () if stream_changes is None else stream_changes.changes
            return replace(
                empty,
                records=summary.records,
                late=summary.late,
                positions=summary.positions,
                times=summary.quantiles(),
                changes=changes,
            )

        return self._run(attempt, empty, rows(), summarized, store or self.store())

    def run_bucket(
        self,
        attempt: Attempt,
        chain: int,
        runs: Sequence[Run],
        store: RunStore | CellStore,
        inputs_digest: int = 0,
        changes: tuple[StreamChange, ...] = (),
    ) -> Manifest:
        """Run a later chain on the runs that its exchange has for one task, and on the stream changes."""
        empty = Manifest(attempt.epoch, chain, attempt.partition, 0, 0, attempt=attempt.number, changes=changes)
        empty = replace(empty, inputs_digest=inputs_digest)
        paths = store.read_all(attempt.epoch, runs)
        edge = next(edge for edge in self.plan.edges if edge.after == self.plan.chains[chain].root)
        batches = merged(paths) if edge.is_merged else (batch for path in paths for batch in path)
        return self._run(attempt, empty, map(ChainRows.of_exchange, batches), lambda: empty, store)

    def _run(
        self,
        attempt: Attempt,
        empty: Manifest,
        pieces: Iterable[ChainRows],
        manifest: Callable[[], Manifest],
        store: RunStore | CellStore,
    ) -> Manifest:
        try:
            published = store.published(attempt.epoch, empty.stage, attempt.partition)
            if published is not None and (published.first, published.last) == (empty.first, empty.last):
                return published
            writer = store.writer(attempt.epoch, empty.stage, attempt.partition, attempt.number)
            states = self._states(attempt, empty.stage)
            chain = Chain(
                self.plan,
                empty.stage,
                find=functools.partial(self._find, attempt.epoch),
                await_all=await_all,
                turn=attempt.partition,
                states=states or NO_STATES,
                copies={} if self.tables is None else self.tables.of(attempt.epoch),
                changes=[StreamChange(*change) for change in empty.changes],
                lines_of=linecache.getlines,
            )
            watch = Stopwatch()
            for output in chain.run_all(watch.timed(pieces)):
                writer.add(self.plan.node(output.to).id, output.rows, output.bucket)
            wide = wide_exchanges(self.plan, empty.stage)
            done = replace(manifest(), counts=dict(chain.counts), spent_s=watch.spent_s())
            if states is None:
                return writer.publish(done, wide)
            assert self.keeping is not None
            kept = self.keeping.finish(states)
            made = writer.publish(replace(done, states=kept, late=chain.late, spent_s=watch.spent_s()), wide)
            self.keeping.keep(self._root(empty.stage).name, attempt.partition, states, made)
            return made
        except RoundError as error:
            if not attempt.is_last:
                raise
            return replace(empty, failure=error.as_dict())
        except ProcessionError as error:
            return replace(empty, failure=error.as_dict())

    def _root(self, chain: int) -> Node:
        root = self.plan.chains[chain].root
        assert root is not None
        return self.plan.node(root)

    def _states(self, attempt: Attempt, chain: int) -> TaskStates | None:
        if self.plan.chains[chain].root is None or self._root(chain).operator is None:
            return None
        assert self.keeping is not None
        root, tasks = self._root(chain), self.plan.chains[chain].tasks
        return self.keeping.open(
            root.name,
            attempt.partition,
            tasks,
            attempt.epoch,
            attempt.number,
            is_whole=is_whole(root),
            is_made_by_user=root.operator is not None and root.operator.state.is_made_by_user,
            values=ValueCodec(self.graph.types),
        )

    def _rows_of(self, pieces: Sequence[LogRange]) -> Iterator[pa.RecordBatch]:
        """Read the rows of these ranges: one range after another, or all of them merged by event time."""
        if self.is_interleaved(pieces):
            yield interleaved([list(self._read(piece, piece.first, piece.last)) for piece in pieces])
            return
        for piece in pieces:
            yield from self._read(piece, piece.first, piece.last)

    def is_interleaved(self, pieces: Sequence[LogRange]) -> bool:
        """Return whether these ranges must be merged by event time, because only each single range is sorted."""
        return self._use is ORDERED and len(pieces) > 1

    def row_ranges(self, pieces: Sequence[LogRange], edges: Sequence[int]) -> Iterator[tuple[LogRange, ...]]:
        """Return the part of each range for each task, if the merged rows are split at these edges."""
        places = [RowPlaces.of(self._read(piece, piece.first, piece.last)) for piece in pieces]
        for shares in row_ranges(places, edges):
            cuts = zip(pieces, shares, strict=True)
            yield tuple(
                replace(piece, first=piece.first + first, last=piece.first + last)
                for piece, (first, last) in cuts
                if first < last
            )

    def _read(self, piece: LogRange, first: int, last: int) -> Iterator[pa.RecordBatch]:
        rows = _reader(piece.place, self.access, self._use) if self.rows is None else self.rows
        return rows.read(first, last, piece.offered)

    def _piece(self, first: int, last: int) -> LogRange:
        """Return a range of the first gateway's log. With one gateway a record's number is its sequence number."""
        return LogRange(FIRST_GATEWAY, first, last, LogLocation(str(self.log_directory)))

    def _find(self, epoch: int, number: int) -> dict[str, Any]:
        """Find the record with this number, for an error that names it. Its location is in the first chain's
        manifests; if these are on several machines, in the epoch's offsets."""
        piece, sequence = self._piece(number, number + 1), number
        if self.layout is not None:
            first, pieces = self.layout.ranges(epoch)
            if self.is_interleaved(pieces):
                return dict(next(self._rows_of(pieces)).slice(number - first, 1).to_pylist()[0])
            piece, sequence = sequence_of(number, first, pieces) or (piece, sequence)
        elif self.graph.exchange is not Exchange.SPARK:  # there it is the only gateway
            for made in RunStore(self.runs_directory).all_published(epoch, FIRST_CHAIN):
                if self.is_interleaved(made.pieces) and made.first <= number < made.last:
                    found = next(self._rows_of(made.pieces)).slice(number - made.first, 1)
                    return dict(found.to_pylist()[0])
                piece, sequence = sequence_of(number, made.first, made.pieces) or (piece, sequence)
        record: dict[str, Any] = next(self._read(piece, sequence, sequence + 1)).to_pylist()[0]
        return record


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Combine small batches. A slow producer's log has many of them, and each would cost a pass of the chain."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        size += batch.get_total_buffer_size()
        if rows >= CHAIN_RECORDS_MAX or size >= GATHER_BYTES_MAX:
            yield pa.concat_batches(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield pa.concat_batches(pending)


def _of_kinds(rows: pa.RecordBatch, kinds: tuple[int, ...], numbers: Numbers) -> tuple[pa.RecordBatch, Numbers]:
    """Return the rows of these kinds, and their numbers."""
    found = rows.column("kind").to_numpy()
    if not found.any():
        return rows, numbers  # the usual case: only plain records, which belong to both kinds, so nothing is copied
    is_wanted = np.isin(found, kinds)
    return rows.filter(pa.array(is_wanted)), numbers[is_wanted]


def _references(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the positions to acknowledge once rows of the ordered log are committed."""
    references = rows.column("reference")
    is_one = references.to_numpy() != NO_REFERENCE
    named = pa.RecordBatch.from_arrays([rows.column("stream_id"), references], ["stream_id", "message_id"])
    return named.filter(pa.array(is_one))


@dataclass
class Summary:
    """Summary of a range: the number of records, their event times, and the last message id to acknowledge per
    stream."""

    records: int = 0
    late: int = 0
    positions: dict[int, int] = field(default_factory=dict)
    times: list[Any] = field(default_factory=list)

    def add(self, records: pa.RecordBatch, references: pa.RecordBatch) -> None:
        self.records += records.num_rows
        streams = references.column("stream_id").to_numpy()[::-1]
        ids = references.column("message_id").to_numpy()[::-1]
        if len(streams) and (streams == streams[0]).all():  # the usual case needs no sort
            names, lasts = streams[:1], np.zeros(1, np.int64)
        else:
            names, lasts = np.unique(streams, return_index=True)
        self.positions.update(zip(names.tolist(), ids[lasts].tolist(), strict=True))
        times = records.column("event_time").to_numpy()
        self.times.append(times[times > 0])

    def quantiles(self) -> tuple[int, ...]:
        times = np.concatenate(self.times) if self.times else np.empty(0, np.int64)
        if not len(times):
            return ()
        ranks = np.linspace(0, len(times) - 1, TIMES).round().astype(np.int64)
        is_sorted = (times[1:] >= times[:-1]).all()  # arrival times are sorted
        return tuple((times if is_sorted else np.sort(times))[ranks].tolist())


@functools.cache
def _reader(place: LogLocation, access: FlightAccess, use: LogUse) -> LogRows:
    # Cached, because a worker runs many tasks and a reader keeps its index.
    return open_log(place, access, use)
