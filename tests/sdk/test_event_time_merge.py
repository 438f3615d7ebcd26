"""Lanes of two pipelines by event time: the same sequence in every run, for any epochs and timing."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from procession import faults
from procession.connectors.merge_target import open_target
from procession.errors import ConfigError
from procession.sdk import merged_by_event_time
from procession.sdk.event_time_merge import merge_by_time_into
from procession.sdk.transaction_log import committed_ranges
from procession.verify.output_layout import stored
from tests.sdk.lanes import LaneWriter, dealt


def written(directory: Path, pipeline: str, numbers: list[int], cuts: list[int], lanes: int) -> Path:
    """Write lanes of records whose event times are their numbers."""
    writer = LaneWriter(directory, lanes, pipeline=pipeline)
    start = 0
    for end in [*cuts, len(numbers)]:
        writer.epoch(dealt(numbers[start:end], lanes, end))
        start = end
    writer.close()
    return directory


EVEN, ODD = list(range(0, 400, 2)), list(range(1, 400, 2))


@pytest.mark.parametrize("cuts", [([], []), ([10, 150], [90]), ([1, 2, 3], [199])])
def test_two_pipelines_are_one_sequence_whatever_their_epochs(
    tmp_path: Path, cuts: tuple[list[int], list[int]]
) -> None:
    first = written(tmp_path / "a", "even", EVEN, cuts[0], 3)
    second = written(tmp_path / "b", "odd", ODD, cuts[1], 2)
    merging = merged_by_event_time(first, [second])
    assert [int(record.payload) for record in merging] == list(range(400))
    assert [report.records for report in merging.reports] == [200, 200]


def test_equal_times_are_in_the_order_of_the_arguments(tmp_path: Path) -> None:
    first = written(tmp_path / "a", "one", [3, 5], [1], 1)
    second = written(tmp_path / "b", "two", [3, 4, 5], [2], 2)
    for places, expected in (((first, second), [3, 3, 4, 5, 5]), ((second, first), [3, 3, 4, 5, 5])):
        records = list(merged_by_event_time(*places))
        assert [int(record.payload) for record in records] == expected
    assert len(list(merged_by_event_time(first))) == 2


def test_a_pipeline_that_has_ended_delays_nothing(tmp_path: Path) -> None:
    first = written(tmp_path / "a", "one", list(range(300)), [100, 200], 2)
    second = written(tmp_path / "b", "two", [5], [], 2)
    numbers = [int(record.payload) for record in merged_by_event_time(first, second)]
    assert numbers == sorted([*range(300), 5])


@pytest.mark.parametrize("batches", range(1, 6))
def test_a_merger_continues_at_its_position_within_an_epoch(tmp_path: Path, batches: int) -> None:
    first = written(tmp_path / "a", "even", EVEN, [60, 130], 2)
    second = written(tmp_path / "b", "odd", ODD, [95], 3)
    merging = merged_by_event_time(first, second)
    found = merging.batches()
    given = [int(value) for _ in range(batches) for value in next(found).column("payload").to_pylist()]
    position = json.loads(json.dumps(merging.position))
    rest = [int(record.payload) for record in merged_by_event_time(first, second, position=position)]
    assert given + rest == list(range(400))
    assert rest


def test_a_following_merger_that_is_stopped_has_emitted_only_final_records(tmp_path: Path) -> None:
    first = written(tmp_path / "a", "even", EVEN, [], 2)
    second = written(tmp_path / "b", "odd", [1, 3, 101], [], 2)
    merging = merged_by_event_time(first, second, follow=True, poll_s=0.001)
    given = []
    for record in merging:
        given.append(int(record.payload))
        if given[-1] == 101:
            threading.Timer(0.05, merging.stop).start()
    assert given == sorted([*range(0, 102, 2), 1, 3, 101]), "earlier records may still come before later ones"


class Killed(BaseException):
    """The merger is killed at a fault point."""


@pytest.mark.parametrize("visit", [1, 2, 5])
@pytest.mark.parametrize("point", ["merge:before-vote", "merge:after-vote", "merge:between-commits"])
def test_a_merger_by_event_time_that_dies_continues_without_a_gap_or_a_duplicate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, visit: int
) -> None:
    places = written(tmp_path / "a", "even", EVEN, [60, 130], 2), written(tmp_path / "b", "odd", ODD, [95], 3)
    left = [visit]

    def die(name: str) -> None:
        left[0] -= name == point
        if name == point and left[0] == 0:
            raise Killed

    def run() -> None:
        output = open_target(f"file:{tmp_path / 'out'}", None)
        try:
            before = output.position or {}
            merging = merged_by_event_time(*places, position=output.position)
            merge_by_time_into(
                merging, output, commits=before.get("commits", 0), transaction_bytes=100, is_following=False
            )
        finally:
            output.close()

    def numbers() -> list[int]:
        log = tmp_path / "out" / "merged-0.txnlog"
        return [int(line) for line in b"".join(stored(log).read(committed_ranges(log))).splitlines()]

    with monkeypatch.context() as context:
        context.setattr(faults, "point", die)
        with pytest.raises(Killed):
            run()
    assert numbers() == list(range(len(numbers())))
    run()
    assert numbers() == list(range(400))


def test_a_position_of_other_pipelines_is_refused(tmp_path: Path) -> None:
    first = written(tmp_path / "a", "one", [1], [], 1)
    with pytest.raises(ConfigError, match="belongs to 2 pipelines, but 1 are given"):
        merged_by_event_time(first, position={"sequences": [{}, {}]})
