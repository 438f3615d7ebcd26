"""Simulates the tasks of an epoch: partitions rows by key, counts them per key, and merges them again.

Invariant: the output equals that of one loop over the log's rows, for any number of tasks and any epoch boundaries
(I11). The partitioning and the states are those of the shipped code, and the driver merges the runs with the shipped
emitter. The exchange and task retries are not simulated. Upstream: `simulated_spark`, which reads the rows.
Downstream: `simulated_driver`, which gets the manifests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from procession.operators.partitioning import share_of
from procession.record import ORDER
from procession.sim.sequential_run import KEYS, key_of
from procession.sim.simulated_states import KIND, STAGE, SimulatedStateStore
from procession.storage.run_store import Manifest, Run
from procession.storage.state_version import Files, StateVersion

Route = Callable[[int], bool]
"""Whether a sink gets the record with this message id."""

Row = tuple[int, int, bytes]
"""A record: its number, its message id, and its payload or its line of output."""

SCHEMA = pa.schema([(f"{ORDER}0", pa.int64()), ("payload", pa.binary())])
BATCH_ROWS = 2
"""Rows per batch of a run; so few that a merge must wait for the next batch of a path."""

SHARE_OF = {key: share_of(key) for key in KEYS}


CHAIN = 1
"""Number of the chain that begins with the counting stage."""
KEYED = {CHAIN: (STAGE, StateVersion(kind=KIND))}


class RunsInMemory:
    """The runs of one driver's epochs. Like files of the run store, they are not synced; they are lost with their
    driver."""

    def __init__(self) -> None:
        self._runs: dict[tuple[int, str], list[pa.RecordBatch]] = {}

    def add(self, epoch: int, to: str, name: str, rows: Sequence[Row]) -> Run:
        self._runs[epoch, name] = list(map(_run, _batches(rows)))
        return Run(to, 0, name, len(rows), sum(len(payload) for _, _, payload in rows), keys=1)

    def read_all(self, epoch: int, runs: Sequence[Run]) -> list[Iterator[pa.RecordBatch]]:
        return [iter(self._runs[epoch, run.file]) for run in runs]

    def drop(self, epoch: int) -> None:
        self._runs = {place: batches for place, batches in self._runs.items() if place[0] != epoch}


def distributed(rows: Sequence[Row], tasks: int) -> list[list[Row]]:
    """Return the rows of each task, in order."""
    paths: list[list[Row]] = [[] for _ in range(tasks)]
    for row in rows:
        paths[SHARE_OF[key_of(row[1])] % tasks].append(row)
    return paths


def run_task(
    keeping: SimulatedStateStore, task: int, tasks: int, epoch: int, attempt: int, rows: Sequence[Row]
) -> tuple[list[Row], Files]:
    """Run one attempt of one task. Return its output lines, and the files of its states, which are durable."""
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


def manifest_of(
    task: int,
    epoch: int,
    attempt: int,
    lines: Sequence[Row],
    states: Files,
    routes: Mapping[str, Route],
    store: RunsInMemory,
) -> Manifest:
    """Return the manifest of a task: its runs for each sink, and the files of its states."""
    runs = []
    for sink, route in routes.items():
        if chosen := [line for line in lines if route(line[1])]:
            runs.append(store.add(epoch, sink, f"{task}-{attempt}-{sink}", chosen))
    return Manifest(epoch, CHAIN, task, 0, 0, runs=tuple(runs), attempt=attempt, states=states)


def _batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    return (rows[at : at + BATCH_ROWS] for at in range(0, len(rows), BATCH_ROWS))


def _run(rows: Sequence[Row]) -> pa.RecordBatch:
    numbers, _, lines = zip(*rows, strict=True)
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array(lines, pa.binary())], schema=SCHEMA)
