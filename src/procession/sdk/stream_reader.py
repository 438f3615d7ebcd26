"""The stream reader: one pass over a stream, from the author's iterator to batches that are ready to be sent.

Invariant: the author's code never blocks the event loop, and is at most two batches ahead of the sent records. A plain
iterator runs in its own thread; an asynchronous iterator in a task. `sdk/source_session` sends the batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Self

from procession.errors import RecordError
from procession.sdk.batching import GatherLimits, StreamBatcher
from procession.sdk.event_time_field import EventTimeField
from procession.sdk.source_records import Batch, Item, Items, Stream


class StreamReader(ABC):
    """An asynchronous iterator of batches. `stop` ends it; `ended` is set when the author's code has returned."""

    def __init__(self, batcher: StreamBatcher, monotonic_s: Callable[[], float]) -> None:
        self._gather = batcher
        self._monotonic_s = monotonic_s
        self._delay_s = batcher.delay_s
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Condition()
        """Guards the batcher and the attributes below it. The author's thread waits on it for room."""
        self._is_over = self._is_stopped = False
        self._error: BaseException | None = None
        self._first_s = 0.0
        """When the oldest waiting record was added."""
        self._changed = asyncio.Event()
        self.ended = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        while True:
            self._changed.clear()
            with self._lock:
                wait_s = self._wait_s()
                if wait_s == 0.0:
                    batch = self._gather.take()
                    self.made_room()
                    if batch is not None:
                        return batch
                    if self._error is not None:
                        raise self._error
                    raise StopAsyncIteration
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    def _wait_s(self) -> float | None:
        """Return the seconds until there is something to do. None: it depends on the author's code."""
        if self._gather.is_due or self._is_over:
            return 0.0
        if self._gather.is_empty:
            return None
        return max(0.0, self._first_s + self._delay_s - self._monotonic_s())

    def _put(self, item: Item) -> bool:
        """Add an item that the author's code yields. Returns whether there is something new to read. Called under the
        lock."""
        was_empty = self._gather.is_empty
        self._gather.add(item)
        if was_empty:
            self._first_s = self._monotonic_s()
        return was_empty or self._gather.is_due

    def _finish(self, error: BaseException | None) -> None:
        """Note that the author's code has returned or raised. Called under the lock."""
        self._is_over, self._error = True, error

    @abstractmethod
    def made_room(self) -> None:
        """Wake the author's code, which may wait for room. Called under the lock."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the author's code at its current position."""


class _InThread(StreamReader):
    def __init__(
        self, stream: Stream, batcher: StreamBatcher, items: Iterable[Item], monotonic_s: Callable[[], float]
    ) -> None:
        super().__init__(batcher, monotonic_s)
        # A daemon thread: an author's read that blocks forever must not keep the program from ending.
        threading.Thread(target=self._run, args=(items,), name=f"read {stream.name}", daemon=True).start()

    def _run(self, items: Iterable[Item]) -> None:
        error: BaseException | None = None
        iterator = iter(items)
        try:
            for item in iterator:
                with self._lock:
                    is_new = not self._is_stopped and self._put(item)
                    if is_new:
                        self._set(self._changed)
                    self._lock.wait_for(lambda: self._gather.has_room or self._is_stopped)
                    if self._is_stopped:
                        break
        except BaseException as raised:  # `__anext__` raises it
            error = raised
        finally:
            if close := getattr(iterator, "close", None):
                with contextlib.suppress(Exception):
                    close()
            with self._lock:
                self._finish(error)
            self._set(self._changed)
            self._set(self.ended)

    def _set(self, event: asyncio.Event) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed, so no reader is left
            self._loop.call_soon_threadsafe(event.set)

    def made_room(self) -> None:
        self._lock.notify()

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            self._lock.notify()


class _InTask(StreamReader):
    def __init__(
        self, stream: Stream, batcher: StreamBatcher, items: AsyncIterable[Item], monotonic_s: Callable[[], float]
    ) -> None:
        super().__init__(batcher, monotonic_s)
        self._room = asyncio.Event()
        self._task = self._loop.create_task(self._run(items), name=f"read {stream.name}")
        self._task.add_done_callback(self._done)  # also if it was cancelled before it began

    async def _run(self, items: AsyncIterable[Item]) -> None:
        iterator = aiter(items)
        try:
            async for item in iterator:
                if self._put(item):
                    self._changed.set()
                while not self._gather.has_room:
                    self._room.clear()
                    await self._room.wait()
        finally:
            if close := getattr(iterator, "aclose", None):
                await close()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._finish(None if task.cancelled() else task.exception())
        self._changed.set()
        self.ended.set()

    def made_room(self) -> None:
        self._room.set()

    def stop(self) -> None:
        self._task.cancel()


def begin_reading(
    stream: Stream,
    after: int | None,
    items: Items,
    limits: GatherLimits,
    event_time: EventTimeField | None = None,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> StreamReader:
    """Start the author's iterator and return the reader of its batches."""
    batcher = StreamBatcher(stream, after, limits, event_time)
    if isinstance(items, AsyncIterable):
        return _InTask(stream, batcher, items, monotonic_s)
    if isinstance(items, Iterable):
        return _InThread(stream, batcher, items, monotonic_s)
    raise RecordError(
        f"The source's read gave {type(items).__name__} for stream {stream.name!r}, which is not an iterator.",
        next_step="Write read as a generator: def or async def, with yield.",
    )
