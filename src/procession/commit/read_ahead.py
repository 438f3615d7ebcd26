"""Reads an iterator ahead, in a thread of its own, for a consumer in the event loop.

Invariant: at most `AHEAD_MAX` items wait for the consumer. Only the thread uses the iterator, and it closes it. A
consumer that leaves early does not wait for the thread, which may wait for another machine. Used by
`commit/epoch_link`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

Item = TypeVar("Item")

AHEAD_MAX = 8
"""Maximum number of items that wait for the consumer."""
_END = object()


async def in_turn(items: Iterable[Item]) -> AsyncGenerator[Item, None]:
    """Yield the items in the event loop, without a thread."""
    for item in items:
        yield item


async def read_ahead(items: Iterator[Item]) -> AsyncGenerator[Item, None]:
    """Yield the items that a thread reads. Raises the error of the iterator."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[object] = asyncio.Queue()
    room = threading.Semaphore(AHEAD_MAX)
    is_left = threading.Event()

    def put(item: object) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(waiting.put_nowait, item)

    def read() -> None:
        try:
            for item in items:
                room.acquire()
                if is_left.is_set():
                    break
                put(item)
        except BaseException as error:  # it belongs to the consumer
            put(error)
        else:
            put(_END)
        finally:
            if (close := getattr(items, "close", None)) is not None:
                close()

    # A daemon, because a process that ends does not wait for another machine.
    threading.Thread(target=read, name="read runs", daemon=True).start()
    try:
        while (item := await waiting.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            yield item  # type: ignore[misc]
            room.release()
    finally:
        is_left.set()
        room.release()
