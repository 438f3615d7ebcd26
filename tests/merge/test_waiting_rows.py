"""Rows that wait for their turn leave in order, however they arrive and however many are taken at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from procession.merge.stream_clocks import WatermarkBound
from procession.merge.waiting_rows import EMPTY, Stack, Waiting

Row = tuple[int, int, int]

ROWS = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3), st.integers(0, 9)), max_size=30, unique=True)


def stack(rows: list[Row], first: int = 0) -> Stack:
    """Return rows of one byte each, with sequences from `first` on."""
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    flags = np.zeros(len(rows), np.bool_)
    return Stack(
        np.array(columns[0], np.int64),
        np.array(columns[1], np.uint64),
        np.array(columns[2], np.uint64),
        np.arange(first, first + len(rows), dtype=np.int64),
        np.ones(len(rows), np.int64),
        flags,
        flags,
        flags,
    )


def filled(rows: list[Row], chunk: int) -> Waiting:
    waiting = Waiting()
    for start in range(0, len(rows), chunk):
        waiting.add(stack(rows[start : start + chunk], start))
    return waiting


def keys_of(rows: Stack) -> list[Row]:
    return [tuple(rows.key(row)) for row in range(len(rows))]


@given(ROWS, st.integers(1, 7), st.lists(st.tuples(st.integers(-4, 4), st.integers(0, 4)), max_size=4))
def test_the_rows_up_to_the_bound_are_taken_in_order_and_the_others_stay(
    rows: list[Row], chunk: int, bounds: list[tuple[int, int]]
) -> None:
    waiting, left = filled(rows, chunk), sorted(rows)
    for time, stream_id in bounds:
        wanted = [row for row in left if row[:2] <= (time, stream_id)]
        assert keys_of(waiting.take(WatermarkBound(time, stream_id))) == wanted
        left = [row for row in left if row not in wanted]
        assert (keys_of(waiting.all()), len(waiting), waiting.size_bytes) == (left, len(left), len(left))


@given(ROWS, st.integers(1, 7), st.integers(0, 4))
def test_a_removed_stream_has_no_rows_and_its_sequences_are_reported(
    rows: list[Row], chunk: int, stream_id: int
) -> None:
    waiting = filled(rows, chunk)
    own = [sequence for sequence, row in enumerate(rows) if row[1] == stream_id]
    assert waiting.has(stream_id) is bool(own)
    assert sorted(waiting.remove(stream_id).tolist()) == own
    assert not waiting.has(stream_id)
    assert keys_of(waiting.all()) == sorted(row for row in rows if row[1] != stream_id)


@given(ROWS, st.integers(1, 7), st.tuples(st.integers(-4, 4), st.integers(0, 4)))
def test_the_least_id_and_the_presence_of_a_stream_are_those_of_the_rows(
    rows: list[Row], chunk: int, bound: tuple[int, int]
) -> None:
    waiting, streams = filled(rows, chunk), np.arange(5, dtype=np.uint64)
    least = [min((row[2] for row in rows if row[1] == stream), default=2**64 - 1) for stream in range(5)]
    assert waiting.least_ids(streams).tolist() == least
    for stream in range(5):
        is_there = any(row[1] == stream and row[:2] <= bound for row in rows)
        assert waiting.has(stream, WatermarkBound(*bound)) is is_there


def test_nothing_waits_at_first() -> None:
    waiting = Waiting()
    assert keys_of(waiting.take(WatermarkBound(9, 9))) == keys_of(EMPTY) == []
    assert waiting.least_ids(np.array([3], np.uint64)).tolist() == [2**64 - 1]
