"""Stream readers: iterators in threads and asynchronous ones on the loop, with the same guarantees."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from procession.errors import RecordError
from procession.sdk.batching import GatherLimits
from procession.sdk.doubles import Crashed
from procession.sdk.source_records import Items, Record, Stream
from procession.sdk.stream_reader import StreamReader, begin_reading
from tests.sdk.loops import on_a_loop

ONE = Stream(1, "one")
SMALL = GatherLimits(records_max=4, bytes_max=1000, delay_s=0.001)
PATIENT = GatherLimits(records_max=4, bytes_max=1000, delay_s=3600.0)


def record(number: int) -> Record:
    return number, 0, b"", b"%d" % number


def plain(count: int, closed: list[bool], is_raising: bool = False) -> Iterator[Record]:
    try:
        for number in range(count):
            yield record(number)
        if is_raising:
            raise Crashed
    finally:
        closed.append(True)


async def asynchronous(count: int, closed: list[bool], is_raising: bool = False) -> AsyncIterator[Record]:
    try:
        for number in range(count):
            await asyncio.sleep(0)
            yield record(number)
        if is_raising:
            raise Crashed
    finally:
        closed.append(True)


KINDS: list[Callable[..., Items]] = [plain, asynchronous]
both_kinds = pytest.mark.parametrize("kind", KINDS)


async def ids(reading: StreamReader) -> list[list[int]]:
    return [batch.message_ids.tolist() async for batch in reading]


@both_kinds
def test_all_records_arrive_in_order_in_batches_within_the_limit(kind: Callable[..., Items]) -> None:
    @on_a_loop
    async def check() -> None:
        closed: list[bool] = []
        batches = await ids(begin_reading(ONE, None, kind(50, closed), SMALL))
        assert [number for batch in batches for number in batch] == list(range(50))
        assert max(map(len, batches)) <= 4
        assert closed == [True]

    check()


@both_kinds
def test_an_error_is_raised_after_the_records_before_it(kind: Callable[..., Items]) -> None:
    @on_a_loop
    async def check() -> None:
        closed: list[bool] = []
        reading = begin_reading(ONE, None, kind(6, closed, is_raising=True), PATIENT)
        seen = [await anext(reading), await anext(reading)]
        assert [batch.message_ids.tolist() for batch in seen] == [[0, 1, 2, 3], [4, 5]]
        with pytest.raises(Crashed):
            await anext(reading)
        assert closed == [True]

    check()


@both_kinds
def test_the_author_is_never_more_than_two_batches_ahead(kind: Callable[..., Items]) -> None:
    @on_a_loop
    async def check() -> None:
        made: list[int] = []

        def count(number: int) -> Record:
            made.append(number)
            return record(number)

        def items() -> Iterator[Record]:
            yield from map(count, range(1000))

        async def items_later() -> AsyncIterator[Record]:
            for number in range(1000):
                yield count(number)

        reading = begin_reading(ONE, None, items() if kind is plain else items_later(), PATIENT)
        for batches in range(1, 20):
            await anext(reading)
            await asyncio.sleep(0.002)  # it could run far ahead now
            assert len(made) <= (batches + 2) * PATIENT.records_max
        reading.stop()
        await reading.ended.wait()

    check()


@both_kinds
def test_a_stopped_reader_runs_the_finally_block_of_its_iterator(kind: Callable[..., Items]) -> None:
    @on_a_loop
    async def check() -> None:
        closed: list[bool] = []
        reading = begin_reading(ONE, None, kind(10**9, closed), SMALL)
        await anext(reading)
        reading.stop()
        await reading.ended.wait()
        assert closed == [True]

    check()


@on_a_loop
async def test_a_reader_that_is_stopped_before_its_start_has_ended() -> None:
    reading = begin_reading(ONE, None, asynchronous(10, []), SMALL)
    reading.stop()
    await reading.ended.wait()
    assert await ids(reading) == []


@on_a_loop
async def test_records_and_the_event_loop_do_not_wait_for_an_author_that_blocks() -> None:
    go_on = threading.Event()

    def items() -> Iterator[Record]:
        yield record(0)
        yield record(1)
        go_on.wait()
        yield record(2)

    reading = begin_reading(ONE, None, items(), SMALL)
    seen: list[int] = []
    while len(seen) < 2:
        seen += (await anext(reading)).message_ids.tolist()
    assert seen == [0, 1]
    go_on.set()
    assert await ids(reading) == [[2]]


@on_a_loop
async def test_an_author_that_blocks_forever_does_not_keep_the_reader_open() -> None:
    never = threading.Event()

    def items() -> Iterator[Record]:
        yield record(0)
        never.wait()

    reading = begin_reading(ONE, None, items(), SMALL)
    await anext(reading)
    reading.stop()
    assert not reading.ended.is_set()
    never.set()
    await reading.ended.wait()


@on_a_loop
async def test_a_result_that_is_not_an_iterator_is_named() -> None:
    with pytest.raises(RecordError, match="gave int for stream 'one'"):
        begin_reading(ONE, None, 7, SMALL)  # type: ignore[arg-type]
