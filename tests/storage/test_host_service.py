"""Runs in the directories of several host services: authenticated clients read them, and named ones are deleted."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from procession import Pipeline, aggregates
from procession.errors import ConfigError, StorageError
from procession.planner.rules import make_plan
from procession.spark.task_state import TaskStateStore
from procession.spark.tasks import Task
from procession.storage.epoch_runs import EpochCleaner, EpochRuns
from procession.storage.file_service import FileService
from procession.storage.flight_reader import FlightAccess
from procession.storage.host_runs import (
    DIRECTORY_VARIABLE,
    TOGETHER_BYTES_MAX,
    HostRuns,
    announced_host,
    runs_folder,
)
from procession.storage.host_service import HostConfig, RunService, open_service
from procession.storage.run_store import Manifest, Run, RunStore
from procession.storage.shared_files import Folder, SharedFiles
from procession.testing import run as run_in_process
from procession.tls import ClientTls, ServerTls
from tests.certificates import Authority
from tests.operators.reference import batch_of
from tests.spark.cluster import Remembered, run_epoch, write_log, written

COOKIE = b"secret"
PIPELINE = "0a1b"
EPOCH = 4
RUNS = HostRuns(PIPELINE, 2, FlightAccess(COOKIE), patience_s=0.0)

Start = Callable[..., RunService]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[RunService] = []

    def make(name: str = "host", listen: str = "127.0.0.1:0", **options: object) -> RunService:
        settings = {"cookie": COOKIE, **options}
        started.append(open_service(HostConfig(tmp_path / name, listen, **settings)))  # type: ignore[arg-type]
        return started[-1]

    yield make
    for service in started:
        service.shutdown()


def on_host(directory: Path, monkeypatch: pytest.MonkeyPatch, runs: HostRuns = RUNS) -> RunStore:
    """Return the store of a task on the machine of this service."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(directory))
    return runs.store()


def rows(*payloads: bytes) -> pa.RecordBatch:
    return pa.record_batch({"payload": pa.array(payloads, pa.binary())})


def published(store: RunStore, epoch: int = EPOCH) -> dict[int, Run]:
    """Publish and return the runs of a task, by their bucket."""
    writer = store.writer(epoch, 0, 0, 1)
    for bucket, batch in ((0, rows(b"a")), (1, rows(b"b", b"c")), (0, rows(b"d"))):
        writer.add("spread", batch, bucket)
    return {run.bucket: run for run in writer.publish(Manifest(epoch, 0, 0, 0, 1)).runs}


def read(store: RunStore | HostRuns, run: Run) -> list[list[bytes]]:
    return [batch.column("payload").to_pylist() for batch in store.read(EPOCH, run)]


def test_a_run_is_the_same_on_its_own_host_and_on_another(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start("host")
    start("other")
    here = on_host(tmp_path / "host", monkeypatch)
    runs = published(here)
    there = on_host(tmp_path / "other", monkeypatch)
    for store in (here, there, RUNS):
        assert [read(store, runs[bucket]) for bucket in (0, 1)] == [[[b"a"], [b"d"]], [[b"b", b"c"]]]
    assert list((tmp_path / "other").rglob("*.arrow")) == []


def spread(store: RunStore, tasks: int, size: int = 1) -> list[Run]:
    """Return the runs of several tasks for bucket 0; every third task has none."""
    found = []
    for task in range(tasks):
        writer = store.writer(EPOCH, 0, task, 1)
        writer.add("spread", rows(b"other"), 1)
        for part in range(task % 3):
            writer.add("spread", rows(b"%d %d " % (task, part) + b"x" * size), 0)
        joined = writer.publish(Manifest(EPOCH, 0, task, 0, 1), {"spread"}).runs[0]
        found.append(replace(joined, bucket=0))
    return found


def read_all(store: RunStore, runs: list[Run]) -> list[list[bytes]]:
    paths = store.read_all(EPOCH, runs)
    return [[payload for batch in path for payload in batch.column("payload").to_pylist()] for path in paths]


def counted_requests(service: RunService, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets one element for each request to a service of this process."""
    asked: list[int] = []
    answer = RunService._checked

    def counted(self: RunService, body: bytes) -> dict[str, Any]:
        asked.append(1)
        return answer(self, body)

    monkeypatch.setattr(RunService, "_checked", counted)
    return asked


def test_small_runs_of_another_host_come_with_one_request(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = start("host")
    start("other")
    here = on_host(tmp_path / "host", monkeypatch)
    runs = spread(here, 50)
    there = on_host(tmp_path / "other", monkeypatch)
    asked = counted_requests(service, monkeypatch)
    found = read_all(there, runs)
    assert found == read_all(here, runs)
    assert [len(payloads) for payloads in found[:4]] == [0, 1, 2, 0]
    assert len(asked) == 1
    assert read_all(there, [*runs[:2], published(there)[1]])[2] == [b"b", b"c"], "its own runs are read as files"


def test_runs_that_do_not_fit_into_one_reply_are_fetched_one_by_one(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = start("host")
    start("other")
    here = on_host(tmp_path / "host", monkeypatch)
    runs = spread(here, 12, TOGETHER_BYTES_MAX // 5)
    there = on_host(tmp_path / "other", monkeypatch)
    asked = counted_requests(service, monkeypatch)
    assert read_all(there, runs) == read_all(here, runs)
    assert 2 < len(asked) < 12
    asked.clear()
    monkeypatch.setattr("procession.storage.run_store.FETCHED_BYTES_MAX", 0)
    assert read_all(there, runs) == read_all(here, runs)
    assert len(asked) == 12, "what is in memory is bounded"


@pytest.mark.parametrize("is_old", [False, True])
def test_a_missing_run_is_reported_and_an_older_service_is_asked_run_by_run(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    start("host")
    start("other")
    here = on_host(tmp_path / "host", monkeypatch)
    runs = spread(here, 6)
    there = on_host(tmp_path / "other", monkeypatch)
    if is_old:
        monkeypatch.setattr("procession.storage.host_service.TOGETHER_FILES_MAX", 0)
        assert read_all(there, runs) == read_all(here, runs)
        return
    next(tmp_path.rglob(runs[4].file)).unlink()
    paths = there.read_all(EPOCH, runs)
    assert [batch.num_rows for batch in paths[2]] == [1, 1]
    with pytest.raises(StorageError, match="is damaged: it is gone"):
        list(paths[4])


def test_a_run_on_the_same_host_needs_no_service(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = start("host")
    here = on_host(tmp_path / "host", monkeypatch)
    run = published(here)[1]
    service.shutdown()
    assert read(here, run) == [[b"b", b"c"]]
    with pytest.raises(StorageError, match=r"is lost: the host service at .* does not answer") as caught:
        read(RUNS, run)
    assert not caught.value.next_step, "the driver is restarted, and the epoch is run again"


def test_a_restarted_service_continues_from_its_files(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = start("host")
    run = published(on_host(tmp_path / "host", monkeypatch))[0]
    reading = replace(RUNS, patience_s=60.0).read(EPOCH, run)
    assert next(reading).column("payload").to_pylist() == [b"a"]
    service.shutdown()
    again = start("host")
    assert again.host == service.host, "the same identity, at the same port"
    assert [batch.column("payload").to_pylist() for batch in reading] == [[b"d"]]


def test_who_has_another_secret_format_or_name_gets_nothing(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start("host")
    run = published(on_host(tmp_path / "host", monkeypatch))[0]
    with pytest.raises(StorageError, match="wrong cookie") as caught:
        read(replace(RUNS, access=FlightAccess(b"other")), run)
    assert "cookie file" in caught.value.next_step
    for wrong in (
        replace(run, file="../" + run.file),
        replace(run, file=f"/{run.file}"),
        replace(run, file="host.json"),
        replace(run, host=run.host.replace(run.host[:4], "dead")),
    ):
        with pytest.raises(StorageError, match="is lost"):
            read(RUNS, wrong)
    with pytest.raises(StorageError, match="is not the id of a pipeline"):
        read(replace(RUNS, pipeline="../x"), run)
    monkeypatch.setattr("procession.storage.host_runs.TICKET_FORMAT", 99)
    with pytest.raises(StorageError, match="request has format 99") as caught:
        read(RUNS, run)
    assert "same version" in caught.value.next_step


def test_a_run_that_is_gone_or_damaged_is_reported_as_lost(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start("host")
    runs = published(on_host(tmp_path / "host", monkeypatch))
    (path,) = tmp_path.rglob("*.arrow")
    whole = path.read_bytes()
    at = whole.index(b"bc")
    path.write_bytes(whole[:at] + b"x" + whole[at + 1 :])
    with pytest.raises(StorageError, match="does not match its checksum"):
        read(RUNS, runs[1])
    path.unlink()
    with pytest.raises(StorageError, match="is damaged: it is gone"):
        read(RUNS, runs[1])


def test_the_driver_gets_a_copy_of_each_run_of_its_own(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start("host")
    store = on_host(tmp_path / "host", monkeypatch)
    runs = published(store)
    manifest = Manifest(EPOCH, 0, 0, 0, 1, runs=tuple(runs.values()))
    driver = RunStore(tmp_path / "driver")
    (copied,) = EpochRuns(driver, RUNS).gathered(EPOCH, [manifest])
    assert [run.host for run in copied.runs] == ["", ""]
    assert {run.bucket: read(driver, run) for run in copied.runs} == {0: [[b"a"], [b"d"]], 1: [[b"b", b"c"]]}
    fewer = replace(manifest, runs=(replace(runs[1], count=3),))
    with pytest.raises(StorageError, match="has 2 rows, its manifest says 3"):
        EpochRuns(driver, RUNS).gathered(EPOCH, [fewer])


def test_a_driver_deletes_its_epochs_and_those_of_earlier_drivers_only(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = start("host").host
    for runs in (replace(RUNS, fence=1), RUNS, replace(RUNS, fence=3), replace(RUNS, pipeline="other", fence=1)):
        for epoch in (EPOCH - 1, EPOCH, EPOCH + 1):
            published(on_host(tmp_path / "host", monkeypatch, runs), epoch)
    cleaner = EpochCleaner(RUNS)
    cleaner.done_with(EPOCH, [str(host)])
    assert cleaner._thread is not None
    cleaner._thread.join()

    def epochs(pipeline: str, fence: int) -> list[int]:
        return RunStore(runs_folder(tmp_path / "host", pipeline, fence)).epochs()

    assert epochs(PIPELINE, 1) == []
    assert epochs(PIPELINE, 2) == [EPOCH + 1]
    assert epochs(PIPELINE, 3) == epochs("other", 1) == [EPOCH - 1, EPOCH, EPOCH + 1]


def test_over_tls_a_run_is_the_same(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path / "ca")
    cert, key = authority.issue("127.0.0.1")
    start("host", tls=ServerTls(cert, key))
    run = published(on_host(tmp_path / "host", monkeypatch))[1]
    trusting = replace(RUNS, access=FlightAccess(COOKIE, ClientTls(authority.ca)))
    assert read(trusting, run) == [[b"b", b"c"]]
    with pytest.raises(StorageError, match="is lost"):
        read(RUNS, run)


def test_an_executor_without_a_service_names_the_service_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DIRECTORY_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="has no host service: PROCESSION_HOST_DIR is not set"):
        RUNS.store()
    with pytest.raises(ConfigError, match="No host service has been started in") as caught:
        on_host(tmp_path, monkeypatch)
    assert f"procession host --dir {tmp_path}" in caught.value.next_step


def test_a_service_without_a_secret_or_at_a_taken_port_is_refused(start: Start, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs the pipeline's control secret"):
        start("host", cookie=b"")
    port = start("first").port
    with pytest.raises(ConfigError, match="Cannot serve runs at"):
        start("second", listen=f"127.0.0.1:{port}")
    assert announced_host(tmp_path / "first").location.endswith(f":{port}")


# A plan with tasks on two machines


@dataclass(frozen=True)
class EveryOther(HostRuns):
    """A cluster in which consecutive tasks run on different machines."""

    turns: Iterator[Path] = field(default_factory=lambda: iter(()))
    monkeypatch: pytest.MonkeyPatch = field(default_factory=pytest.MonkeyPatch)

    def store(self) -> RunStore:
        self.monkeypatch.setenv(DIRECTORY_VARIABLE, str(next(self.turns)))
        return super().store()


def counted() -> Pipeline:
    pipeline = Pipeline("counted", parallelism=4)
    words = pipeline.source("words", codec="text")
    counts = words.key_by(last).rolling(aggregates.count()).map(str)
    counts.merge(words.rebalance().map(str.upper)).sink("out", to="file:out", codec="text")
    return pipeline


def last(word: str) -> str:
    return word[-1]


def test_the_output_of_tasks_on_two_machines_is_that_of_one(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"{number}{'abc'[number % 3]}" for number in range(200)]
    batch = batch_of([word.encode() for word in words])
    plan = make_plan(counted().graph())
    write_log(tmp_path / "log", batch)
    for name in ("one", "two"):
        start(name)
    turns = itertools.cycle([tmp_path / "one", tmp_path / "two"])
    hosts = EveryOther(PIPELINE, 2, FlightAccess(COOKIE), turns=turns, monkeypatch=monkeypatch)
    versions = Remembered()
    (tmp_path / "state").mkdir()
    files = FileService({Folder.STATES: tmp_path / "state"}, 2, COOKIE, "127.0.0.1:0")
    shared = SharedFiles(files.location, PIPELINE, FlightAccess(COOKIE))
    states = TaskStateStore(tmp_path / "not here", versions, 2, shared=shared)
    task = Task(plan, tmp_path / "log", tmp_path / "runs", states, hosts=hosts)
    epochs = []
    for epoch, (first, end) in enumerate(itertools.pairwise([0, 90, 120, 200])):
        made = run_epoch(task, epoch, first, end, random.Random(epoch))
        assert {manifest.host for manifest in made} == {str(announced_host(tmp_path / name)) for name in ("one", "two")}
        versions.add(plan, made)
        epochs.append(EpochRuns(RunStore(tmp_path / "runs"), hosts).gathered(epoch, made))
        shutil.rmtree(tmp_path / "two" / "states", ignore_errors=True)  # the machine is replaced by an empty one
    files.shutdown()
    wanted = run_in_process(counted(), {"words": words}, ends=False).bytes
    assert written(plan, tmp_path / "runs", epochs) == wanted
