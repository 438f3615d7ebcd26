"""A merger emits the sequence from which the lanes were written, for any lanes, and names the lane that it waits
for."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from procession.errors import ConfigError, StorageError
from procession.sdk import merged
from procession.sdk.lane_files import open_directory
from procession.sdk.lane_merge import LaneMerge, MergeOptions
from tests.sdk.lanes import LaneWriter, dealt
from tests.slow_cases import slow


def numbers_of(*places: str | Path, **options: object) -> list[int]:
    return [int(record.payload) for record in merged(*places, **options)]  # type: ignore[arg-type]


def written(
    directory: Path, lanes: int, epochs: int = 4, records: int = 300, empty: tuple[int, ...] = ()
) -> LaneWriter:
    writer = LaneWriter(directory, lanes)
    for epoch in range(epochs):
        writer.epoch(dealt(range(epoch * records, (epoch + 1) * records), lanes, epoch, empty))
    return writer


@pytest.mark.parametrize("lanes", [1, 2, 30, slow(300)])
def test_any_number_of_lanes_gives_the_sequence(tmp_path: Path, lanes: int) -> None:
    written(tmp_path, lanes)
    assert numbers_of(f"lanes:{tmp_path}", verify=True) == list(range(1200))


def test_empty_lanes_and_lanes_that_end_delay_nothing(tmp_path: Path) -> None:
    writer = written(tmp_path, 5, epochs=2, empty=(1, 4))
    writer.epoch([[], [], [], [], []])
    writer.epoch(dealt(range(600, 900), 5, 9, empty=(0, 1, 2, 3)))
    assert numbers_of(tmp_path, verify=True) == list(range(900))


def test_an_epoch_is_emitted_when_all_lanes_have_it_and_a_missing_lane_is_named(
    tmp_path: Path,
) -> None:
    writer = written(tmp_path, 3, epochs=1)
    writer.epoch(dealt(range(300, 600), 3, 1), only=[0, 2])
    merging = merged(tmp_path)
    assert [int(record.payload) for record in merging] == list(range(300))
    assert merging.report.waiting_for == ("shop-trades-1",)
    writer.commit(1, 1)
    assert numbers_of(tmp_path) == list(range(600))


def test_a_lane_that_is_fifty_times_slower_delays_the_others_without_loss(tmp_path: Path) -> None:
    writer = LaneWriter(tmp_path, 3)
    for epoch in range(50):
        writer.epoch(dealt(range(epoch * 20, epoch * 20 + 20), 3, epoch), only=[0, 2])
    merging = LaneMerge(open_directory(tmp_path), MergeOptions(is_following=True, is_verifying=True, poll_s=0.001))
    writer.commit(0, 1)
    turns = merging.turns()
    given: list[int] = []
    for epoch in range(50):
        given += [int(payload) for batch in next(turns) for payload in batch.rows.column(0).to_pylist()]
        assert given == list(range(epoch * 20 + 20)), "as soon as the slow lane has an epoch, and not before"
        if epoch < 49:
            writer.commit(epoch + 1, 1)


def test_a_merger_continues_at_its_position_and_several_do_not_disturb_each_other(tmp_path: Path) -> None:
    writer = written(tmp_path, 3, epochs=2)
    first = merged(tmp_path)
    begun = [int(record.payload) for record in first]
    position = json.loads(json.dumps(first.position))
    writer.epoch(dealt(range(600, 900), 3, 5))
    assert begun + numbers_of(tmp_path, position=position) == list(range(900)) == numbers_of(tmp_path)
    assert numbers_of(tmp_path, position=merged_to_end(tmp_path)) == []


def merged_to_end(place: Path) -> dict[str, object]:
    merging = merged(place)
    for _ in merging.epochs():
        pass
    return merging.position


def test_a_position_of_other_lanes_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "a", 2)
    LaneWriter(tmp_path / "b", 2, pipeline="other").epoch([[1], [2]])
    with pytest.raises(ConfigError, match="belongs to other lanes"):
        numbers_of(tmp_path / "b", position=merged_to_end(tmp_path / "a"))


def test_lanes_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "a", 2)
    LaneWriter(tmp_path / "b", 2, pipeline="other").epoch([[1], [2]])
    with pytest.raises(ConfigError, match=r"do not belong together.*'shop'.*'other'"):
        numbers_of(tmp_path / "a", tmp_path / "b")
    LaneWriter(tmp_path / "c", 2, checkpoint="beef").epoch([[1], [2]])
    with pytest.raises(ConfigError, match="different runs of the pipeline"):
        numbers_of(tmp_path / "a", tmp_path / "c")
    with pytest.raises(ConfigError, match="lane 0 of sink 'trades' is given twice"):
        numbers_of(tmp_path / "a", tmp_path / "a")


def test_lanes_that_disagree_about_the_mapping_of_paths_are_refused(tmp_path: Path) -> None:
    writer = LaneWriter(tmp_path / "a", 2)
    writer.epoch([[1], [2]], only=[0])
    writer.identity = replace(writer.identity, paths=5)
    writer.commit(0, 1)
    with pytest.raises(ConfigError, match=r"lanes \(1,\) do not belong.*5 paths in 2 lanes.*2 in 2 by 'total'"):
        numbers_of(tmp_path / "a")
    writer = LaneWriter(tmp_path / "b", 3)
    writer.identity = replace(writer.identity, paths=1)
    writer.epoch([[1], [], []])
    assert numbers_of(tmp_path / "b") == [1], "more lanes than paths"
    writer.epoch([[2], [], [3]])
    with pytest.raises(ConfigError, match=r"lanes \(2,\) do not belong.* 1 records, but only the 1 lanes below"):
        numbers_of(tmp_path / "b")


def test_a_missing_lane_is_named(tmp_path: Path) -> None:
    written(tmp_path, 3).close()
    (tmp_path / "shop-trades-1.lane").unlink()
    with pytest.raises(ConfigError, match=r"of the 3 lanes of sink 'trades' these are missing.*: 1$"):
        numbers_of(tmp_path)


def test_lanes_of_one_sink_may_be_in_several_places(tmp_path: Path) -> None:
    written(tmp_path / "a", 3).close()
    (tmp_path / "b").mkdir()
    for path in (tmp_path / "a").glob("shop-trades-1.*"):
        path.rename(tmp_path / "b" / path.name)
    assert numbers_of(tmp_path / "a", tmp_path / "b") == list(range(1200))


def test_a_lane_without_an_epoch_that_others_have_is_a_loss(tmp_path: Path) -> None:
    writer = written(tmp_path, 2, epochs=1)
    writer.epoch([[300], [301]], only=[0])
    writer.epoch([[302], [303]])
    with pytest.raises(StorageError, match="shop-trades-1 has no epoch 1"):
        numbers_of(tmp_path)


def test_records_that_a_frontier_counts_and_a_lane_does_not_have_are_a_loss(tmp_path: Path) -> None:
    writer = LaneWriter(tmp_path, 2)
    writer._shares = {0: [[1, 2], [3]]}
    writer.commit(0, 0)
    writer._shares = {0: [[1, 2], []]}
    writer.commit(0, 1)
    with pytest.raises(StorageError, match=r"Records of epoch 0 are lost: the lanes have 2 records together.* 3"):
        numbers_of(tmp_path)


def test_a_record_that_is_in_two_lanes_is_noticed(tmp_path: Path) -> None:
    LaneWriter(tmp_path, 2).epoch([[1, 2, 3], [3, 4]])
    with pytest.raises(StorageError, match="same order key"):
        numbers_of(tmp_path)


def test_verify_notices_a_lane_that_is_not_sorted(tmp_path: Path) -> None:
    LaneWriter(tmp_path, 2).epoch([[5, 4], []])
    with pytest.raises(StorageError, match="occurs twice or is out of order"):
        numbers_of(tmp_path, verify=True)


def test_a_damaged_lane_is_named(tmp_path: Path) -> None:
    written(tmp_path, 2).close()
    path = tmp_path / "shop-trades-1.lane"
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageError, match=r"shop-trades-1\.lane is damaged"):
        numbers_of(tmp_path)


def test_uncommitted_bytes_are_not_read(tmp_path: Path) -> None:
    writer = written(tmp_path, 2, epochs=1)
    participant = writer._participants[0]
    participant.append(
        [participant.committed_end], [b"not even a block"[:0] or (tmp_path / "shop-trades-0.lane").read_bytes()]
    )
    assert numbers_of(tmp_path) == list(range(300))


class Clock:
    """A clock that advances by a second at each reading."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def test_a_silent_lane_is_skipped_and_its_inversions_equal_an_independent_count(tmp_path: Path) -> None:
    writer = LaneWriter(tmp_path, 3)
    shares = [dealt(range(epoch * 100, epoch * 100 + 100), 3, epoch) for epoch in range(6)]
    stop = threading.Event()
    options = MergeOptions(is_following=True, timeout_s=3.0, poll_s=0.001)
    merging = LaneMerge(open_directory(tmp_path), options, stop=stop, clock=Clock())
    writer.epoch(shares[0])
    given: list[int] = []
    late: list[int] = []
    turns = merging.turns()

    def take() -> None:
        for batch in next(turns):
            numbers = [int(payload) for payload in batch.rows.column("payload").to_pylist()]
            given.extend(numbers)
            late.extend(numbers[: batch.late_rows])

    take()
    for epoch in (1, 2):
        writer.epoch(shares[epoch], only=[0, 2])
        take()
    assert merging.report.passed_over == {"shop-trades-1": 1}, "the merger waits for it once, not at each epoch"
    writer.commit(1, 1)
    take()
    writer.commit(2, 1)
    take()
    writer.epoch(shares[3])
    take()
    assert given[-100:] == list(range(300, 400)), "a lane that has caught up is in order again"
    writer.epoch(shares[4], only=[0, 1])
    take()
    writer.commit(4, 2)
    take()
    stop.set()
    assert next(turns, None) is None
    assert sorted(given) == list(range(500))
    greatest, inversions = -1, 0
    for number in given:
        inversions += number < greatest
        greatest = max(greatest, number)
    assert sum(merging.report.inversions.values()) == inversions == len(late) > 50
    assert set(merging.report.inversions) == {"shop-trades-1", "shop-trades-2"}


def test_a_merger_that_is_started_again_remembers_which_lane_is_behind(tmp_path: Path) -> None:
    writer = LaneWriter(tmp_path, 2)
    writer.epoch([[0, 1], [2]])
    writer.epoch([[3, 5], [4]], only=[0])
    options = MergeOptions(timeout_s=2.0, poll_s=0.001)
    first = LaneMerge(open_directory(tmp_path), options, clock=Clock())
    given = [int(payload) for turn in first.turns() for batch in turn for payload in batch.rows.column(0).to_pylist()]
    assert given == [0, 1, 2, 3, 5]
    position = json.loads(json.dumps(first.position))
    assert position["behind"] == ["shop-trades-1"]
    writer.commit(1, 1)
    second = LaneMerge(open_directory(tmp_path), options, position, clock=Clock())
    rest = [(batch.rows.column(0).to_pylist(), batch.late_rows) for turn in second.turns() for batch in turn]
    assert rest == [([b"4"], 1)]
    assert second.report.inversions == {"shop-trades-1": 1}
    assert second.position["behind"] == []


def test_shards_have_each_key_once_and_in_order(tmp_path: Path) -> None:
    written(tmp_path, 4)
    shards = [numbers_of(tmp_path, shard=f"{number}/3") for number in range(3)]
    assert sorted(number for shard in shards for number in shard) == list(range(1200))
    for shard in shards:
        assert shard == sorted(shard)
    digits = [{number % 10 for number in shard} for shard in shards]
    assert not (digits[0] & digits[1] | digits[1] & digits[2] | digits[0] & digits[2])


def test_a_merger_that_follows_ends_when_it_is_stopped(tmp_path: Path) -> None:
    written(tmp_path, 2, epochs=1)
    merging = merged(tmp_path, follow=True, poll_s=0.001)
    given = []
    for record in merging:
        given.append(int(record.payload))
        if len(given) == 300:
            merging.stop()
    assert given == list(range(300))


def test_a_directory_that_is_not_there_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no directory"):
        numbers_of(tmp_path / "nowhere")
    assert numbers_of(tmp_path) == []
