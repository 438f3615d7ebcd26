"""A chain's task: read a range of the log, run the chain, keep its runs, publish the manifest.

The one rule: the same range gives the same manifest however often the task is tried. What the user or the operator must
act on goes back as the manifest's failure, because trying again would not help; anything else fails the task, and Spark
tries it again. Runs in Spark's Python workers; before it `storage/log`, after it `storage/runs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from procession.errors import ProcessionError
from procession.plan.chain import CHAIN_RECORDS_MAX, Chain
from procession.plan.graph import Graph
from procession.storage.log import RECORD_KINDS, REFERENCE_KINDS, LogReader
from procession.storage.runs import Manifest, RunStore

TIMES = 33
"""How many quantiles of the event times a manifest carries."""

GATHER_BYTES_MAX = 8 * 1024 * 1024
"""So many bytes of the log are gathered into one pass of the chain."""

FIRST_STAGE = 0


@dataclass(frozen=True)
class Task:
    """What a worker needs to know to run the first chain on any range."""

    graph: Graph
    log_directory: Path
    runs_directory: Path

    def run(self, epoch: int, partition: int, first: int, last: int, task_attempt: int) -> Manifest:
        """The manifest of the records with sequence numbers in [first, last)."""
        store = RunStore(self.runs_directory)
        empty = Manifest(epoch, FIRST_STAGE, partition, first, last)
        try:
            published = store.published(epoch, FIRST_STAGE, partition)
            if published is not None and (published.first, published.last) == (first, last):
                return published
            writer = store.writer(epoch, FIRST_STAGE, partition, task_attempt)
            chain = Chain(self.graph)
            summary = Summary()
            for batch in gathered(_reader(self.log_directory).read(first, last)):
                records = _of_kinds(batch, RECORD_KINDS)
                summary.add(records, _of_kinds(batch, REFERENCE_KINDS))
                for outputs in chain.run(records):
                    for sink, payload in outputs.items():
                        writer.add(sink, payload)
            return writer.publish(
                Manifest(
                    epoch,
                    FIRST_STAGE,
                    partition,
                    first,
                    last,
                    records=summary.records,
                    positions=summary.positions,
                    times=summary.quantiles(),
                )
            )
        except ProcessionError as error:
            return Manifest(**{**vars(empty), "failure": error.as_dict()})


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


def _of_kinds(rows: pa.RecordBatch, kinds: tuple[int, ...]) -> pa.RecordBatch:
    found = rows.column("kind").to_numpy()
    if not found.any():
        return rows  # plain records, which are of both kinds: nearly always so, and nothing is copied
    return rows.filter(pa.array(np.isin(found, kinds)))


@dataclass
class Summary:
    """What the rows of a range had in common: how many records, when they were made, and the last message id of each
    stream that a source may be told."""

    records: int = 0
    positions: dict[int, int] = field(default_factory=dict)
    times: list[Any] = field(default_factory=list)

    def add(self, records: pa.RecordBatch, references: pa.RecordBatch) -> None:
        self.records += records.num_rows
        streams = references.column("stream_id").to_numpy()[::-1]
        ids = references.column("message_id").to_numpy()[::-1]
        names, lasts = np.unique(streams, return_index=True)
        self.positions.update(zip(names.tolist(), ids[lasts].tolist(), strict=True))
        times = records.column("event_time").to_numpy()
        self.times.append(times[times > 0])

    def quantiles(self) -> tuple[int, ...]:
        times = np.concatenate(self.times) if self.times else np.empty(0, np.int64)
        if not len(times):
            return ()
        ranks = np.linspace(0, len(times) - 1, TIMES).round().astype(np.int64)
        return tuple(np.sort(times)[ranks].tolist())


_readers: dict[Path, LogReader] = {}


def _reader(directory: Path) -> LogReader:
    # A worker lives for many tasks, and a reader keeps what it has indexed.
    return _readers.setdefault(directory, LogReader(directory))
