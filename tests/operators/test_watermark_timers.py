"""Watermark timers: which keys are due at which step, and that each is due once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from procession.operators.watermark_timers import LISTS_MAX, WATERMARK, InputSteps, WatermarkTimers, by_input
from tests.operators.test_operator import MemoryStates


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.fixture
def states() -> MemoryStates:
    return MemoryStates()


def timers_at(states: MemoryStates, *timers: tuple[int, bytes]) -> WatermarkTimers:
    made = WatermarkTimers(states)
    for step, key in timers:
        made.set(step, key)
    made.keep()
    return made


def test_rows_are_divided_where_the_watermark_advances_and_it_never_decreases(states: MemoryStates) -> None:
    timers = timers_at(states)
    stretches = [(start, end, step) for start, end, step, _ in timers.stretches(numbers(3, 3, 2, 5, 4))]
    assert stretches == [(0, 3, 3), (3, 5, 5)]
    assert [step for _, _, step, _ in timers.stretches(numbers(1))] == [5], "the watermark is kept from epoch to epoch"


def test_keys_are_due_in_order_once_and_at_the_first_row_that_reaches_them(states: MemoryStates) -> None:
    timers = timers_at(states, (5, b"b"), (4, b"a"), (9, b"c"), (4, b"a"))
    assert [(start, due) for start, _, _, due in timers.stretches(numbers(3, 6, 9))] == [
        (0, []),
        (1, [b"a", b"b"]),
        (2, [b"c"]),
    ]
    assert states[WATERMARK]["lists"] == {}
    assert set(states) == {WATERMARK}, "a list that has fired is removed"


def test_a_timer_is_kept_only_when_it_is_stored(states: MemoryStates) -> None:
    timers = WatermarkTimers(states)
    timers.set(1, b"a")
    assert [due for *_, due in timers.stretches(numbers(2))] == [[]]


def test_a_timer_that_is_set_once_is_in_one_list_once(states: MemoryStates) -> None:
    timers = WatermarkTimers(states)
    for _ in range(3):
        timers.set_once(1, b"a")
    assert timers.pending == {1: [b"a"]}


def test_many_lists_of_one_step_become_one(states: MemoryStates) -> None:
    for serial in range(LISTS_MAX + 1):
        states.serial = serial
        timers_at(states, (7, b"%d" % (serial % 3)))
    assert states[WATERMARK]["lists"] == {7: [LISTS_MAX]}
    assert sorted(name for name in states if name != WATERMARK) == [b"t7/%d" % LISTS_MAX]
    assert [due for _, due in WatermarkTimers(states).advance_to(7)] == [[b"0", b"1", b"2"]]


def test_without_a_record_the_watermark_advances_step_by_step_and_not_back(states: MemoryStates) -> None:
    timers = timers_at(states, (2, b"a"), (4, b"b"), (8, b"c"))
    assert list(timers.advance_to(5)) == [(2, [b"a"]), (4, [b"b"])]
    assert list(timers.advance_to(3)) == []
    assert states[WATERMARK]["at"] == 5


def test_at_the_end_all_timers_fire_and_the_watermark_does_not_change(states: MemoryStates) -> None:
    timers = timers_at(states, (8, b"c"), (6, b"b"))
    list(timers.advance_to(5))
    assert list(timers.drain()) == [(6, [b"b"]), (8, [b"c"])]
    assert states[WATERMARK]["at"] == 5


@pytest.mark.parametrize("ids", [[], [4, 4, 4], [9, 2, 9, 2]])
def test_rows_are_sorted_by_input_and_stay_in_order_within_each(ids: list[int]) -> None:
    found = list(by_input(np.array(ids, np.uint64)))
    assert [number for number, _ in found] == sorted(set(ids))
    for number, rows in found:
        assert [ids[row] for row in rows] == [number] * ids.count(number)
        assert all(before < after for before, after in pairwise(rows.tolist()))


def test_an_input_advances_where_its_own_step_rises() -> None:
    steps = InputSteps()
    assert steps.moved_at(numbers(2, 1, 3, 3), np.array([1, 2, 1, 2], np.uint64)).tolist() == [0, 1, 2, 3]
    assert steps.moved_at(numbers(3, 4), np.array([1, 2], np.uint64)).tolist() == [1]
    assert steps.steps == {1: 3, 2: 4}
