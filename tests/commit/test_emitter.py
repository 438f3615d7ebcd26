"""A sink receives the runs of an epoch in order, as records, joined bytes or blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.commit.emitter import length_of, messages, packed
from procession.commit.sink_link import SinkOptions
from procession.errors import StorageError
from procession.storage.run_store import Manifest, Run, RunStore
from procession.wire.block_codec import decode_block

BLOCKS = SinkOptions("out", "127.0.0.1", 1, "p", "p-out-0", pack_bytes_max=1000, is_in_blocks=True)


def written(store: RunStore, partition: int, rows: list[tuple[int, bytes, bytes | None, int | None]]) -> Run:
    """Write and return a run of rows (order, payload, key, event time)."""
    writer = store.writer(0, 0, partition, 1)
    orders, payloads, keys, times = zip(*rows, strict=True)
    columns = {
        "payload": pa.array(payloads, pa.binary()),
        "order_0": pa.array(orders, pa.int64()),
        "key": pa.array(keys, pa.binary()),
        "event_time": pa.array(times, pa.int64()),
    }
    writer.add("out", pa.record_batch(columns))
    return writer.publish(Manifest(0, 0, partition, 0, 10)).runs[0]


def records_of(store: RunStore, runs: list[Run], options: SinkOptions = BLOCKS) -> list[dict[str, object]]:
    arrays = messages(store, 0, runs, options)
    return [row for array in arrays for block in array.to_pylist() for row in decode_block(block).to_pylist()]


def test_blocks_hold_the_records_of_all_runs_merged_with_key_and_time(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    runs = [
        written(store, 0, [(1, b"a", b"k1", 10), (4, b"d", None, None)]),
        written(store, 1, [(2, b"b", b"", None), (3, b"c", b"k3", 30)]),
    ]
    assert records_of(store, runs) == [
        {"payload": b"a", "key": b"k1", "event_time_ns": 10},
        {"payload": b"b", "key": b"", "event_time_ns": None},
        {"payload": b"c", "key": b"k3", "event_time_ns": 30},
        {"payload": b"d", "key": None, "event_time_ns": None},
    ]


def test_a_merge_that_alternates_often_between_runs_has_few_blocks(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    runs = [
        written(store, part, [(2 * number + part, b"x" * 10, None, None) for number in range(200)]) for part in (0, 1)
    ]
    sizes = [len(decode_block(array[0].as_py())) for array in messages(store, 0, runs, BLOCKS)]
    assert sum(sizes) == 400
    assert max(sizes) <= 101
    assert len(sizes) <= 8


def test_the_size_of_blocks_is_not_known_before_they_are_sent(tmp_path: Path) -> None:
    run = written(RunStore(tmp_path), 0, [(1, b"abc", None, None)])
    assert length_of([run], BLOCKS) is None
    assert length_of([run], replace(BLOCKS, is_in_blocks=False)) == 3


def test_runs_with_fewer_records_than_their_manifest_says_are_an_error(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run = replace(written(store, 0, [(1, b"abc", None, None)]), count=2)
    with pytest.raises(StorageError, match="hold 1 records, their manifests say 2"):
        records_of(store, [run])


@given(
    records=st.lists(st.binary(max_size=12), min_size=1, max_size=60),
    bytes_max=st.integers(0, 20),
    skipped=st.integers(0, 5),
)
def test_packing_changes_only_the_boundaries_of_messages(records: list[bytes], bytes_max: int, skipped: int) -> None:
    column = pa.array([b"skipped"] * skipped + records, pa.binary()).slice(skipped)
    found = packed(column, bytes_max)
    assert found.type == pa.binary()
    whole = found.to_pylist()
    assert b"".join(whole) == b"".join(records)
    if bytes_max == 0:
        assert whole == records
    starts = {sum(map(len, records[:number])) for number in range(len(records) + 1)}
    assert {sum(map(len, whole[:number])) for number in range(len(whole) + 1)} <= starts, "a record is never divided"
    longest = max(map(len, records))
    assert all(len(message) <= max(1, bytes_max) + longest for message in whole)
