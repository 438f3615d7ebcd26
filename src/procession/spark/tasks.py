"""A chain's task: read a range of the log, or the runs of an exchange, run the chain, publish the manifest of its runs.

The one rule: the same input gives the same manifest however often the task is tried. What the user or the operator must
act on goes back as the manifest's failure, because trying again would not help; anything else fails the task, and Spark
tries it again. Runs in Spark's Python workers; before it `storage/log` or `merge/kway`, after it `storage/run_store`.
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
from procession.merge.interleave import Places, dealt, woven
from procession.merge.kway import merged
from procession.operators.chain import CHAIN_RECORDS_MAX, Chain
from procession.operators.chain_rows import Rows
from procession.operators.end_of_input import Change, Listening
from procession.operators.keyed import NO_STATES
from procession.operators.stage_rows import Numbers
from procession.operators.value_codec import ValueCodec
from procession.planner.graph import Exchange, Graph, Node
from procession.planner.plan import Plan
from procession.planner.strategies import is_firing
from procession.spark.async_map import await_all
from procession.spark.task_state import Keeping
from procession.storage.flight_reader import Access, open_log
from procession.storage.flight_reader import Rows as LogRows
from procession.storage.inline_runs import CellStore
from procession.storage.log import KIND_EOS, RECORD_KINDS, REFERENCE_KINDS
from procession.storage.log_ranges import FIRST_GATEWAY, Piece, Place, sequence_of
from procession.storage.run_store import Manifest, Run, RunStore
from procession.storage.segment import INGRESS, KIND_LATE, ORDERED, Use
from procession.storage.state_store import States
from procession.storage.table_copies import check_copy

TIMES = 33
"""How many quantiles of the event times a manifest carries."""

GATHER_BYTES_MAX = 8 * 1024 * 1024
"""So many bytes of the log are gathered into one pass of the chain."""

FIRST_CHAIN = 0


@dataclass(frozen=True)
class Attempt:
    """One try at a task."""

    epoch: int
    partition: int
    number: int
    """Unique among all attempts of the epoch: files are named by it."""
    is_last: bool = True
    """Whether Spark gives up when this one fails: what might pass is then told, too, instead of tried again."""


class SidesOf(Protocol):
    """Who knows what the epochs have committed: the round records."""

    def sides(self, epoch: int) -> Mapping[str, str]:
        """The copies that the epoch behind this one reads, by the file that each is of."""


@dataclass(frozen=True)
class Tables:
    """Where the copies of tables are that an epoch reads, and which they are. `first`: until a round record says."""

    directory: Path
    rounds: SidesOf
    first: Mapping[str, str]

    def of(self, epoch: int) -> dict[str, Path]:
        named = {**self.first, **(self.rounds.sides(epoch - 1) if epoch else {})}
        copies = {path: self.directory / name for path, name in named.items()}
        for copy in copies.values():
            check_copy(copy)
        return copies


@dataclass(frozen=True)
class Task:
    """What a worker needs to know to run any chain of a plan."""

    plan: Plan
    log_directory: Path
    """The log of the first gateway, where nothing else is said."""
    runs_directory: Path
    keeping: Keeping | None = None
    """Where the states of keyed stages are; a plan that has such stages cannot be run without."""
    access: Access = field(default_factory=Access)
    """What gateways on other machines want to be shown."""
    tables: Tables | None = None
    """Where the copies of tables that may change are; without, each task reads them as they are."""
    rows: LogRows | None = None
    """The rows of the only log, if they are in this process; without, a task reads each log where it is."""

    @property
    def graph(self) -> Graph:
        return self.plan.graph

    @property
    def _use(self) -> Use:
        """Which of a gateway's logs is read."""
        return INGRESS if self.graph.event_time is None else ORDERED

    def store(self) -> RunStore | CellStore:
        """Where one try at a task reads and writes its runs."""
        return CellStore() if self.graph.exchange is Exchange.SPARK else RunStore(self.runs_directory)

    def run_range(
        self,
        attempt: Attempt,
        first: int,
        last: int,
        store: RunStore | CellStore | None = None,
        pieces: tuple[Piece, ...] = (),
    ) -> Manifest:
        """The first chain, on the records with the numbers [first, last), which are these pieces; with none given,
        those of the one log that there is."""
        if not pieces and first < last:
            pieces = (self._piece(first, last),)
        summary, listening = Summary(), Listening() if self.plan.follows_streams else None
        empty = Manifest(
            attempt.epoch, FIRST_CHAIN, attempt.partition, first, last, attempt=attempt.number, pieces=pieces
        )

        def rows() -> Iterator[Rows]:
            number = first
            for batch in gathered(self._rows_of(pieces)):
                numbers = np.arange(number, number + batch.num_rows, dtype=np.int64)
                number += batch.num_rows
                if listening is not None:
                    listening.add(batch, numbers, batch.column("kind").to_numpy() == KIND_EOS)
                records, of_records = _of_kinds(batch, (*RECORD_KINDS, KIND_LATE), numbers)
                is_ordered = self._use is ORDERED
                references = _references(batch) if is_ordered else _of_kinds(batch, REFERENCE_KINDS, numbers)[0]
                summary.add(records, references)
                are_late = records.column("kind").to_numpy() == KIND_LATE
                summary.late += int(np.count_nonzero(are_late))
                yield Rows.of_ingress(records, of_records, are_late if are_late.any() else None)

        def told() -> Manifest:
            changes = () if listening is None else listening.changes
            return replace(
                empty,
                records=summary.records,
                late=summary.late,
                positions=summary.positions,
                times=summary.quantiles(),
                changes=changes,
            )

        return self._run(attempt, empty, rows(), told, store or self.store())

    def run_bucket(
        self,
        attempt: Attempt,
        chain: int,
        runs: Sequence[Run],
        store: RunStore | CellStore,
        heard: int = 0,
        changes: tuple[Change, ...] = (),
    ) -> Manifest:
        """A later chain, on what the runs of its exchange hold for one task, and what it was told of streams."""
        empty = Manifest(
            attempt.epoch, chain, attempt.partition, 0, 0, attempt=attempt.number, heard=heard, changes=changes
        )
        paths = [store.read(attempt.epoch, run) for run in runs]
        edge = next(edge for edge in self.plan.edges if edge.after == self.plan.chains[chain].root)
        batches = merged(paths) if edge.is_merged else (batch for path in paths for batch in path)
        return self._run(attempt, empty, map(Rows.of_exchange, batches), lambda: empty, store)

    def _run(
        self,
        attempt: Attempt,
        empty: Manifest,
        pieces: Iterable[Rows],
        told: Callable[[], Manifest],
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
                changes=[Change(*change) for change in empty.changes],
                lines_of=linecache.getlines,
            )
            for output in chain.run_all(pieces):
                writer.add(self.plan.node(output.to).id, output.rows, output.bucket)
            if states is None:
                return writer.publish(told())
            made = writer.publish(replace(told(), states=states.finish(), late=chain.late))
            assert self.keeping is not None
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

    def _states(self, attempt: Attempt, chain: int) -> States | None:
        if self.plan.chains[chain].root is None or self._root(chain).stateful is None:
            return None
        assert self.keeping is not None
        root, tasks = self._root(chain), self.plan.chains[chain].tasks
        return self.keeping.open(
            root.name,
            attempt.partition,
            tasks,
            attempt.epoch,
            attempt.number,
            is_whole=is_firing(root),
            values=ValueCodec(self.graph.types),
        )

    def _rows_of(self, pieces: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
        """The rows of these pieces: one behind the other, or all of them in the order of event time."""
        if self.is_woven(pieces):
            yield woven([list(self._read(one, one.first, one.last)) for one in pieces])
            return
        for one in pieces:
            yield from self._read(one, one.first, one.last)

    def is_woven(self, pieces: Sequence[Piece]) -> bool:
        """Whether these pieces are to be put in order, because each of them is so only by itself."""
        return self._use is ORDERED and len(pieces) > 1

    def dealt(self, pieces: Sequence[Piece], edges: Sequence[int]) -> Iterator[tuple[Piece, ...]]:
        """What each task reads of these pieces, if their rows, in order, are cut at these places."""
        places = [Places.of(self._read(one, one.first, one.last)) for one in pieces]
        for shares in dealt(places, edges):
            cuts = zip(pieces, shares, strict=True)
            yield tuple(
                replace(one, first=one.first + first, last=one.first + last)
                for one, (first, last) in cuts
                if first < last
            )

    def _read(self, piece: Piece, first: int, last: int) -> Iterator[pa.RecordBatch]:
        rows = _reader(piece.place, self.access, self._use) if self.rows is None else self.rows
        return rows.read(first, last)

    def _piece(self, first: int, last: int) -> Piece:
        """With one gateway a record's number is its sequence there."""
        return Piece(FIRST_GATEWAY, first, last, Place(str(self.log_directory)))

    def _find(self, epoch: int, number: int) -> dict[str, Any]:
        """The record with this number, for an error that must name it. The first chain's manifests say where it is."""
        piece, sequence = self._piece(number, number + 1), number
        if self.graph.exchange is not Exchange.SPARK:
            for one in RunStore(self.runs_directory).all_published(epoch, FIRST_CHAIN):
                if self.is_woven(one.pieces) and one.first <= number < one.last:
                    found = next(self._rows_of(one.pieces)).slice(number - one.first, 1)
                    return dict(found.to_pylist()[0])
                piece, sequence = sequence_of(number, one.first, one.pieces) or (piece, sequence)
        record: dict[str, Any] = next(self._read(piece, sequence, sequence + 1)).to_pylist()[0]
        return record


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches: a slow producer's log has many small ones, and each costs a pass."""
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
    """The rows of these kinds, and their numbers."""
    found = rows.column("kind").to_numpy()
    if not found.any():
        return rows, numbers  # plain records, which are of both kinds: nearly always so, and nothing is copied
    is_wanted = np.isin(found, kinds)
    return rows.filter(pa.array(is_wanted)), numbers[is_wanted]


def _references(rows: pa.RecordBatch) -> pa.RecordBatch:
    """What may be acknowledged when rows of the ordered log are committed."""
    references = rows.column("reference")
    is_one = references.to_numpy() != NO_REFERENCE
    named = pa.RecordBatch.from_arrays([rows.column("stream_id"), references], ["stream_id", "message_id"])
    return named.filter(pa.array(is_one))


@dataclass
class Summary:
    """What the rows of a range had in common: how many records, when they were made, and the last message id of each
    stream that a source may be told."""

    records: int = 0
    late: int = 0
    positions: dict[int, int] = field(default_factory=dict)
    times: list[Any] = field(default_factory=list)

    def add(self, records: pa.RecordBatch, references: pa.RecordBatch) -> None:
        self.records += records.num_rows
        streams = references.column("stream_id").to_numpy()[::-1]
        ids = references.column("message_id").to_numpy()[::-1]
        if len(streams) and (streams == streams[0]).all():  # as nearly always: nothing has to be sorted
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
        is_sorted = (times[1:] >= times[:-1]).all()  # as times of arrival are
        return tuple((times if is_sorted else np.sort(times))[ranks].tolist())


@functools.cache
def _reader(place: Place, access: Access, use: Use) -> LogRows:
    # A worker lives for many tasks, and a reader keeps what it has indexed.
    return open_log(place, access, use)
