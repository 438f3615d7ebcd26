"""The event-time order compared with a slow, simple reference: every interleaving, division and restart gives the same
sequence."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.merge.event_time import END_ID, NO_REFERENCE, ArrivedRows, DeclaredOrder, EventOrder, ReplayPoint
from procession.merge.stream_clocks import TIME_MAX, TIME_MIN, StreamClock
from procession.merge.waiting_rows import Key


class Row(NamedTuple):
    stream_id: int
    message_id: int
    event_time: int
    is_end: bool = False
    is_tick: bool = False
    is_move_out: bool = False
    is_move_in: bool = False


class Placed(NamedTuple):
    key: Key
    is_late: bool


def heard(rows: list[Row]) -> ArrivedRows:
    return ArrivedRows(
        np.array([row.stream_id for row in rows], np.uint64),
        np.array([row.message_id for row in rows], np.uint64),
        np.array([row.event_time for row in rows], np.int64),
        np.ones(len(rows), np.int64),
        np.array([row.is_end for row in rows], np.bool_),
        np.array([row.is_tick for row in rows], np.bool_),
        np.array([row.is_move_out for row in rows], np.bool_),
        np.array([row.is_move_in for row in rows], np.bool_),
    )


def reference(streams: list[list[Row]], lateness: int) -> list[Placed]:
    """Process one stream after the other, row by row, and sort once."""
    placed = []
    for rows in streams:
        largest = TIME_MIN
        for row in rows:
            watermark = max(largest - lateness, TIME_MIN)
            if row.is_end:
                order_time, is_late = largest, False
            else:
                order_time, is_late = max(row.event_time, watermark), row.event_time < watermark
                largest = max(largest, row.event_time)
            placed.append(Placed(Key(order_time, row.stream_id, END_ID if row.is_end else row.message_id), is_late))
    return sorted(placed, key=lambda one: one.key)


def taken_by(order: EventOrder) -> tuple[list[Placed], list[int]]:
    rows, references = order.take()
    return [Placed(rows.key(n), bool(rows.are_late[n])) for n in range(len(rows))], references.tolist()


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[list[Row]], int]:
    lateness = draw(st.sampled_from([0, 0, 1, 3, 10]))
    streams = []
    for stream_id in draw(st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True)):
        now, rows, message_id = draw(st.integers(-5, 5)), [], draw(st.integers(0, 3))
        for _ in range(draw(st.integers(0, 12))):
            rows.append(Row(stream_id, message_id, now + draw(st.integers(-6, 3))))
            now += draw(st.integers(0, 3))
            message_id += draw(st.integers(1, 3))
        rows.append(Row(stream_id, rows[-1].message_id if rows else END_ID, 0, is_end=True))
        streams.append(rows)
    return streams, lateness


def interleaved(draw: st.DrawFn, streams: list[list[Row]]) -> list[Row]:
    rest = [list(rows) for rows in streams]
    rows = []
    while any(rest):
        chosen = draw(st.sampled_from([waiting for waiting in rest if waiting]))
        count = draw(st.integers(1, 6))
        rows += chosen[:count]
        del chosen[:count]
    return rows


@given(st.data(), worlds())
def test_every_interleaving_gives_the_sequence_of_the_reference(
    data: st.DataObject, world: tuple[list[list[Row]], int]
) -> None:
    streams, lateness = world
    rows = interleaved(lambda strategy: data.draw(strategy), streams)
    order = EventOrder(DeclaredOrder(frozenset(stream[0].stream_id for stream in streams), lateness))
    expected, found = reference(streams, lateness), []
    while rows:
        size = data.draw(st.integers(1, 8))
        order.observe(heard(rows[:size]))
        del rows[:size]
        if data.draw(st.booleans()):
            found += taken_by(order)[0]
            assert found == expected[: len(found)]
    found += taken_by(order)[0]
    assert found == expected
    assert order.late == Counter(row.key.stream_id for row in expected if row.is_late)
    assert order.point.floor == len(expected), "no row waits, and no row of the arrival log is needed"
    assert len(order.waiting) == 0


@given(st.data(), worlds())
def test_a_restart_at_any_row_continues_after_the_last_row_that_was_kept(
    data: st.DataObject, world: tuple[list[list[Row]], int]
) -> None:
    streams, lateness = world
    log = interleaved(lambda strategy: data.draw(strategy), streams)
    declared = DeclaredOrder(frozenset(stream[0].stream_id for stream in streams), lateness)
    order, expected = EventOrder(declared), reference(streams, lateness)
    kept: list[Placed] = []
    released: list[int] = []
    point, arrived = ReplayPoint(), 0
    while arrived < len(log):
        size = data.draw(st.integers(1, 8))
        order.observe(heard(log[arrived : arrived + size]))
        arrived = min(arrived + size, len(log))
        placed, references = taken_by(order)
        is_killed = data.draw(st.integers(0, 3)) == 0
        # A crash may lose the end of a write; the rows before it are in order.
        count = data.draw(st.integers(0, len(placed))) if is_killed else len(placed)
        kept, released = kept + placed[:count], released + references[:count]
        if not is_killed:
            point = order.point if data.draw(st.booleans()) else point
            continue
        safe: dict[int, int] = {}
        for one, at in zip(kept, released, strict=True):
            if at != NO_REFERENCE:
                safe[one.key.stream_id] = at
        order = EventOrder(declared, point._replace(cut=kept[-1].key if kept else None), safe)
        for start in range(point.floor, arrived, 5):
            order.observe(heard(log[start : min(start + 5, arrived)]), is_again=True)
    placed, references = taken_by(order)
    assert kept + placed == expected
    check_references(expected, released + references)


def check_references(placed: list[Placed], references: list[int]) -> None:
    """Check that each row's reference is the largest id of its stream below which all records were placed."""
    for stream_id in {row.key.stream_id for row in placed}:
        ids = sorted(
            place.key.message_id
            for place in placed
            if place.key.stream_id == stream_id and place.key.message_id != END_ID
        )
        taken: set[int] = set()
        for place, reference_ in zip(placed, references, strict=True):
            if place.key.stream_id != stream_id:
                continue
            if place.key.message_id == END_ID:
                assert reference_ == NO_REFERENCE
                continue
            taken.add(place.key.message_id)
            whole = next((number for number, at in enumerate(ids) if at not in taken), len(ids))
            assert reference_ == (ids[whole - 1] if whole else NO_REFERENCE)


def test_no_row_is_released_while_a_declared_stream_is_silent_until_its_end() -> None:
    order = EventOrder(DeclaredOrder(frozenset({1, 2})))
    order.observe(heard([Row(1, 0, 10), Row(1, 1, 20)]))
    assert taken_by(order)[0] == []
    assert order.clocks.slowest() == 2
    order.observe(heard([Row(2, END_ID, 0, is_end=True)]))
    assert [row.key.message_id for row in taken_by(order)[0]] == [END_ID, 0, 1]
    assert order.clocks.slowest() == 1


def test_at_equal_times_the_stream_with_the_lower_id_is_first_and_the_other_waits_for_it() -> None:
    order = EventOrder(DeclaredOrder(frozenset({1, 2})))
    order.observe(heard([Row(1, 0, 10), Row(2, 0, 10)]))
    assert [row.key.stream_id for row in taken_by(order)[0]] == [1], "stream 1 may have more of the same time"
    order.observe(heard([Row(1, 1, 10), Row(1, 2, 11)]))
    assert [(one.key.stream_id, one.key.message_id) for one in taken_by(order)[0]] == [(1, 1), (2, 0)]


def test_a_record_is_late_only_against_its_own_stream() -> None:
    order = EventOrder(DeclaredOrder(frozenset({1, 2}), lateness_ns=5))
    order.observe(heard([Row(1, 0, 100), Row(2, 0, 1), Row(2, 1, 7), Row(2, 2, 2), Row(2, 3, 1), Row(2, 4, 50)]))
    found = {row.key.message_id: row for row in taken_by(order)[0]}
    assert not found[0].is_late
    assert not found[2].is_late, "a lateness of five nanoseconds is allowed"
    assert found[3] == Placed(Key(2, 2, 3), is_late=True), "a late record is placed at the watermark"


def test_a_tick_advances_the_watermark_of_an_idle_stream_and_earlier_records_are_then_late() -> None:
    order = EventOrder(DeclaredOrder(frozenset({1, 2}), lateness_ns=5))
    order.observe(heard([Row(1, 0, 100), Row(1, 1, 106)]))
    tick = order.clocks.tick(frozenset({2}))
    assert tick == 102
    order.observe(heard([Row(2, 0, tick, is_tick=True)]))
    assert [row.key.order_time for row in taken_by(order)[0]] == [100]
    order.observe(heard([Row(2, 5, 101), Row(2, 6, 102)]))
    assert [bool(one) for one in order.waiting._stacks[0].are_late] == [False, True, False, False]


def test_extreme_times_are_in_order_too() -> None:
    order = EventOrder(DeclaredOrder(frozenset({1}), lateness_ns=10**18))
    order.observe(heard([Row(1, 0, TIME_MIN), Row(1, 1, TIME_MAX), Row(1, 2, TIME_MIN), Row(1, 2, 0, is_end=True)]))
    assert [row.key.message_id for row in taken_by(order)[0]] == [0, 2, 1, END_ID]
    assert order.clocks.known == {1: StreamClock(TIME_MAX, is_ended=True, seen=2)}


@pytest.mark.parametrize("lateness", [0, 7])
def test_many_small_chunks_leave_few_stacks(lateness: int) -> None:
    order, ids = EventOrder(DeclaredOrder(frozenset({1, 2}), lateness)), count()
    for _ in range(300):
        order.observe(heard([Row(1, next(ids), 5), Row(1, next(ids), 6)]))
    assert len(order.waiting) == 600
    assert len(order.waiting._stacks) <= 10
