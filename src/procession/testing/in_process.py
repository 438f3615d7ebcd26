"""Runs a pipeline in this process: the tasks of its plan one after the other, epoch by epoch.

Invariant: this module makes no decision about the output. It calls the code that Spark's workers, the driver and the
gateway run: the planner, the tasks with their operators, the exchanges, the states, the merges and event-time order.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from procession.api.pipeline import Pipeline
from procession.commit.dead_letter_share import DeadLetterLimit, judged
from procession.commit.emitter import payloads, runs_for
from procession.commit.epoch_totals import check_joined, counted, versions_after
from procession.commit.round_record import RoundRecord
from procession.driver.stream_order import declared_by
from procession.driver.table_versions import TableRefresh
from procession.errors import PlanError, ProcessionError
from procession.operators.codecs import DECODE
from procession.planner.compatibility import keyed_stages
from procession.planner.graph import Graph, Kind, Node, SinkConnection, SinkFraming
from procession.planner.plan import Plan
from procession.planner.rules import check_runnable, make_plan
from procession.planner.validation import checked_count
from procession.spark.epoch_tasks import ranges_of, run_tasks
from procession.spark.manifest_routing import RoutedManifest, manifests
from procession.spark.task_state import TaskStateStore
from procession.spark.tasks import Attempt, Task, TaskTables
from procession.storage.log_ranges import FIRST_GATEWAY, NOTHING, LogLocation, LogOffset
from procession.storage.run_store import Manifest, Run, RunStore
from procession.storage.segment import KIND_EOS
from procession.storage.state_version import StateVersion
from procession.testing.arrivals import Arrivals, Inputs, cuts_of, in_event_order

PARALLELISM_MAX = 1024
STATES, SIDES = "states", "sides"
MEMORY = Path("/dev/shm")
"""A directory in memory, on Linux. Files there do not wait for a disk."""
MEMORY_BYTES_MIN = 16 * 1024 * 1024
COPIES = 16
"""Estimate of a run's maximum memory, as a multiple of the bytes of its input."""


class Outputs(dict[str, list[Any]]):
    """The outputs of a run: the values of each sink in order, by the sink's name. The sink's codec decodes each value
    from the record's bytes. Dead letters are dicts, under "dead-letter". A sink with several connections has an output
    for each of them, such as "name.0" and "name.1". A sink with lanes has one output, in the order of a merger.

    Attributes:
        bytes: The same outputs as bytes, as a file sink would write them.
        counters: The numbers of input records, output records and late records.
    """

    def __init__(self, values: Mapping[str, list[Any]], written: dict[str, bytes], counters: dict[str, int]) -> None:
        super().__init__(values)
        self.bytes = written
        self.counters = counters


def outputs_of(graph: Graph) -> list[SinkConnection]:
    """Return the outputs of a run: one for each connection of a sink, or one for all lanes together."""
    ends = (replace(end, name=end.sink.name, bucket=None) if end.sink.lanes else end for end in graph.participants)
    return list({end.name: end for end in ends}.values())


def run(
    pipeline: Pipeline,
    inputs: Inputs,
    *,
    epochs: int | Sequence[int] | None = None,
    parallelism: int | None = None,
    crashes: Collection[int] = (),
    ends: bool = True,
    dead_letter_share_max: float = 0.5,
) -> Outputs:
    """Run a pipeline on these records in this process, without Spark.

    Each stream ends right after its last record, and windows, sorts and totals then fire.

    With `order_by="event_time"`, the inputs have event-time order. Otherwise they have the order of arrival, which is
    the order of `inputs`: all records of the first source, then all of the second. Pairs interleave the sources:
    `[("orders", order), ("payments", payment), ("orders", other)]`.

    `epochs`, `parallelism` and `crashes` do not change the output if the functions are correct. To test this, use
    `run_everywhere`, which runs with several values. Between epochs, states are encoded, written and read again.

    Args:
        pipeline: The pipeline. It is not changed, and can be run again.
        inputs: The records of each source, by its name: `{"orders": [{"id": 1}, {"id": 2}]}`. A record is a value that
            the source's codec decodes, or the bytes that a producer sends, or a `Record` with a key or an event time. A
            source with several streams has a dict with a list for each. A source without an entry has no records.
        epochs: The sizes of epochs. 3 means at most three records in each epoch. [3, 2] means three records in the
            first epoch, two in the second, and the rest in a third. None means one epoch.
        parallelism: Number of tasks of each stage. It replaces that of the pipeline and its stages.
        crashes: The numbers of epochs, counted from 0, that are lost before their commit, as in a crash. Each is run
            again, with new tasks and the states of the last commit. Numbers above the last epoch have no effect.
        ends: Whether streams end. If not, the output lacks the records that are still held back.
        dead_letter_share_max: Maximum share of records that may become dead letters. As in production, it is checked
            over at least 1,000 records.

    Returns:
        The values that each sink would write, in order, by the name of the sink.

    Raises:
        UsageError: No producer could send these inputs to these sources.
        PlanError: The pipeline cannot be run, has a state that cannot be stored, has too many dead letters, or has a
            `transform`, which needs Spark.
        RecordError: A function raised, and the pipeline has no `dead_letter=`. The error names the stage and the
            message. The first message of a stream has the number 1.
        RoundError: An asynchronous call failed. In production the epoch would be run again.

    >>> from procession import Pipeline, aggregates
    >>> from procession.testing import run
    >>> pipeline = Pipeline("counts")
    >>> words = pipeline.source("words", codec="text").key_by(str)
    >>> counts = words.rolling(aggregates.count()).sink("counts", to="file:out", codec="json")
    >>> run(pipeline, {"words": ["a", "b", "a"]}, epochs=1, parallelism=4)
    {'counts': [1, 1, 2]}
    """
    prepared = Prepared.of(pipeline, inputs, parallelism, ends=ends)
    with scratch_directory(prepared.rows.nbytes) as directory:
        hosted = HostedPlan(prepared.plan, prepared.rows, directory, dead_letter_share_max)
        prepared.run(hosted, epochs, crashes)
    return hosted.outputs()


@dataclass(frozen=True)
class Prepared:
    """A pipeline and its inputs, ready to run."""

    plan: Plan
    rows: pa.RecordBatch
    names: Mapping[int, str]
    """The name of each stream, for people."""

    @classmethod
    def of(cls, pipeline: Pipeline, inputs: Inputs, parallelism: int | None, *, ends: bool) -> Prepared:
        graph = _with_tasks(pipeline.graph(), parallelism)
        arrivals = Arrivals.of(graph, inputs)
        graph = graph.with_inputs(arrivals.streams) if ends else graph
        plan = make_plan(graph)
        check_runnable(plan)
        check_without_spark(graph)
        rows = arrivals.rows(is_ended=ends)
        if (declared := declared_by(graph)) is not None:
            rows = in_event_order(declared, rows)
        return cls(plan, rows, arrivals.names)

    def run(
        self, hosted: HostedPlan, epochs: int | Sequence[int] | None, crashes: Collection[int] = (), first: int = 0
    ) -> None:
        """Run the epochs. `first` is the number of rows before these rows."""
        try:
            for number, end in enumerate(cuts_of(self.rows.column("kind").to_numpy() != KIND_EOS, epochs)):
                if number in crashes:
                    hosted.lose_epoch(first + end)
                hosted.run_epoch(first + end)
        except ProcessionError as error:
            _annotate(error, self.names)
            raise


@contextmanager
def scratch_directory(size_bytes: int) -> Iterator[Path]:
    """Create a directory for a run on this many bytes of input. It is in memory if there is room."""
    with tempfile.TemporaryDirectory(prefix="procession-test-", dir=_place(size_bytes)) as directory:
        yield Path(directory)


def _with_tasks(graph: Graph, parallelism: int | None) -> Graph:
    if parallelism is None:
        return graph
    checked_count(parallelism, "parallelism", "the test", PARALLELISM_MAX)
    nodes = tuple(node if node.parallelism is None else replace(node, parallelism=parallelism) for node in graph.nodes)
    return replace(graph, nodes=nodes, parallelism=parallelism)


def check_without_spark(graph: Graph) -> None:
    """Raise PlanError if a stage needs Spark."""
    for node in graph.nodes:
        if node.kind is Kind.TRANSFORM:
            raise PlanError(
                f"stage {node.name!r} is a transform: its function works on Spark's DataFrames, and cannot be run"
                " without Spark",
                next_step="test the function by itself on a Spark session, or run the app with procession run --input",
                stage=node.name,
            )


def _place(size_bytes: int) -> Path | None:
    """Return the parent directory of a run's files: in memory if there is room, else None for the default."""
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
        free = shutil.disk_usage(MEMORY).free
        return MEMORY if free >= MEMORY_BYTES_MIN + COPIES * size_bytes else None
    return None


def _annotate(error: ProcessionError, names: Mapping[int, str]) -> None:
    """Add notes to an error for the test's report: the name of the record's stream, the next step and the function's
    trace."""
    stream = error.fields.get("stream_id")
    if stream is not None and stream in names:
        error.add_note(f"stream {stream} is {names[stream]}")
    if error.next_step:
        error.add_note(f"next: {error.next_step}")
    if trace := error.fields.get("trace"):
        error.add_note(trace)


@dataclass(frozen=True)
class _Memory:
    """The only log of a run, in memory."""

    batch: pa.RecordBatch

    def read(self, start: int, end: int, offered: LogOffset = NOTHING) -> Any:
        if start < end:
            yield self.batch.slice(start, end - start)


@dataclass
class _Committed:
    """The commits of the epochs, as the round records would have them."""

    rounds: dict[int, RoundRecord] = field(default_factory=dict)

    def states(self, epoch: int) -> Mapping[str, StateVersion]:
        return self.rounds[epoch].states

    def sides(self, epoch: int) -> Mapping[str, str]:
        return self.rounds[epoch].sides


class HostedPlan:
    """A plan and everything that its tasks need, in one directory. If the round `begins` is given, the plan continues
    after it: then the round's state files and table copies are in `directory`, under `STATES` and `SIDES`."""

    def __init__(
        self,
        plan: Plan,
        rows: pa.RecordBatch,
        directory: Path,
        share_max: float = 1.0,
        begins: RoundRecord | None = None,
    ) -> None:
        self._plan = plan
        self._log = _Memory(rows)
        self._directory = directory
        self._committed = _Committed({} if begins is None else {0: begins})
        self._keyed = {chain: (name, StateVersion(kind=kind)) for chain, (name, kind) in keyed_stages(plan).items()}
        self._runs = RunStore(directory / "runs")
        (directory / STATES).mkdir(exist_ok=True)
        self._fence = 0 if begins is None else begins.fence
        self._start()
        letters = plan.graph.dead_letter
        self._limit = None if letters is None else DeadLetterLimit(letters.name, share_max)
        self._attempts = itertools.count(1)
        self._written: dict[str, list[bytes]] = {output.name: [] for output in outputs_of(plan.graph)}

    def _start(self) -> None:
        """Start a driver and its tasks with the committed states."""
        self._fence += 1
        self._refresh = TableRefresh.of(self._plan.graph, self._directory / SIDES, lambda _: None, self._fence)
        self._refresh.begin({} if self.last is None else self.last.sides)
        tables = TaskTables(self._refresh.copies.directory, self._committed, self._refresh.first)
        self._task = Task(
            self._plan,
            self._directory,
            self._runs.directory,
            TaskStateStore(self._directory / STATES, self._committed, self._fence, is_warm=False),
            tables=tables if self._refresh.sides else None,
            rows=self._log,
        )

    @property
    def last(self) -> RoundRecord | None:
        """The round record of the last epoch. None: no epoch is committed."""
        return self._committed.rounds.get(len(self._committed.rounds) - 1)

    def lose_epoch(self, end: int) -> None:
        """Run the rows up to this row, then crash: none of them is committed."""
        self._computed(len(self._committed.rounds), end)
        self._runs.drop(len(self._committed.rounds))
        self._start()

    def run_epoch(self, end: int) -> None:
        """Run the rows up to this row, and commit them."""
        epoch, last = len(self._committed.rounds), self.last
        task_manifests, runs, counters = self._computed(epoch, end)
        for name, sink_runs in runs.items():
            for column in payloads(self._runs, epoch, sink_runs):
                self._written[name] += column.to_pylist()
        self._committed.rounds[epoch] = RoundRecord(
            epoch,
            self._fence,
            "",
            0 if last is None else last.last,
            end,
            {},
            counters=counters,
            states=versions_after(self._keyed, task_manifests),
            sides=self._refresh.current({} if last is None else last.sides),
        )
        self._runs.drop(epoch)

    def _computed(self, epoch: int, end: int) -> tuple[list[Manifest], dict[str, list[Run]], dict[str, int]]:
        """Run the tasks up to this row. Returns their manifests, the runs of each output and the counters."""
        last = self.last
        start = 0 if last is None else last.last
        task_manifests = manifests(self._plan, self._routed_manifests(epoch, start, end), self._runs)
        for manifest in task_manifests:
            if manifest.failure is not None:
                raise ProcessionError.from_dict(manifest.failure)
        check_joined(epoch, [entry for entry in task_manifests if entry.stage == 0], start)
        runs = {
            entry.name: runs_for(entry.sink.name, entry.bucket, task_manifests)
            for entry in outputs_of(self._plan.graph)
        }
        return task_manifests, runs, self._counters(epoch, task_manifests, runs, {} if last is None else last.counters)

    def _routed_manifests(self, epoch: int, start: int, end: int) -> list[RoutedManifest]:
        plan, task = self._plan, self._task
        ranges = ranges_of(
            task, {FIRST_GATEWAY: start}, {FIRST_GATEWAY: end}, {FIRST_GATEWAY: LogLocation("")}, plan.chains[0].tasks
        )
        return run_tasks(task, ranges, partial(self._attempt, epoch))

    def _attempt(self, epoch: int, partition: int) -> Attempt:
        return Attempt(epoch, partition, next(self._attempts))

    def _counters(
        self,
        epoch: int,
        task_manifests: Sequence[Manifest],
        runs: Mapping[str, Sequence[Run]],
        before: Mapping[str, int],
    ) -> dict[str, int]:
        counters = counted(before, task_manifests, runs, self._keyed)
        if self._limit is None:
            return counters
        letters = runs[self._limit.sink]
        count = sum(run.count for run in letters)
        return judged(
            before, counters, self._limit, count, lambda: next(payloads(self._runs, epoch, letters))[0].as_py()
        )

    def outputs(self) -> Outputs:
        values = {
            participant.name: [
                decoded(participant.sink, payload, self._plan.graph) for payload in self._written[participant.name]
            ]
            for participant in outputs_of(self._plan.graph)
        }
        written = {name: b"".join(found) for name, found in self._written.items()}
        return Outputs(values, written, {} if self.last is None else dict(self.last.counters))


def decoded(sink: Node, payload: bytes, graph: Graph) -> Any:
    """Decode a record of an output. Returns its bytes if the sink's codec cannot decode them."""
    if sink is graph.dead_letter:
        return json.loads(payload)
    record = payload.removesuffix(b"\n") if sink.framing is SinkFraming.LINES else payload
    try:
        return DECODE[sink.codec](record)
    except ValueError:
        return record
