"""Rows on their way into the log: in order, together, bounded, and never forgotten."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from procession.errors import StorageError
from procession.gateway.rows import record_rows
from procession.gateway.writer import Writer
from procession.storage.log import IngressLog
from procession.wire.messages import Messages

PATIENCE_S = 20.0


def rows(*message_ids: int) -> pa.RecordBatch:
    count = len(message_ids)
    return record_rows(Messages.of([7] * count, message_ids, [0] * count, [b""] * count, [b"x"] * count))


class SlowLog:
    """A real log whose disk waits until it is told to go on."""

    def __init__(self, log: IngressLog) -> None:
        self._log = log
        self.may_go_on = threading.Event()
        self.is_writing = threading.Event()
        self.entries: list[list[int]] = []
        self.error: Exception | None = None

    def append(self, batch: pa.RecordBatch) -> int:
        self.is_writing.set()
        assert self.may_go_on.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        self.entries.append(batch.column("message_id").to_pylist())
        return self._log.append(batch)


class Desk:
    """A writer, its log, and what it has said."""

    def __init__(self, log: IngressLog, **options: Any) -> None:
        self.log = SlowLog(log)
        self.ends: list[int] = []
        self.news: asyncio.Queue[int] = asyncio.Queue()
        self.failures: list[Exception] = []
        defaults = {"entry_bytes": 100, "waiting_bytes_max": 300, "delay_s": 0.0}
        slow: Any = self.log
        self.writer = Writer(slow, **(defaults | options), appended=self._appended, failed=self.failures.append)

    def _appended(self, end: int) -> None:
        self.ends.append(end)
        self.news.put_nowait(end)


def on_a_desk(**options: Any) -> Callable[[Callable[[Desk], Coroutine[Any, Any, None]]], Callable[[Path], None]]:
    def decorate(test: Callable[[Desk], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
        async def run(path: Path) -> None:
            with IngressLog(path) as log:
                desk = Desk(log, **options)
                try:
                    async with asyncio.timeout(PATIENCE_S):
                        await test(desk)
                finally:
                    desk.log.may_go_on.set()
                    desk.writer.close()

        def wrapped(tmp_path: Path) -> None:
            asyncio.run(run(tmp_path))

        wrapped.__name__ = test.__name__
        return wrapped

    return decorate


@on_a_desk()
async def test_what_comes_while_an_entry_is_written_is_the_next_entry(desk: Desk) -> None:
    desk.writer.add(rows(1), 100)
    assert await asyncio.to_thread(desk.log.is_writing.wait, PATIENCE_S)
    for message_id in (2, 3, 4):
        desk.writer.add(rows(message_id), 60)
    desk.log.may_go_on.set()
    await desk.writer.flushed()
    assert desk.log.entries == [[1], [2, 3, 4]]
    assert desk.ends == [1, 4]


@on_a_desk()
async def test_few_rows_that_came_during_a_write_are_written_without_another_word(desk: Desk) -> None:
    desk.writer.add(rows(1), 100)
    assert await asyncio.to_thread(desk.log.is_writing.wait, PATIENCE_S)
    desk.writer.add(rows(2), 1)
    for _ in range(3):
        await asyncio.sleep(0)  # the timer goes off, and finds the thread at work
    desk.log.may_go_on.set()
    assert [await desk.news.get(), await desk.news.get()] == [1, 2]


@on_a_desk()
async def test_whoever_brings_more_than_may_wait_waits(desk: Desk) -> None:
    desk.writer.add(rows(1), 100)
    assert await asyncio.to_thread(desk.log.is_writing.wait, PATIENCE_S)
    desk.writer.add(rows(2), 299)
    assert desk.ends == []
    threading.Timer(0.01, desk.log.may_go_on.set).start()
    desk.writer.add(rows(3), 1)
    assert desk.ends == [1], "the first entry was waited for"
    await desk.writer.flushed()
    assert desk.log.entries == [[1], [2, 3]]


@on_a_desk()
async def test_a_flush_does_not_wait_for_what_comes_after_it(desk: Desk) -> None:
    desk.log.may_go_on.set()
    desk.writer.add(rows(1), 1)
    flushed = asyncio.ensure_future(desk.writer.flushed())
    message_id = 1
    while not flushed.done():
        message_id += 1
        desk.writer.add(rows(message_id), 100)
        await asyncio.sleep(0)
    assert desk.ends


@on_a_desk()
async def test_after_a_failure_nothing_more_is_written_and_nobody_waits(desk: Desk) -> None:
    desk.log.error = StorageError("The disk is full.", next_step="Free some.")
    desk.log.may_go_on.set()
    desk.writer.add(rows(1), 100)
    await desk.writer.flushed()
    desk.writer.add(rows(2), 1000)
    await desk.writer.flushed()
    assert (desk.failures, desk.ends, desk.log.entries) == ([desk.log.error], [], [])


@pytest.mark.parametrize("size_bytes", [1, 1000])
def test_rows_are_in_the_log_in_the_order_in_which_they_came(tmp_path: Path, size_bytes: int) -> None:
    @on_a_desk(delay_s=0.0)
    async def add_many(desk: Desk) -> None:
        desk.log.may_go_on.set()
        for message_id in range(300):
            desk.writer.add(rows(message_id), size_bytes)
            if message_id % 7 == 0:
                await asyncio.sleep(0)
        await desk.writer.flushed()
        assert [one for entry in desk.log.entries for one in entry] == list(range(300))
        assert desk.ends[-1] == 300

    add_many(tmp_path)
