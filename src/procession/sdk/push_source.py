"""A push source: a program pushes records into it. It is made for media that cannot be read twice.

Invariant: a record is sent again until it is committed. The source holds at most `bytes_max` uncommitted bytes and one
batch. Records come from a pipe, a socket or `sdk/sender`; `sdk/source_session` sends them like those of any Source.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

from procession.errors import UsageError
from procession.sdk.backlog import Backlog
from procession.sdk.source_records import Batch, Stream

BYTES_MAX = 64 * 1024 * 1024


class PushStream:
    """One stream of pushed records. Use it only in the thread of the event loop."""

    def __init__(self, stream: Stream, backlog: Backlog, *, bytes_max: int = BYTES_MAX) -> None:
        if bytes_max < 1:
            raise UsageError(f"A backlog of {bytes_max} bytes holds no records.", next_step="Give a number above 0.")
        self.stream = stream
        self._backlog = backlog
        self._bytes_max = bytes_max
        self._order = asyncio.Lock()
        self._news = asyncio.Event()
        self._appended = self._synced = 0
        """Number of batches that were put in, and number of batches that may be sent."""
        self._syncing: asyncio.Task[None] | None = None
        self._is_ended = self._is_opened = False
        self._failure: BaseException | None = None
        self._committed: int | None = None

    async def put(self, batch: Batch) -> None:
        """Add records, in the order of the calls. Waits while there is no room."""
        if not len(batch):
            return
        async with self._order:
            await self._until(lambda: self._backlog.size_bytes < self._bytes_max)
            try:
                self._backlog.append(batch)
            except Exception as error:  # such as a full disk: ends the program, not only this call
                self.fail(error)
                raise
            self._appended += 1
            if self._syncing is None:
                self._syncing = asyncio.get_running_loop().create_task(self._sync())

    async def flush(self) -> None:
        """Wait until all records that were put in are synced. A backlog in memory needs no sync."""
        goal = self._appended
        await self._until(lambda: self._synced >= goal)

    async def settled(self) -> None:
        """Wait until all records that were put in are committed."""
        await self._until(lambda: not self._backlog.size_bytes)

    async def committed(self) -> int | None:
        """Return the last committed message id. Waits until a gateway has reported it."""
        await self._until(lambda: self._is_opened)
        return self._committed

    def end(self) -> None:
        """End the stream after the records that were put in so far."""
        self._is_ended = True
        self._news.set()

    def fail(self, error: BaseException) -> None:
        """Note that the source has failed. All callers that put or wait get this error."""
        self._failure = self._failure or error
        self._news.set()

    def close(self) -> None:
        """Close the backlog after the source has stopped."""
        self._backlog.close()

    @property
    def is_durable(self) -> bool:
        return self._backlog.is_durable

    @property
    def records(self) -> int:
        """Number of records that were put in and are not committed."""
        return self._backlog.records

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not (is_so() or self._failure):
            self._news.clear()
            await self._news.wait()
        if self._failure:
            raise self._failure

    async def _sync(self) -> None:
        """Sync the backlog until no unsynced batch is left."""
        try:
            while self._synced < self._appended:
                goal = self._appended
                if self._backlog.is_durable:
                    await asyncio.to_thread(self._backlog.sync)
                self._synced = goal
                self._news.set()
        except Exception as error:
            self.fail(error)
        finally:
            self._syncing = None

    # As a Source

    def streams(self) -> list[Stream]:
        return [self.stream]

    async def read(self, stream: Stream, after: int | None) -> AsyncIterator[Batch]:
        self._committed = after
        self._backlog.open(after)
        self._is_opened = True
        self._news.set()
        while True:
            synced = self._synced
            is_all = self._is_ended and self._appended == synced
            if batch := self._backlog.read(after):
                after = int(batch.message_ids[-1])
                yield batch
            elif is_all:
                if self._failure:  # then records are missing, so this is not the end of the stream
                    raise self._failure
                return
            else:
                await self._until(partial(self._has_changed, synced))

    def _has_changed(self, synced: int) -> bool:
        return self._synced > synced or (self._is_ended and self._appended == self._synced)

    def is_unnumbered(self, stream: Stream) -> bool:
        return self._backlog.is_unnumbered

    def number_above(self, stream: Stream, last: int | None) -> None:
        self._backlog.number_above(last)

    def forget(self, stream: Stream, message_id: int) -> None:
        self._committed = message_id
        self._backlog.forget(message_id)
        self._news.set()
