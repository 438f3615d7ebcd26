"""The output of a merger: records and position are committed together, wherever the merger dies."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from procession import faults
from procession.connectors.merge_target import open_target
from procession.errors import ConfigError, StorageError, UsageError
from procession.sdk.lane_files import open_directory
from procession.sdk.lane_merge import LaneMerge, MergeOptions
from procession.sdk.merge_output import MergeOutput, merge_into
from procession.sdk.merged_records import merged
from procession.sdk.transaction_log import committed_ranges
from procession.verify.output_layout import stored
from tests.sdk.lanes import LaneWriter, dealt
from tests.sdk.test_lane_merge import Clock, numbers_of


class Killed(BaseException):
    """The merger is killed at a fault point."""


def run(lanes: Path, to: str, options: MergeOptions | None = None, **target: object) -> LaneMerge:
    """Run a merger from its start to its end or its death."""
    output: MergeOutput = open_target(to, None, **target)  # type: ignore[arg-type]
    try:
        merging = LaneMerge(open_directory(lanes), options, output.position, clock=Clock())
        merge_into(merging, output, transaction_bytes=500)
        return merging
    finally:
        output.close()


def lines(directory: Path, instance: str = "merged-0") -> list[int]:
    log = directory / f"{instance}.txnlog"
    return [int(line) for line in b"".join(stored(log).read(committed_ranges(log))).splitlines()]


def written(directory: Path, epochs: int = 12) -> LaneWriter:
    writer = LaneWriter(directory, 3)
    for epoch in range(epochs):
        writer.epoch(dealt(range(epoch * 100, epoch * 100 + 100), 3, epoch))
    return writer


@pytest.mark.parametrize("visit", range(1, 6))
@pytest.mark.parametrize(
    "point",
    ["merge:before-vote", "merge:after-vote", "merge:between-commits", "sink:before-vote", "sink:after-output-commit"],
)
def test_a_merger_that_dies_anywhere_continues_without_a_gap_or_a_duplicate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, visit: int
) -> None:
    written(tmp_path / "lanes")
    left = [visit]

    def die(name: str) -> None:
        left[0] -= name == point
        if name == point and left[0] == 0:
            raise Killed

    with monkeypatch.context() as context:
        context.setattr(faults, "point", die)
        with pytest.raises(Killed):
            run(tmp_path / "lanes", f"file:{tmp_path / 'out'}", has_letters=True)
    cut = lines(tmp_path / "out")
    assert cut == list(range(len(cut)))
    assert len(cut) < 1200
    merging = run(tmp_path / "lanes", f"file:{tmp_path / 'out'}", has_letters=True)
    assert lines(tmp_path / "out") == list(range(1200))
    assert (merging.report.records, merging.report.epochs) == (1200, 12), "the counts continue, too"


def test_a_merger_continues_with_new_records(tmp_path: Path) -> None:
    writer = written(tmp_path / "lanes", 2)
    to = f"file:{tmp_path / 'out'}"
    run(tmp_path / "lanes", to)
    assert run(tmp_path / "lanes", to).report.epochs == 2
    writer.epoch(dealt(range(200, 300), 3, 2))
    run(tmp_path / "lanes", to)
    assert lines(tmp_path / "out") == list(range(300))


def test_late_records_go_to_the_dead_letters_in_the_same_transaction(tmp_path: Path) -> None:
    writer = LaneWriter(tmp_path / "lanes", 2)
    writer.epoch([[0, 2], [1]])
    writer.epoch([[3, 5], [4, 6]], only=[0])
    to, options = f"file:{tmp_path / 'out'}", MergeOptions(timeout_s=2.0, poll_s=0.001)
    run(tmp_path / "lanes", to, options, has_letters=True)
    assert lines(tmp_path / "out") == [0, 1, 2, 3, 5]
    writer.commit(1, 1)
    merging = run(tmp_path / "lanes", to, options, has_letters=True)
    assert lines(tmp_path / "out") == [0, 1, 2, 3, 5, 6], "records that are not too late are in order"
    assert lines(tmp_path / "out", "late-0") == [4]
    assert merging.report.inversions == {"shop-trades-1": 1}


def test_late_records_are_in_order_by_default(tmp_path: Path) -> None:
    writer = LaneWriter(tmp_path / "lanes", 2)
    writer.epoch([[0, 2], [1]])
    writer.epoch([[3, 5], [4, 6]], only=[0])
    to, options = f"file:{tmp_path / 'out'}", MergeOptions(timeout_s=2.0, poll_s=0.001)
    run(tmp_path / "lanes", to, options)
    writer.commit(1, 1)
    run(tmp_path / "lanes", to, options)
    assert lines(tmp_path / "out") == [0, 1, 2, 3, 5, 4, 6]


def test_mergers_can_be_stacked_and_an_incomplete_tree_is_refused(tmp_path: Path) -> None:
    writer = LaneWriter(tmp_path / "lanes", 30)
    for epoch in range(3):
        writer.epoch(dealt(range(epoch * 100, epoch * 100 + 100), 30, epoch, empty=range(20, 25)))
    for first in (0, 10):
        options = MergeOptions(covers=frozenset(range(first, first + 10)), is_verifying=True)
        run(tmp_path / "lanes", f"lanes:{tmp_path / 'middle'}", options, lane=first)
    with pytest.raises(ConfigError, match="missing, or have no epoch yet: 20, 21, 22, 23, 24, …"):
        numbers_of(tmp_path / "middle")
    options = MergeOptions(covers=frozenset(range(20, 30)))
    run(tmp_path / "lanes", f"lanes:{tmp_path / 'middle'}", options, lane=20)
    assert len(list((tmp_path / "middle").glob("*.lane"))) == 3
    assert numbers_of(tmp_path / "middle", verify=True) == list(range(300))
    assert numbers_of(f"lanes:{tmp_path / 'middle'}") == numbers_of(tmp_path / "lanes")


def test_two_mergers_do_not_write_one_output(tmp_path: Path) -> None:
    first = open_target(f"file:{tmp_path}", None)
    with pytest.raises(StorageError):
        open_target(f"file:{tmp_path}", None)
    first.close()


def test_a_target_that_is_not_an_output_of_a_merger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a merger cannot write to parquet"):
        open_target(f"parquet:{tmp_path}", tmp_path)
    with pytest.raises(UsageError, match="needs a directory for its position"):
        open_target("kafka://127.0.0.1:1/topic", None)


def test_a_stopped_merger_commits_the_records_that_it_has_emitted(tmp_path: Path) -> None:
    written(tmp_path / "lanes", 3)
    stop = threading.Event()
    output = open_target(f"file:{tmp_path / 'out'}", None)
    options = MergeOptions(is_following=True, poll_s=0.001)
    merging = LaneMerge(open_directory(tmp_path / "lanes"), options, output.position, stop=stop)
    merge_into(merging, output, transaction_bytes=1, on_commit=lambda merge: stop.set() if merge.merged == 1 else None)
    output.close()
    assert lines(tmp_path / "out") == list(range(200))
    assert next(iter(merged(tmp_path / "lanes", position=merging.position))).payload == b"200"
