"""A feed: one session of a source with a gateway, from HELLO to the last ACK.

The one rule: nothing is sent without a credit, every stream is read from what the gateway says is committed, and the
session is finished only when every record is acknowledged and the gateway has taken the end of every stream. Before
it on the walk: the author's Source. After it: the gateway; sdk/source connects again when a feed is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import structlog

from procession.errors import ConfigError, RemoteProtocolError
from procession.sdk.batch import Batch, Source, StreamInfo
from procession.sdk.pace import Pace
from procession.wire.connection import Connection, Event, Violation
from procession.wire.messages import (
    NOTHING_COMMITTED,
    Ack,
    Eos,
    Error,
    Frame,
    Hello,
    Notify,
    NotifyAck,
    Ok,
    Restart,
)

READ_BYTES_MAX = 64 * 1024
RECORDS_PER_WRITE_MAX = 16 * 1024
STREAMS_READ_AT_ONCE_MAX = 64
HANDSHAKE_TIMEOUT_S = 10.0
FAREWELL_TIMEOUT_S = 5.0

log = structlog.get_logger()


class GreetingRefused(ConfigError):
    """The gateway answered HELLO with an error."""


@dataclass(slots=True)
class Progress:
    """How far a stream is. `committed` outlives the session, the rest begins anew with each."""

    stream: StreamInfo
    committed: int | None = None
    """What the gateway has acknowledged: never sent again."""
    last: int | None = None
    """What was sent last in this session, or was committed before it."""
    is_ended: bool = False
    """EOS was sent in this session."""

    @property
    def is_done(self) -> bool:
        is_committed = self.last is None or (self.committed is not None and self.committed >= self.last)
        return self.is_ended and is_committed

    def begin(self) -> None:
        self.last, self.is_ended = self.committed, False

    def commit(self, point_of_reference: int) -> None:
        if point_of_reference != NOTHING_COMMITTED:
            self.committed = max(self.committed or 0, point_of_reference)


class Feed:
    """`run` returns None when all is done, or the Restart that the gateway sent; OSError when the session was lost."""

    def __init__(
        self,
        source: Source,
        progress: dict[int, Progress],
        connection: Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        pace: Pace | None = None,
        is_stamping: bool = False,
        hear: Callable[[int, int, float], None] | None = None,
    ) -> None:
        self._source = source
        self._progress = progress
        self._connection = connection
        self._reader = reader
        self._writer = writer
        self._pace = pace
        self._is_stamping = is_stamping
        self._hear = hear
        self._credited = asyncio.Event()
        self._reading = asyncio.Semaphore(STREAMS_READ_AT_ONCE_MAX)
        self._to_notify = deque(progress.values())
        self._refused: list[Progress] = []
        self._senders: list[asyncio.Task[None]] = []
        self._deadline = asyncio.timeout(HANDSHAKE_TIMEOUT_S)
        self._is_welcome = False
        self._is_leaving = False
        for stream in progress.values():
            stream.begin()

    async def run(self, hello: Hello) -> Restart | None:
        self._send(hello)
        try:
            async with asyncio.TaskGroup() as tasks:
                try:
                    return await self._receive(tasks)
                finally:
                    for sender in self._senders:
                        sender.cancel()
        except BaseExceptionGroup as group:
            # The first is what happened; the others are what followed from it.
            raise group.exceptions[0] from None

    async def _receive(self, tasks: asyncio.TaskGroup) -> Restart | None:
        async with self._deadline:
            while data := await self._reader.read(READ_BYTES_MAX):
                for event in self._connection.receive(data):
                    if isinstance(event, Restart):
                        log.info("< RESTART", address=event.address)
                        return event
                    self._take(event, tasks)
        if self._is_done():
            return None
        raise ConnectionResetError("the gateway closed the connection")

    def _take(self, event: Event, tasks: asyncio.TaskGroup) -> None:
        match event:
            case Ok(credits):
                log.debug("< OK", credits=credits)
                self._is_welcome = True
                self._deadline.reschedule(None)
                self._notify()
                self._farewell_if_done()
            case NotifyAck(success, stream_id, point_of_reference):
                log.debug("< NOTIFY_ACK", stream=stream_id, success=success, committed=point_of_reference)
                progress = self._progress[stream_id]
                if success:
                    self._commit(progress, point_of_reference)
                    progress.begin()
                    self._senders.append(tasks.create_task(self._feed(progress)))
                else:
                    self._refused.append(progress)
            case Ack(_, positions):
                for stream_id, point_of_reference in positions:
                    self._commit(self._progress[stream_id], point_of_reference)
                self._to_notify.extend(self._refused)
                self._refused.clear()
                self._notify()
                self._credited.set()
                self._farewell_if_done()
            case Error(reason):
                if self._is_welcome:
                    raise RemoteProtocolError(f"the gateway ended the session: {reason}")
                raise GreetingRefused(f"The gateway refused us: {reason}.", next_step="Check the cookie.")
            case Violation(reason):
                self._write(self._connection.error_frame(reason))
                raise RemoteProtocolError(reason)

    def _commit(self, progress: Progress, point_of_reference: int) -> None:
        before = progress.committed
        progress.commit(point_of_reference)
        if self._hear is not None and progress.committed is not None and progress.committed != before:
            self._hear(progress.stream.id, progress.committed, time.time())

    def _notify(self) -> None:
        # RESTART or ERROR may stand behind this event in the same read: then nothing more may be said.
        while self._to_notify and self._connection.credit.available and not self._connection.is_over:
            progress = self._to_notify.popleft()
            self._send(Notify(progress.stream.id, progress.stream.name, progress.committed or 0))

    async def _feed(self, progress: Progress) -> None:
        """Send one stream: its records, then its end."""
        async with self._reading:
            async for batch in _batches(self._source.read(progress.stream, progress.committed)):
                sent = 0
                while sent < len(batch):
                    piece = batch.slice(sent, await self._allowance(len(batch) - sent))
                    self._send_piece(progress, piece)
                    sent += len(piece)
                    await self._writer.drain()
                    # `drain` does not yield while there is room; the receiver has to have its turn.
                    await asyncio.sleep(0)
        await self._credit()
        self._send(Eos(progress.stream.id))
        progress.is_ended = True
        self._farewell_if_done()

    def _send_piece(self, progress: Progress, piece: Batch) -> None:
        if self._is_stamping:
            piece = piece.stamped(time.time_ns())
        data = self._connection.send_messages(
            progress.stream.id, piece.message_ids, piece.event_times, piece.keys, piece.payloads
        )
        self._write(memoryview(data))
        progress.last = int(piece.message_ids[-1])

    async def _allowance(self, wanted: int) -> int:
        """How many records may be sent now: at least one, by credits and pace."""
        while True:
            allowed = min(await self._credit(), wanted, RECORDS_PER_WRITE_MAX)
            if self._pace:
                allowed = self._pace.take(allowed, time.monotonic())
            if allowed:
                return allowed
            assert self._pace
            await asyncio.sleep(self._pace.wait_s())

    async def _credit(self) -> int:
        """The credits there are, as soon as there is one."""
        while not self._connection.credit.available:
            self._credited.clear()
            await self._credited.wait()
        return self._connection.credit.available

    def _is_done(self) -> bool:
        return all(progress.is_done for progress in self._progress.values())

    def _farewell_if_done(self) -> None:
        """Say that no more comes; the gateway closes when it has read all. An EOS it did not read is sent again."""
        if self._is_done() and not self._is_leaving:
            self._is_leaving = True
            if not self._writer.is_closing():
                self._writer.write_eof()
            asyncio.get_running_loop().call_later(FAREWELL_TIMEOUT_S, self._writer.close)

    def _send(self, frame: Frame) -> None:
        log.debug("> frame", frame=frame)
        self._write(self._connection.send(frame))

    def _write(self, data: bytes | memoryview) -> None:
        # A transport that was reset while we waited for something else may raise what is no OSError (uvloop's does).
        if self._writer.is_closing():
            raise ConnectionResetError("the connection was lost")
        self._writer.write(data)


async def _batches(batches: Iterator[Batch] | AsyncIterator[Batch]) -> AsyncIterator[Batch]:
    if isinstance(batches, AsyncIterator):
        async for batch in batches:
            yield batch
    else:
        for batch in batches:
            yield batch
