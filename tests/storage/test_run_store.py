"""The run store: a task has one published manifest, however often it is tried, and a run is complete or refused."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.errors import StorageError
from procession.storage.run_store import EVERY_BUCKET, Manifest, Run, RunStore
from tests.storage.disks import file_size_limit

EPOCH = 4


def manifest(partition: int = 0, **fields: object) -> Manifest:
    return Manifest(EPOCH, 0, partition, 100, 200, **fields)  # type: ignore[arg-type]


def rows(payloads: list[bytes]) -> pa.RecordBatch:
    return pa.record_batch({"payload": pa.array(payloads, pa.binary())})


def attempt(store: RunStore, number: int, payloads: list[bytes], partition: int = 0) -> Manifest:
    writer = store.writer(EPOCH, 0, partition, number)
    writer.add("out", rows(payloads))
    return writer.publish(manifest(partition, records=len(payloads)))


def read(store: RunStore, run: Run) -> list[bytes]:
    return [payload for batch in store.read(EPOCH, run) for payload in batch.column("payload").to_pylist()]


@given(batches=st.lists(st.lists(st.binary(max_size=5), max_size=5), max_size=5))
def test_a_run_returns_its_rows_in_order(tmp_path_factory: pytest.TempPathFactory, batches: list[list[bytes]]) -> None:
    store = RunStore(tmp_path_factory.mktemp("runs"))
    writer = store.writer(EPOCH, 0, 0, 1)
    for batch in batches:
        # A slice: its offsets do not begin at zero, and its buffers have more rows.
        writer.add("out", rows([b"before", *batch, b"after"]).slice(1, len(batch)))
    whole = [payload for batch in batches for payload in batch]
    published = writer.publish(manifest())
    if not whole:
        assert published.runs == ()
        return
    (run,) = published.runs
    assert read(store, run) == whole
    assert (run.to, run.count, run.payload_bytes, run.keys) == ("out", len(whole), sum(map(len, whole)), 0)


def test_each_bucket_has_a_run_of_its_own_with_the_columns_that_it_was_given(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    writer = store.writer(EPOCH, 0, 0, 1)
    for bucket in (1, 0, 1):
        order = {f"order_{place}": pa.array([bucket, 7], pa.int64()) for place in range(2)}
        writer.add("spread", pa.record_batch({"payload": pa.array([b"x", b"y"], pa.binary()), **order}), bucket)
    runs = {run.bucket: run for run in writer.publish(manifest()).runs}
    assert {bucket: (run.count, run.keys) for bucket, run in runs.items()} == {0: (2, 2), 1: (4, 2)}
    (batch,) = store.read(EPOCH, runs[0])
    assert batch.column("order_0").to_pylist() == [0, 7]


def test_the_runs_of_all_buckets_are_in_one_file_and_each_is_read_by_itself(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    writer = store.writer(EPOCH, 0, 0, 1)
    for number, bucket in enumerate((2, 0, 2, 1)):
        writer.add("spread", rows([b"%d" % number]), bucket)
    published = writer.publish(manifest())
    assert len(list(tmp_path.rglob("*.arrow"))) == 1
    assert {run.bucket: read(store, run) for run in published.runs} == {0: [b"1"], 1: [b"3"], 2: [b"0", b"2"]}


def test_for_a_wide_exchange_the_manifest_has_one_run_in_place_of_one_for_each_bucket(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    writer = store.writer(EPOCH, 0, 0, 1)
    for bucket in range(3):
        writer.add("wide", rows([b"x" * (bucket + 1)]), bucket)
        writer.add("narrow", rows([b"y"]), bucket)
    runs = writer.publish(manifest(), wide={"wide"}).runs
    assert [(run.to, run.bucket) for run in runs if run.to == "narrow"] == [("narrow", 0), ("narrow", 1), ("narrow", 2)]
    (wide,) = (run for run in runs if run.to == "wide")
    assert (wide.bucket, wide.count, wide.payload_bytes) == (EVERY_BUCKET, 3, 6)
    assert [read(store, replace(wide, bucket=bucket)) for bucket in (1, 3)] == [[b"xx"], []]


def test_a_second_attempt_gets_the_manifest_that_the_first_has_published(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    assert store.published(EPOCH, 0, 0) is None
    first = attempt(store, 1, [b"first"])
    second = attempt(store, 2, [b"second", b"not the same"])
    assert second == first == store.published(EPOCH, 0, 0)
    assert read(store, *second.runs) == [b"first"]
    assert store.published(EPOCH, 0, 1) is None


def test_of_attempts_at_the_same_time_one_is_published_and_all_get_that_one(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    gate = threading.Barrier(8)
    got: list[Manifest] = []

    def try_it(number: int) -> None:
        gate.wait()
        got.append(attempt(store, number, [b"%d" % number]))

    threads = [threading.Thread(target=try_it, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8
    assert {one.to_json() for one in got} == {got[0].to_json()}
    assert list(tmp_path.rglob("*.draft")) == []


def test_every_truncated_run_is_refused_and_never_read_as_a_shorter_one(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    (run,) = attempt(store, 1, [b"payload-%d" % number for number in range(20)]).runs
    path = next(tmp_path.rglob("*.arrow"))
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(StorageError, match="is damaged: "):
            read(store, run)
    path.unlink()
    with pytest.raises(StorageError, match="is damaged: it is gone"):
        read(store, run)


def test_every_damaged_byte_of_a_run_is_found_and_the_driver_may_make_the_epoch_again(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    (run,) = attempt(store, 1, [b"payload-%d" % number for number in range(20)]).runs
    path = next(tmp_path.rglob("*.arrow"))
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        found = None
        try:
            got = read(store, run)
        except StorageError as error:
            found = error
        if found is None:
            assert got == [b"payload-%d" % number for number in range(20)]
            assert whole[at] == 0, "only padding may change unnoticed"
            continue
        assert path.name in found.sentence
        assert not found.next_step or "version" in found.next_step, "an error without a next step causes a restart"


def test_a_damaged_manifest_is_found(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    attempt(store, 1, [b"x"])
    path = next(tmp_path.rglob("*.manifest"))
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(StorageError, match="does not match its checksum"):
            store.published(EPOCH, 0, 0)


def test_a_full_disk_names_the_place_and_publishes_nothing(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    with file_size_limit(4096), pytest.raises(StorageError, match="Cannot write runs in") as caught:
        attempt(store, 1, [b"x" * 100_000])
    assert caught.value.next_step
    assert store.published(EPOCH, 0, 0) is None


def test_a_dropped_epoch_is_forgotten_and_the_others_stay(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    attempt(store, 1, [b"x"])
    other = store.writer(EPOCH + 1, 0, 0, 1).publish(Manifest(EPOCH + 1, 0, 0, 0, 1))
    store.drop(EPOCH)
    store.drop(EPOCH)
    assert store.published(EPOCH, 0, 0) is None
    assert store.published(EPOCH + 1, 0, 0) == other


def test_a_driver_deletes_the_runs_of_earlier_drivers_only(tmp_path: Path) -> None:
    for name in ("0000000004", "0000000005", "0000000006", "kept"):
        attempt(RunStore(tmp_path / name), 1, [b"x"])
    RunStore(tmp_path).clear_before(5)
    assert {path.name for path in tmp_path.iterdir()} == {"0000000005", "0000000006", "kept"}
    RunStore(tmp_path / "none").clear_before(5)


def test_a_manifest_passes_through_json_unchanged() -> None:
    whole = manifest(
        records=3,
        runs=(Run("out", 0, "file", 3, 9), Run("spread", 2, "other", 1, 1, keys=2)),
        positions={2**64 - 2: 2**63, 0: 0},
        times=(1, 2, 3),
        failure={"kind": "RecordError", "sentence": "s", "next_step": "", "fields": {}},
    )
    assert Manifest.from_json(whole.to_json()) == whole
