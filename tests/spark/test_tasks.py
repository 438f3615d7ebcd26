"""A chain's task on a real log: cuts, parallelism and retries do not change its output, and failures name their
record."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.api.pipeline import Pipeline
from procession.commit.emitter import payloads, runs_for
from procession.errors import ProcessionError, RecordError, StorageError
from procession.planner.plan import Plan
from procession.planner.rules import make_plan
from procession.spark.epoch_tasks import distribute
from procession.spark.tasks import TIMES, Attempt, Task
from procession.storage.log import IngressLog
from procession.storage.run_store import Manifest, RunStore
from procession.storage.segment import (
    INGRESS_SCHEMA,
    KIND_BOUNDARY,
    KIND_EOS,
    KIND_EPHEMERAL,
    KIND_RECORD,
    KIND_UNSTABLE,
)

ROWS = 500


def worded(payload: bytes) -> list[bytes]:
    if payload.endswith(b"13"):
        raise ValueError("unlucky")
    return payload.split()


def plan(*, is_forgiving: bool = True) -> Plan:
    pipeline = Pipeline("p", dead_letter="file:dead" if is_forgiving else None)
    words = pipeline.source().flat_map(worded)
    words.sink("words", to="file:out")
    words.filter(lambda word: len(word) > 2).map(bytes.upper).sink("long", to="file:out", framing="raw")
    return make_plan(pipeline.graph())


@pytest.fixture(scope="module")
def log_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a log of three streams, with ends in between, in segments that a range may span."""
    directory = tmp_path_factory.mktemp("log")
    chance = random.Random(7)
    with IngressLog(directory, segment_bytes_max=4096) as log:
        start = 0
        while start < ROWS:
            count = min(chance.randint(1, 60), ROWS - start)
            numbers = range(start, start + count)
            columns = [
                [KIND_EOS if number % 97 == 96 else KIND_RECORD for number in numbers],
                [number % 3 for number in numbers],
                [number * 10 for number in numbers],
                [1_000 + number for number in numbers],
                [b""] * count,
                [b"" if number % 97 == 96 else b"record %d" % number for number in numbers],
            ]
            arrays = [pa.array(column, field.type) for column, field in zip(columns, INGRESS_SCHEMA, strict=True)]
            log.append(pa.record_batch(arrays, schema=INGRESS_SCHEMA))
            start += count
        log.sync()
    return directory


def run_epoch(task: Task, epoch: int, start: int, end: int, parallelism: int) -> list[Manifest]:
    return [
        task.run_range(Attempt(epoch, share.number, 1), share.first, share.last)
        for share in distribute(start, end, parallelism)
    ]


def written(task: Task, epochs: list[list[Manifest]]) -> dict[str, bytes]:
    """Return what the sinks get in these epochs, read as the driver reads it."""
    store = RunStore(task.runs_directory)
    return {
        sink.name: b"".join(
            b"".join(column.to_pylist())
            for manifests in epochs
            for column in payloads(store, manifests[0].epoch, runs_for(sink.name, None, manifests))
        )
        for sink in task.graph.sinks
    }


@given(cuts=st.sets(st.integers(1, ROWS - 1), max_size=6), parallelism=st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_i11_the_output_does_not_depend_on_epochs_and_parallelism(
    tmp_path_factory: pytest.TempPathFactory, log_directory: Path, cuts: set[int], parallelism: int
) -> None:
    whole = Task(plan(), log_directory, tmp_path_factory.mktemp("whole"))
    expected = written(whole, [run_epoch(whole, 0, 0, ROWS, 1)])
    assert expected["words"].count(b"record") == sum(
        number % 97 != 96 and not str(number).endswith("13") for number in range(ROWS)
    )
    task = Task(plan(), log_directory, tmp_path_factory.mktemp("cut"))
    edges = [0, *sorted(cuts), ROWS]
    epochs = [run_epoch(task, epoch, *edge, parallelism) for epoch, edge in enumerate(pairwise(edges))]
    assert written(task, epochs) == expected
    assert sum(manifest.records for manifests in epochs for manifest in manifests) == ROWS - ROWS // 97


@given(start=st.integers(0, ROWS - 1), count=st.integers(1, 200), parallelism=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_i5_running_an_epoch_again_reads_the_same_records_in_the_same_order(
    tmp_path_factory: pytest.TempPathFactory, log_directory: Path, start: int, count: int, parallelism: int
) -> None:
    end = min(ROWS, start + count)
    once, again = (Task(plan(), log_directory, tmp_path_factory.mktemp("runs")) for _ in range(2))
    first, second = run_epoch(once, 3, start, end, parallelism), run_epoch(again, 3, start, end, parallelism)
    assert written(once, [first]) == written(again, [second])
    assert [manifest.positions for manifest in first] == [one.positions for one in second]


def test_a_second_attempt_does_not_call_the_users_functions_and_gives_the_first_ones_manifest(
    tmp_path: Path, log_directory: Path
) -> None:
    calls: list[bytes] = []
    pipeline = Pipeline("p")
    pipeline.source().map(lambda payload: (calls.append(payload), b"%d" % len(calls))[1]).sink("out", to="file:out")
    task = Task(make_plan(pipeline.graph()), log_directory, tmp_path)
    first = task.run_range(Attempt(0, 0, 1), 0, 50)
    called = len(calls)
    assert task.run_range(Attempt(0, 0, 2), 0, 50) == first
    assert len(calls) == called == 50


def test_a_manifest_tells_the_last_message_id_of_each_stream_and_quantiles_of_the_times(
    tmp_path: Path, log_directory: Path
) -> None:
    manifest = Task(plan(), log_directory, tmp_path).run_range(Attempt(0, 0, 1), 90, 98)
    # 96 is the end of stream 0: not a record, so the last record of that stream is 93.
    assert manifest.positions == {0: 930, 1: 970, 2: 950}
    assert manifest.records == 7
    assert len(manifest.times) == TIMES
    assert (manifest.times[0], manifest.times[-1]) == (1_090, 1_097)


def test_records_without_a_stable_id_are_records_and_tell_no_position_and_a_boundary_is_the_opposite(
    tmp_path: Path,
) -> None:
    kinds = [KIND_RECORD, KIND_UNSTABLE, KIND_UNSTABLE, KIND_BOUNDARY, KIND_EPHEMERAL, KIND_UNSTABLE, KIND_RECORD]
    columns = [
        kinds,
        [1, 1, 1, 1, 2, 1, 1],
        [10, 900, 901, 20, 0, 902, 30],
        [0] * 7,
        [b""] * 7,
        [b"a", b"b", b"c", b"", b"d", b"e", b"f"],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, INGRESS_SCHEMA, strict=True)]
    with IngressLog(tmp_path / "log") as log:
        log.append(pa.record_batch(arrays, schema=INGRESS_SCHEMA))
        log.sync()
    pipeline = Pipeline("p")
    pipeline.source().sink("out", to="file:out", framing="raw")
    task = Task(make_plan(pipeline.graph()), tmp_path / "log", tmp_path / "runs")
    assert task.run_range(Attempt(0, 0, 1), 0, 3).positions == {1: 10}, (
        "a group that is cut tells what stands before it"
    )
    assert task.run_range(Attempt(1, 0, 1), 1, 3).positions == {}
    assert task.run_range(Attempt(2, 0, 1), 1, 5).positions == {1: 20}
    whole = task.run_range(Attempt(3, 0, 1), 0, 7)
    assert (whole.positions, whole.records) == ({1: 30}, 6)
    assert written(task, [[whole]])["out"] == b"abcdef"


def test_a_function_that_raises_comes_back_as_the_manifests_failure_and_publishes_nothing(
    tmp_path: Path, log_directory: Path
) -> None:
    task = Task(plan(is_forgiving=False), log_directory, tmp_path)
    manifest = Manifest.from_json(task.run_range(Attempt(0, 0, 1), 100, 130).to_json())
    assert manifest.failure is not None
    error = ProcessionError.from_dict(manifest.failure)
    assert isinstance(error, RecordError)
    assert (error.stream_id, error.message_id, error.stage) == (113 % 3, 1130, "flat-map-1")
    assert manifest.runs == ()
    assert RunStore(tmp_path).published(0, 0, 0) is None


def test_records_that_the_log_does_not_have_are_a_failure_that_names_them(tmp_path: Path, log_directory: Path) -> None:
    manifest = Task(plan(), log_directory, tmp_path).run_range(Attempt(0, 0, 1), ROWS - 5, ROWS + 5)
    assert manifest.failure is not None
    assert isinstance(ProcessionError.from_dict(manifest.failure), StorageError)
    assert str(ROWS + 5) in manifest.failure["sentence"]
