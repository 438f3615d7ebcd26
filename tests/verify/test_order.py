"""Disorder: the least number of records to remove, against a count over all subsequences; and its estimates."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.verify import order
from procession.verify.order import (
    Disorder,
    GroupNumbers,
    Numbers,
    Overtaken,
    TooManyGroups,
    bounded_disorder,
    key_field,
    least_disorder,
    stream_of,
)

ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 7)), max_size=8)
"""Pairs of a group and a position."""


def columns(rows: list[tuple[int, int]]) -> tuple[Numbers, Numbers, Numbers]:
    """Groups, positions and output numbers, which begin at 100."""
    pairs = np.array(rows, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1], np.arange(100, 100 + len(rows))


def least_removed(positions: list[int]) -> int:
    """Over all subsets: the number of different positions outside of the largest increasing one."""
    best = 0
    for chosen in range(2 ** len(positions)):
        kept = [position for number, position in enumerate(positions) if chosen >> number & 1]
        if all(one < other for one, other in pairwise(kept)):
            best = max(best, len(kept))
    return len(set(positions)) - best


def late(rows: list[tuple[int, int]], first: int = 0) -> list[int]:
    """The output numbers of records that come after a later record of their group."""
    return [
        100 + number
        for number, (group, position) in enumerate(rows)
        if number >= first and any(other == group and before > position for other, before in rows[:number])
    ]


@given(ROWS)
def test_disorder_is_the_least_number_of_records_whose_removal_leaves_each_group_in_order(
    rows: list[tuple[int, int]],
) -> None:
    groups, positions, numbers = columns(rows)
    found = least_disorder(groups, positions, numbers)
    assert found.count == sum(least_removed([place for other, place in rows if other == group]) for group in range(3))
    assert (found.first == -1) is (found.count == 0)
    if found.count:
        assert 100 <= found.first < 100 + len(rows)


@pytest.mark.parametrize(
    ("positions", "count", "first"),
    [([0, 1, 2], 0, -1), ([1, 2, 0], 1, 102), ([2, 0, 1], 1, 100), ([0, 0, 1], 0, -1), ([1, 0, 3, 2], 2, 100)],
)
def test_the_first_record_out_of_order_is_named(positions: list[int], count: int, first: int) -> None:
    found = least_disorder(*columns([(0, position) for position in positions]))
    assert (found.count, found.first) in [(count, first), (count, first + 1)]


@given(ROWS, st.integers(0, 8))
def test_overtaken_records_are_counted_over_chunks(rows: list[tuple[int, int]], cut: int) -> None:
    groups, positions, numbers = columns(rows)
    counted = Overtaken()
    counted.take(groups[:cut], positions[:cut], numbers[:cut])
    assert (counted.count, counted.first) == (len(late(rows[:cut])), min(late(rows[:cut]), default=-1))
    counted.take(groups[cut:], positions[cut:], numbers[cut:])
    assert (counted.count, counted.first) == (len(late(rows)), min(late(rows), default=-1))


@given(ROWS)
def test_the_estimate_is_never_too_small_and_zero_only_in_order(rows: list[tuple[int, int]]) -> None:
    groups, positions, numbers = columns(rows)
    forward, backward = Overtaken(), Overtaken()
    forward.take(groups, positions, numbers)
    backward.take(groups[::-1], -positions[::-1], numbers[::-1])
    found = bounded_disorder(forward, backward)
    assert found.count == min(forward.count, backward.count)
    assert found.count >= least_disorder(groups, positions, numbers).count
    assert (found.count == 0) is (not late(rows))


def test_the_smaller_estimate_names_its_own_first_record() -> None:
    one, other = Overtaken(), Overtaken()
    one.count, one.first, other.count, other.first = 3, 7, 2, 9
    assert bounded_disorder(one, other) == bounded_disorder(other, one) == Disorder(2, 9)


@given(st.lists(st.lists(st.integers(-5, 5)), max_size=4))
def test_a_group_keeps_its_number_and_numbers_are_without_gaps(chunks: list[list[int]]) -> None:
    groups = GroupNumbers()
    known: dict[int, int] = {}
    for chunk in chunks:
        for name, number in zip(chunk, groups.numbers(np.array(chunk, np.int64)).tolist(), strict=True):
            assert known.setdefault(name, number) == number
    assert sorted(known.values()) == list(range(len(groups)))


def test_more_groups_than_memory_allows_are_refused_and_as_many_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "GROUPS_MAX", 3)
    groups = GroupNumbers()
    groups.numbers(np.array([1, 2, 3, 1]))
    with pytest.raises(TooManyGroups):
        groups.numbers(np.array([4]))


@pytest.mark.parametrize(("number", "key"), [(1, b"a"), (2, b"bb"), (3, b"c"), (4, b"d"), (5, b"")])
def test_a_key_is_the_nth_field_of_a_line(number: int, key: bytes) -> None:
    assert key_field(number)(b" a bb\tc  d ") == key
    assert key_field(number)(b"") == b""


def test_a_position_is_in_the_input_that_ends_behind_it() -> None:
    assert stream_of(np.array([0, 2, 3, 4, 9]), [3, 3, 10]).tolist() == [0, 0, 2, 2, 2]
