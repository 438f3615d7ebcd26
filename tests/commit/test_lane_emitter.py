"""A lane receives the sorted records of an epoch, with their order keys, and a frontier with the lane's identity."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from procession.commit.emitter import SinkRuns, emission
from procession.commit.round_events import EmitEpoch
from procession.commit.sink_link import SinkOptions
from procession.errors import StorageError
from procession.storage.run_store import Manifest, Run, RunStore
from procession.wire.lane_blocks import Frontier, LaneIdentity, LaneRecords, decode_blocks, group_of
from tests.commit.test_emitter import written

LANE = LaneIdentity("", "p", "out", (1,), 3, "total", paths=4)
OPTIONS = SinkOptions(
    "out.1", "127.0.0.1", 1, "p", "p-out-1", pack_bytes_max=100, is_in_blocks=True, sink="out", bucket=1, lane=LANE
)
ACTION = EmitEpoch("out.1", "p-w-out.1-id-c0ffee.e0.f1:c_id=1", 0, 0, None)


def emitted(store: RunStore, runs: list[Run]) -> list[LaneRecords | Frontier]:
    manifests = [Manifest(0, 0, 0, 0, 10, runs=tuple(runs))]
    arrays = emission(store, ACTION, SinkRuns(manifests).of(OPTIONS), OPTIONS)
    return [block.content for array in arrays for data in array.to_pylist() for block in decode_blocks(data)]


def test_a_lane_gets_its_runs_merged_and_a_frontier_that_counts_all_lanes(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    runs = [
        replace(written(store, 0, [(1, b"a", b"k1", 10), (4, b"d", None, None)]), bucket=1),
        replace(written(store, 1, [(2, b"b" * 90, b"", None), (3, b"c" * 90, b"k3", 30)]), bucket=1),
        replace(written(store, 2, [(0, b"z", b"", None)]), bucket=0),
    ]
    # The batches of a run are marked with its bucket, and these were written with bucket 0.
    store.read = lambda epoch, run: RunStore(tmp_path).read(epoch, replace(run, bucket=0))  # type: ignore[method-assign]
    *blocks, frontier = emitted(store, runs)
    rows = [row for block in blocks if isinstance(block, LaneRecords) for row in block.batch.to_pylist()]
    assert [row["order_0"] for row in rows] == [1, 2, 3, 4]
    assert rows[0] == {"payload": b"a", "key": b"k1", "event_time": 10, "order_0": 1}
    assert len(blocks) > 1, "the size of blocks is bounded"
    assert frontier == Frontier(0, replace(LANE, group=group_of("c0ffee", "p", "out", 3)), 4, 5)


def test_a_lane_without_records_gets_a_frontier(tmp_path: Path) -> None:
    (frontier,) = emitted(RunStore(tmp_path), [])
    assert isinstance(frontier, Frontier)
    assert (frontier.records, frontier.total) == (0, 0)


def test_lanes_of_two_checkpoints_belong_to_two_groups() -> None:
    first = group_of("a", "p", "s", 2)
    assert len({first, group_of("b", "p", "s", 2), group_of("a", "p", "s", 3), group_of("a", "q", "s", 2)}) == 4


def test_runs_with_fewer_records_than_their_manifest_says_are_an_error(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run = replace(written(store, 0, [(1, b"abc", None, None)]), bucket=1, count=2)
    store.read = lambda epoch, run: RunStore(tmp_path).read(epoch, replace(run, bucket=0))  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="hold 1 records, their manifests say 2"):
        emitted(store, [run])
