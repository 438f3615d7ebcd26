"""A source session: one session of a source with a gateway, from HELLO to the last ACK.

Invariant: no record is sent without a credit. Each stream is read from the position that the gateway has committed. The
session is finished only when every record and the end of every stream are committed. The protocol has no frame that
confirms an end. But until the end is committed, the gateway refuses a NOTIFY of the stream; so an accepted NOTIFY
confirms the end. Batches come from `sdk/stream_reader`; `sdk/source_client` reconnects when a session is lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import cast

import numpy as np
import structlog

from procession.background_loading import Readiness
from procession.errors import ConfigError, RemoteProtocolError
from procession.runtime.host import HOST, Host
from procession.sdk.pacing import RateLimit
from procession.sdk.source_options import SourceOptions
from procession.sdk.source_records import Batch, Source, Stream, UnnumberedSource
from procession.sdk.stream_progress import KnownStreams, StreamProgress
from procession.sdk.stream_reader import StreamReader, begin_reading
from procession.wire import columns, draft
from procession.wire.connection import Connection, Event, Violation
from procession.wire.draft_messages import AnyFrame, DraftMessage
from procession.wire.messages import (
    NOTHING_COMMITTED,
    UNNUMBERED,
    Ack,
    Eos,
    Error,
    Hello,
    Notify,
    NotifyAck,
    Ok,
    Restart,
)

READ_BYTES_MAX = 64 * 1024

CONFIRM_PAUSE_S = 0.02
CONFIRM_RETRY_S = 0.5
"""Minimum and maximum time between two NOTIFYs that ask whether the end of a stream is committed. The next NOTIFY is
sent earlier if an ACK arrives."""

REFUSED_PAUSE_S = 0.02
"""Time from an ACK until a refused NOTIFY is repeated. Without it, client and gateway would exchange nothing but
NOTIFYs and refusals, because with a small window of credits each refusal comes with an ACK."""

ENCODER_FROM_RECORDS = 10_000_000
"""Number of records after which the compiled encoder makes up for its load time."""

log = structlog.get_logger()


def new_encoder() -> Readiness:
    """Return what loads the compiled encoder after enough records."""
    return Readiness(columns.make_ready, after=ENCODER_FROM_RECORDS)


class HelloRefused(ConfigError):
    """The gateway answered HELLO with an error."""


class StreamFeed:
    """Sends the streams of a source in one session. `run` returns None when all is done, or the Restart that the
    gateway sent. It raises OSError when the session is lost."""

    def __init__(
        self,
        source: Source,
        known: KnownStreams,
        options: SourceOptions,
        connection: Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        pace: RateLimit | None = None,
        readings: dict[int, StreamReader] | None = None,
        encoder: Readiness | None = None,
        host: Host = HOST,
        on_progress: Callable[[StreamProgress], None] | None = None,
    ) -> None:
        """`readings` outlives the session, so a stream has at most one reader at a time. `encoder` also outlives the
        session, and counts what all sessions of a process send."""
        self._source = source
        self._known = known
        self._options = options
        self._connection = connection
        self._reader = reader
        self._writer = writer
        self._pace = pace
        self._readings = {} if readings is None else readings
        self._encoder = new_encoder() if encoder is None else encoder
        self._host = host
        self._on_progress = on_progress
        self._credited = asyncio.Event()
        self._acked = asyncio.Event()
        self._slots = asyncio.Semaphore(options.streams_at_once_max)
        self._turn = asyncio.Lock()
        """Lets the streams write one at a time, in turn. So only one batch waits for the socket, not one batch per
        stream."""
        self._to_notify = deque(known.streams.values())
        self._refused: list[StreamProgress] = []
        self._is_repeating = False
        """Whether the refused NOTIFYs are about to be repeated."""
        self._unconfirmed: deque[StreamProgress] = deque()
        """The ended streams that wait for a NOTIFY to confirm their end, ordered by id."""
        self._is_asking = False
        """Whether a NOTIFY that asks about the first unconfirmed stream is sent or about to be sent."""
        self._is_confirming = False
        self._tasks = asyncio.TaskGroup()
        self._senders: set[asyncio.Task[None]] = set()
        self._deadline = asyncio.timeout(options.handshake_timeout_s)
        self._is_leaving = False
        self.is_welcome = False
        for progress in known.streams.values():
            progress.begin()

    async def run(self, hello: Hello) -> Restart | None:
        self._send(hello)
        try:
            async with self._tasks:
                try:
                    return await self._receive()
                finally:
                    self._is_leaving = True
                    for sender in self._senders:
                        sender.cancel()
        except BaseExceptionGroup as group:
            # The first error is the cause; the others follow from it.
            raise group.exceptions[0] from group.exceptions[0].__cause__

    @property
    def needs_credits(self) -> bool:
        """Whether there are no credits left."""
        return self.is_welcome and not self._connection.credit.available

    def open(self, progress: StreamProgress) -> None:
        """Open a stream that the source named during the session, for the first time or again."""
        self._to_notify.append(progress)
        self._notify()

    def close_if_done(self) -> None:
        """When everything is committed, close this side of the connection. The gateway closes its side when it has read
        all."""
        if not self.is_welcome or not self._known.is_acknowledged or self._is_leaving:
            return
        if not self._is_confirming:
            self._is_confirming = True
            self._spawn(self._confirm_ends())
        if self._known.is_done:
            self._is_leaving = True
            if not self._writer.can_write_eof():
                # TLS has no half-close. Closing sends all buffered bytes, then waits until the peer closes.
                self._writer.close()
            elif not self._writer.is_closing():
                self._writer.write_eof()
            asyncio.get_running_loop().call_later(self._options.close_timeout_s, self._writer.close)

    # Receiving

    async def _receive(self) -> Restart | None:
        async with self._deadline:
            while data := await self._reader.read(READ_BYTES_MAX):
                for event in self._connection.receive(data):
                    if isinstance(event, Restart):
                        log.info("session.restart_asked", address=event.address)
                        return event
                    self._take(event)
        if self._known.is_done:
            return None
        raise ConnectionResetError("the gateway closed the connection")

    def _take(self, event: Event) -> None:
        match event:
            case Ok(credits):
                log.debug("session.opened", credits=credits)
                self.is_welcome = True
                self._deadline.reschedule(None)
                self._notify()
                self.close_if_done()
            case NotifyAck(success, stream_id, point_of_reference):
                log.debug("session.stream_answered", stream=stream_id, success=success, committed=point_of_reference)
                progress = self._known.streams[stream_id]
                if progress.is_ended:
                    self._is_asking = False
                    if success:
                        progress.is_end_committed = True
                        self._ask_for_an_end()
                elif success and self._is_unnumbered(progress):
                    # The id may come from an earlier session, so it does not acknowledge records of this session.
                    last = None if point_of_reference == NOTHING_COMMITTED else point_of_reference
                    cast(UnnumberedSource, self._source).number_above(progress.stream, last)
                    self._begin(progress)
                elif success:
                    self._commit(progress, point_of_reference)
                    self._begin(progress)
                else:
                    self._refused.append(progress)
            case Ack(_, positions):
                for stream_id, point_of_reference in positions:
                    self._commit(self._known.streams[stream_id], point_of_reference)
                if self._refused and not self._is_repeating:
                    self._is_repeating = True
                    self._spawn(self._repeat_refused())
                self._notify()
                self._credited.set()
                self._acked.set()
                self.close_if_done()
            case Error(reason):
                if reason.startswith(draft.IN_USE):
                    raise ConnectionResetError(reason)  # the draft refuses a NOTIFY in this way: try again
                if self.is_welcome:
                    raise RemoteProtocolError(f"the gateway ended the session: {reason}")
                raise HelloRefused(f"The gateway refused the session: {reason}.", next_step=_next_step(reason))
            case Violation(reason):
                self._write(self._connection.error_frame(reason))
                raise RemoteProtocolError(reason)

    def _is_unnumbered(self, progress: StreamProgress) -> bool:
        return isinstance(self._source, UnnumberedSource) and self._source.is_unnumbered(progress.stream)

    def _commit(self, progress: StreamProgress, point_of_reference: int) -> None:
        before = progress.committed
        progress.commit(point_of_reference)
        if self._on_progress is not None and progress.committed != before:
            self._on_progress(progress)

    def _notify(self) -> None:
        # RESTART or ERROR may follow this event in the same read. Then no more frames may be sent.
        while self._to_notify and self._connection.credit.available and not self._connection.is_over:
            progress = self._to_notify.popleft()
            reference = UNNUMBERED if self._is_unnumbered(progress) else progress.committed or 0
            self._send(Notify(progress.stream.id, progress.stream.name, reference))
        for answer in self._connection.implied():
            self._take(answer)

    async def _repeat_refused(self) -> None:
        await asyncio.sleep(REFUSED_PAUSE_S)
        self._is_repeating = False
        self._to_notify.extend(self._refused)
        self._refused.clear()
        self._notify()

    def _begin(self, progress: StreamProgress) -> None:
        progress.accept()
        self._spawn(self._feed(progress))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        sender = self._tasks.create_task(work)
        self._senders.add(sender)
        sender.add_done_callback(self._senders.discard)

    async def _confirm_ends(self) -> None:
        """Send NOTIFYs until the end of every stream is committed. Starts when there is nothing left to send, because
        an accepted NOTIFY opens the stream again until the session ends. Confirms one stream at a time, in the order of
        their ids. Otherwise two sources of the same streams could each hold some of them, and deadlock."""
        self._unconfirmed.extend(sorted(self._known.streams.values(), key=lambda progress: progress.stream.id))
        while not self._known.is_done:
            self._acked.clear()
            self._ask_for_an_end()
            with suppress(TimeoutError):
                async with asyncio.timeout(CONFIRM_RETRY_S):
                    await self._acked.wait()
            await asyncio.sleep(CONFIRM_PAUSE_S)

    def _ask_for_an_end(self) -> None:
        while self._unconfirmed and self._unconfirmed[0].is_end_committed:
            self._unconfirmed.popleft()
        if not self._unconfirmed:
            self.close_if_done()
        elif not self._is_asking:
            self._is_asking = True
            self._to_notify.append(self._unconfirmed[0])
            self._notify()

    # Sending

    async def _feed(self, progress: StreamProgress) -> None:
        """Send one stream: its records, then its end."""
        async with self._slots:
            await self._read(progress)
        async with self._turn:
            await self._credit()
            self._send(_end_of(progress.stream))
        progress.end()
        # The draft opens a stream again at once, so it cannot confirm that the end is committed.
        progress.is_end_committed = not self._connection.dialect.confirms_ends
        if progress.is_named_again:
            progress.reopen()
            self.open(progress)
        self.close_if_done()

    async def _read(self, progress: StreamProgress) -> None:
        stream, after = progress.stream, progress.committed
        if before := self._readings.get(stream.id):
            await before.ended.wait()
        options = self._options
        items = self._source.read(stream, after)
        reading = begin_reading(stream, after, items, options.gather, options.event_time, self._host.monotonic_s)
        self._readings[stream.id] = reading
        try:
            async for batch in reading:
                await self._send_batch(progress, batch)
        finally:
            reading.stop()

    async def _send_batch(self, progress: StreamProgress, batch: Batch) -> None:
        ends = np.cumsum(batch.sizes())
        sent = 0
        while sent < len(batch):
            bytes_before = int(ends[sent - 1]) if sent else 0
            within = int(np.searchsorted(ends, bytes_before + self._options.write_bytes_max, side="right")) - sent
            async with self._turn:
                count = await self._allowance(max(1, within))
                self._send_piece(progress, batch.slice(sent, count), int(ends[sent + count - 1]) - bytes_before)
                await self._writer.drain()
            sent += count
            # `drain` does not yield while there is room, so this lets the receiver run.
            await asyncio.sleep(0)

    def _send_piece(self, progress: StreamProgress, piece: Batch, size_bytes: int) -> None:
        if self._options.is_stamping:
            piece = piece.stamped(int(self._host.wall_clock_s() * 1e9))
        message_ids = None if progress.stream.is_ephemeral else piece.message_ids
        data = self._connection.send_messages(
            progress.stream.id, message_ids, piece.event_times, piece.keys, piece.payloads
        )
        self._write(memoryview(data))
        self._encoder.worked(len(piece))
        progress.send(piece.message_ids, size_bytes)

    async def _allowance(self, wanted: int) -> int:
        """Wait until records may be sent, then return how many the credits and the rate allow: at least one."""
        while True:
            allowed = min(await self._credit(), wanted, self._options.write_records_max)
            if self._pace:
                allowed = self._pace.take(allowed, self._host.monotonic_s())
            if allowed:
                return allowed
            assert self._pace
            await asyncio.sleep(self._pace.wait_s())

    async def _credit(self) -> int:
        """Wait until there is a credit, then return the number of credits."""
        while not self._connection.credit.available:
            self._credited.clear()
            await self._credited.wait()
        return self._connection.credit.available

    def _send(self, frame: AnyFrame) -> None:
        log.debug("session.sent", frame=frame)
        self._write(self._connection.send(frame))

    def _write(self, data: bytes | memoryview) -> None:
        # The transport may have been reset meanwhile. Some transports, such as uvloop's, then raise no OSError.
        if self._writer.is_closing():
            raise ConnectionResetError("the connection was lost")
        self._writer.write(data)


def _end_of(stream: Stream) -> AnyFrame:
    # Either all messages of a stream are ephemeral or none is; an ephemeral stream ends with a message.
    return DraftMessage(stream.id, None, None, is_last=True) if stream.is_ephemeral else Eos(stream.id)


def _next_step(reason: str) -> str:
    """Return the advice for a HELLO that a gateway refused with this reason."""
    if reason.startswith("no cookie"):
        return "Send no cookie: the port of this gateway is open."
    if "cookie" in reason:
        return (
            "Send the secret of the pipeline: name its directory with --dir, or give a copy of its secrets/producers"
            " with --cookie-file; in a program of your own, SourceOptions(cookie=…)."
        )
    return "Check the version of the client, and the limits of the gateway."
