"""The tasks of an epoch: rows are partitioned by key, counted for each key, and merged again.

Invariant: the output equals that of one loop over the log's rows, for any number of tasks and any epoch boundaries
(I11). The partitioning, the states and the merge are the real ones; the exchange and task retries are not simulated.
Upstream: `simulated_spark`, which reads the rows. Downstream: `simulated_driver`, which sends the payloads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from procession.merge.kway import merged
from procession.operators.partitioning import share_of
from procession.record import ORDER
from procession.sim.sequential_run import KEYS, key_of
from procession.sim.simulated_states import SimulatedStateStore
from procession.storage.state_version import Files, StateVersion

Route = Callable[[int], bool]
"""Whether a sink gets the record with this message id."""

Row = tuple[int, int, bytes]
"""A record: its number, its message id, and its payload or its line of output."""

SCHEMA = pa.schema([(f"{ORDER}0", pa.int64()), ("payload", pa.binary())])
BATCH_ROWS = 2
"""A run has so few rows in a batch that a merge has to wait for a path's next one."""

SHARE_OF = {key: share_of(key) for key in KEYS}


@dataclass(frozen=True, slots=True)
class SimulatedEpoch:
    """What Spark's tasks made of a range: the payloads for each sink, and the last id of each stream."""

    number: int
    first: int
    last: int
    payloads: Mapping[str, Sequence[bytes]]
    positions: Mapping[int, int]
    ends: Mapping[str, int]
    """Where it ends in the log of each gateway."""
    states: Mapping[str, StateVersion]
    """The files that its tasks have left."""


def dealt(rows: Sequence[Row], tasks: int) -> list[list[Row]]:
    """The rows of each task, in their order."""
    paths: list[list[Row]] = [[] for _ in range(tasks)]
    for row in rows:
        paths[SHARE_OF[key_of(row[1])] % tasks].append(row)
    return paths


def run_task(
    keeping: SimulatedStateStore, task: int, tasks: int, epoch: int, attempt: int, rows: Sequence[Row]
) -> tuple[list[Row], Files]:
    """One attempt at one task: its lines, and the files of its states, which are durable."""
    states = keeping.open(task, tasks, epoch, attempt)
    lines = []
    for batch in _batches(rows):
        keys = [key_of(message_id) for _, message_id, _ in batch]
        counts = states.take(keys)
        for key, (number, message_id, payload) in zip(keys, batch, strict=True):
            counts[key] = count = counts.get(key, 0) + 1
            lines.append((number, message_id, b"%s@%d#%d\n" % (payload, count, attempt)))
        states.touch(keys)
    names = states.finish()
    keeping.keep(task, states)
    return lines, names


def payloads(paths: Sequence[Sequence[Row]], routes: Mapping[str, Route]) -> dict[str, list[bytes]]:
    """What each sink gets, in order: the runs of all tasks, merged."""
    return {
        sink: _merged([[line for line in path if route(line[1])] for path in paths]) for sink, route in routes.items()
    }


def _merged(paths: Sequence[Sequence[Row]]) -> list[bytes]:
    runs = [map(_run, _batches(path)) for path in paths if path]
    lines: list[bytes] = []
    for batch in merged(runs, ["payload"]):
        lines += batch.column("payload").to_pylist()
    return lines


def _batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    return (rows[at : at + BATCH_ROWS] for at in range(0, len(rows), BATCH_ROWS))


def _run(rows: Sequence[Row]) -> pa.RecordBatch:
    numbers, _, lines = zip(*rows, strict=True)
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array(lines, pa.binary())], schema=SCHEMA)
