"""A thread reads ahead of the event loop: everything arrives in order, and only a bounded number of items waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from procession.commit.read_ahead import AHEAD_MAX, in_turn, read_ahead
from procession.errors import StorageError
from tests.sdk.loops import on_a_loop


@on_a_loop
async def test_all_items_arrive_in_order() -> None:
    assert [item async for item in read_ahead(iter(range(100)))] == list(range(100))
    assert [item async for item in in_turn(range(3))] == [0, 1, 2]


@on_a_loop
async def test_an_error_of_the_iterator_arrives_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise StorageError("a run is lost")

    found = read_ahead(items())
    assert await anext(found) == 1
    with pytest.raises(StorageError, match="a run is lost"):
        await anext(found)


@on_a_loop
async def test_a_bounded_number_of_items_waits_and_a_consumer_that_leaves_ends_the_thread() -> None:
    read: list[int] = []
    is_full, is_closed = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        try:
            for number in range(1000):
                read.append(number)
                if number == AHEAD_MAX:
                    is_full.set()
                yield number
        finally:
            is_closed.set()

    async with aclosing(read_ahead(items())) as found:
        assert await anext(found) == 0
        # The consumer holds one item, AHEAD_MAX - 1 wait, and the thread has one in its hand.
        assert await asyncio.to_thread(is_full.wait, 30)
        assert await asyncio.to_thread(is_closed.wait, 0.05) is False
        assert len(read) == AHEAD_MAX + 1
    assert await asyncio.to_thread(is_closed.wait, 30)
    assert len(read) == AHEAD_MAX + 1


@on_a_loop
async def test_a_consumer_that_leaves_does_not_wait_for_an_iterator_that_hangs() -> None:
    goes_on, is_reading = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        yield 1
        is_reading.set()
        goes_on.wait()
        yield 2

    async with aclosing(read_ahead(items())) as found:
        assert await anext(found) == 1
        await asyncio.to_thread(is_reading.wait, 30)
    goes_on.set()
