"""The driver fetches only the runs that it sends, and runs stay at host services until their epoch is dropped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from procession.errors import StorageError
from procession.storage import host_runs
from procession.storage.epoch_runs import EpochRuns
from procession.storage.flight_reader import FlightAccess
from procession.storage.host_runs import DIRECTORY_VARIABLE, HostRuns, runs_folder
from procession.storage.host_service import HostConfig, RunService, open_service
from procession.storage.run_store import Manifest, Run, RunStore

COOKIE = b"secret"
RUNS = HostRuns("0a1b", 2, FlightAccess(COOKIE), patience_s=0.0)
EPOCH = 4


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunService]:
    started = open_service(HostConfig(tmp_path / "host", "127.0.0.1:0", COOKIE))
    yield started
    started.shutdown()


def rows(*payloads: bytes) -> pa.RecordBatch:
    return pa.record_batch({"payload": pa.array(payloads, pa.binary())})


def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: int) -> Manifest:
    """Publish the manifest of a task with a run for each of two sinks."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "host"))
    writer = RUNS.store().writer(epoch, 0, 0, 1)
    writer.add("parted", rows(b"large" * 100, b"more" * 100), 1)
    writer.add("parted", rows(b"third" * 100), 1)
    writer.add("whole", rows(b"small"))
    return writer.publish(Manifest(epoch, 0, 0, 0, 1))


def to(manifest: Manifest, sink: str) -> Run:
    (found,) = [run for run in manifest.runs if run.to == sink]
    return found


def epochs(tmp_path: Path) -> list[int]:
    return RunStore(runs_folder(tmp_path / "host", RUNS.pipeline, RUNS.fence)).epochs()


def until_dropped(tmp_path: Path, left: list[int]) -> None:
    deadline = time.monotonic() + 30
    while epochs(tmp_path) != left:
        assert time.monotonic() < deadline, epochs(tmp_path)
        time.sleep(0.01)


def test_runs_that_emitters_send_are_not_fetched_and_stay_until_the_epoch_is_dropped(
    service: RunService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [published(tmp_path, monkeypatch, epoch) for epoch in (EPOCH, EPOCH + 1)]
    driver = EpochRuns(RunStore(tmp_path / "driver"), RUNS, {"parted"})
    found = [driver.gathered(manifest.epoch, [manifest])[0] for manifest in made]
    for before, after in zip(made, found, strict=True):
        assert to(after, "parted") == to(before, "parted"), "it stays where it is"
        assert to(after, "whole").host == ""
    (batches,) = driver.read_all(EPOCH, [to(found[0], "whole")])
    assert [batch.column("payload").to_pylist() for batch in batches] == [[b"small"]]
    assert 0 < driver.fetched_bytes < 100, "only the small runs"
    assert epochs(tmp_path) == [EPOCH, EPOCH + 1]
    driver.drop(EPOCH)
    until_dropped(tmp_path, [EPOCH + 1])
    assert driver.store.epochs() == [EPOCH + 1]


def test_an_epoch_that_needs_no_runs_does_not_delete_those_of_the_epoch_before(
    service: RunService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = published(tmp_path, monkeypatch, EPOCH)
    driver = EpochRuns(RunStore(tmp_path / "driver"), RUNS, {"parted"})
    driver.gathered(EPOCH, [made])
    driver.gathered(EPOCH + 1, [Manifest(EPOCH + 1, 0, 0, 1, 2, host=made.host)])
    assert driver._cleaner is not None
    assert driver._cleaner._thread is None, "no host was asked to delete anything"
    driver.drop(EPOCH)
    until_dropped(tmp_path, [])


def test_runs_that_are_all_fetched_are_deleted_at_once(
    service: RunService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = published(tmp_path, monkeypatch, EPOCH)
    driver = EpochRuns(RunStore(tmp_path / "driver"), RUNS)
    driver.gathered(EPOCH, [manifest])
    until_dropped(tmp_path, [])
    assert driver.fetched_bytes > 1300
    assert driver.store.epochs() == [EPOCH]


def test_without_host_services_nothing_is_fetched(tmp_path: Path) -> None:
    driver = EpochRuns(RunStore(tmp_path / "driver"), None, {"parted"})
    writer = driver.store.writer(EPOCH, 0, 0, 1)
    writer.add("whole", rows(b"here"))
    manifest = writer.publish(Manifest(EPOCH, 0, 0, 0, 1))
    assert driver.gathered(EPOCH, [manifest]) == [manifest]
    driver.drop(EPOCH)
    assert driver.store.epochs() == []


def test_a_run_that_is_lost_is_reported_with_its_epoch(
    service: RunService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = published(tmp_path, monkeypatch, EPOCH)
    lost = replace(manifest, runs=tuple(replace(run, file="gone.arrow") for run in manifest.runs))
    with pytest.raises(StorageError, match=f"a run of epoch {EPOCH} is lost"):
        EpochRuns(RunStore(tmp_path / "driver"), RUNS, {"parted"}).gathered(EPOCH, [lost])


def test_a_reader_that_is_slower_than_the_time_out_of_a_reply_loses_no_run(
    service: RunService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = to(published(tmp_path, monkeypatch, EPOCH), "parted")
    monkeypatch.setattr(host_runs, "CALL_TIMEOUT_S", 0.2)
    found = []
    # The reader's own time is longer than its patience with the service.
    for batch in replace(RUNS, patience_s=0.3).read(EPOCH, run):
        found += batch.column("payload").to_pylist()
        time.sleep(0.6)
    assert found == [b"large" * 100, b"more" * 100, b"third" * 100]
