"""The merge reads one epoch of all lanes at a time, never more, and epochs of a skipped lane come late."""

from __future__ import annotations

import itertools
import random

import pyarrow as pa
import pytest

from procession.errors import StorageError
from procession.merge.lane_order import Emitted, LaneOrder, LaneTurn


def order(lanes: int = 3) -> LaneOrder:
    return LaneOrder([f"lane-{lane}" for lane in range(lanes)])


def taken(lanes: LaneOrder, heads: list[int | None], *, is_overdue: bool = False) -> LaneTurn:
    turn = lanes.next(heads, is_overdue=is_overdue)
    assert turn is not None
    lanes.turn_emitted(turn)
    return turn


def test_a_turn_is_one_epoch_of_all_lanes() -> None:
    lanes = order()
    assert lanes.next([None, None, None]) is None
    assert lanes.waiting_for == (), "no lane has more, so the merge waits for none"
    assert lanes.next([4, None, None]) is None
    assert lanes.waiting_for == (1, 2)
    assert taken(lanes, [4, 4, 4]) == LaneTurn(4, (0, 1, 2))
    assert lanes.waiting_for == ()


def test_the_merge_does_not_wait_for_a_skipped_lane_until_it_has_caught_up() -> None:
    lanes = order()
    assert taken(lanes, [0, None, 0], is_overdue=True) == LaneTurn(0, (0, 2), passed=(1,))
    assert taken(lanes, [1, None, 1]) == LaneTurn(1, (0, 2)), "without a second wait"
    assert taken(lanes, [None, 0, None]) == LaneTurn(0, (1,), is_late=True)
    assert lanes.behind == {1}
    assert taken(lanes, [2, 1, 2]) == LaneTurn(1, (1,), is_late=True), "late epochs come first"
    assert lanes.behind == set()
    assert lanes.next([2, None, 2]) is None
    assert lanes.waiting_for == (1,)
    assert taken(lanes, [2, 2, 2]) == LaneTurn(2, (0, 1, 2))


def test_a_lane_that_catches_up_in_time_takes_part_again() -> None:
    lanes = order(2)
    taken(lanes, [0, None], is_overdue=True)
    taken(lanes, [None, 0])
    assert taken(lanes, [1, 1]) == LaneTurn(1, (0, 1))


def test_a_lane_that_has_lost_an_epoch_is_named() -> None:
    lanes = order(2)
    with pytest.raises(StorageError, match="lane-1 has no epoch 0"):
        lanes.next([0, 1])
    taken(lanes, [0, 0])
    with pytest.raises(StorageError, match="lane-0 has epoch 0 again"):
        lanes.next([0, 1])


@pytest.mark.parametrize("seed", range(20))
def test_every_part_is_emitted_once_and_in_order_unless_it_is_late(seed: int) -> None:
    chance = random.Random(seed)
    lanes, epochs = order(4), 12
    sent, read = [0] * 4, [0] * 4
    given: list[tuple[int, int, bool]] = []
    while any(count < epochs for count in read):
        lane = chance.randrange(4)
        sent[lane] = min(epochs, sent[lane] + 1)
        heads = [read[lane] if read[lane] < sent[lane] else None for lane in range(4)]
        turn = lanes.next(heads, is_overdue=chance.random() < 0.3)
        if turn is not None:
            lanes.turn_emitted(turn)
            for lane in turn.lanes:
                assert read[lane] == turn.epoch
                read[lane] += 1
                given.append((turn.epoch, lane, turn.is_late))
    assert sorted((epoch, lane) for epoch, lane, _ in given) == [*itertools.product(range(epochs), range(4))]
    in_time = [epoch for epoch, _, is_late in given if not is_late]
    assert in_time == sorted(in_time)


def batch(*keys: tuple[int, int]) -> pa.RecordBatch:
    return pa.record_batch({f"order_{place}": pa.array([key[place] for key in keys], pa.int64()) for place in (0, 1)})


def test_rows_that_come_after_a_greater_key_are_counted() -> None:
    emitted = Emitted()
    assert emitted.late_rows(3, batch((1, 0))) == 0
    emitted.add(3, batch((1, 0), (4, 2)))
    assert emitted.late_rows(3, batch((0, 0), (4, 1), (4, 3), (5, 0))) == 2
    assert emitted.late_rows(2, batch((9, 0), (9, 1))) == 2
    assert emitted.late_rows(4, batch((0, 0))) == 0
    emitted.add(2, batch((9, 9)))
    assert emitted.greatest == (3, 4, 2), "a late row does not lower it"


def test_the_first_key_that_does_not_grow_is_found() -> None:
    emitted = Emitted()
    assert emitted.first_disorder(0, batch((0, 1), (0, 2), (1, 0))) is None
    assert emitted.first_disorder(0, batch((0, 1), (0, 1), (1, 0))) == (0, 0, 1)
    assert emitted.first_disorder(0, batch((0, 1), (1, 5), (1, 4))) == (0, 1, 4)
    emitted.add(0, batch((3, 0)))
    assert emitted.first_disorder(0, batch((3, 0))) == (0, 3, 0)
    assert emitted.first_disorder(1, batch((0, 0))) is None
