"""The client of a source: sends records again until all of them are acknowledged.

Invariant: a lost session costs only time. The next session continues after the last commit, and the gateway drops
duplicates. The client reads the author's Source (`sdk/source_records`) and runs one `sdk/source_session` per session.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterable, Awaitable

import structlog

from procession.address import Address, notice_silence, parse_address, parse_addresses
from procession.errors import ConfigError, RemoteProtocolError, UsageError
from procession.log_format import keep_quiet, print_uncaught_as_sentences
from procession.runtime.host import HOST, Host
from procession.sdk.ack_log import AckLog
from procession.sdk.pacing import Backoff, RateLimit
from procession.sdk.source_options import SourceOptions
from procession.sdk.source_records import Forgetful, Source, Stream, UnnumberedSource
from procession.sdk.source_report import Report
from procession.sdk.source_session import HelloRefused, StreamFeed, new_encoder
from procession.sdk.stream_progress import KnownStreams, StreamProgress
from procession.sdk.stream_reader import StreamReader
from procession.tls import complaint, connect
from procession.wire import draft, v3
from procession.wire.connection import Connection
from procession.wire.dialect import DIALECTS
from procession.wire.lifecycle import ConnectionSide, Role
from procession.wire.messages import Hello, Restart

VERSIONS = {"v3": v3.SOURCE_VERSION, "draft": draft.VERSION}

log = structlog.get_logger()


class SourceClient:
    """Sends all records of a Source.

    Args:
        source: The source.
        address: Address of a gateway, or of several, separated by commas. If a gateway does not answer, the next is
            tried.
        options: The options of the source.
        backoff: The waits between two attempts. None: those of the options.
        host: The clocks and the files that the client uses.

    Raises:
        UsageError: The rate or the dialect is not valid.
    """

    def __init__(
        self,
        source: Source,
        address: Address | str,
        options: SourceOptions,
        backoff: Backoff | None = None,
        host: Host = HOST,
    ) -> None:
        keep_quiet()
        print_uncaught_as_sentences()
        if options.rate is not None and options.rate <= 0:
            raise UsageError(f"{options.rate} records per second is not a rate.", next_step="Give a number above 0.")
        if options.dialect not in DIALECTS:
            raise UsageError(
                f"{options.dialect!r} is not a dialect.", next_step=f"Choose one of {', '.join(DIALECTS)}."
            )
        self._source = source
        self._host = host
        self._homes = deque(parse_addresses(address) if isinstance(address, str) else [address])
        self._address = self._homes[0]
        self._options = options
        self._backoff = backoff or Backoff(options.backoff_first_s, options.backoff_limit_s)
        self._acks = AckLog(options.acks, host.files) if options.acks else None
        self._known = KnownStreams()
        self._readings: dict[int, StreamReader] = {}
        self._feed: StreamFeed | None = None
        self._sessions = 0
        self._disconnected_since_s = self._host.monotonic_s()
        self._reported = (self._host.monotonic_s(), 0)
        self._encoder = new_encoder()
        self._pace = RateLimit(options.rate, self._host.monotonic_s()) if options.rate else None

    @property
    def committed(self) -> dict[int, int | None]:
        """The last acknowledged message id of each stream."""
        return {stream_id: progress.committed for stream_id, progress in self._known.streams.items()}

    def report(self) -> Report:
        """Return the progress so far."""
        streams = self._known.streams.values()
        sent = sum(progress.sent for progress in streams)
        (before_s, before), now_s = self._reported, self._host.monotonic_s()
        self._reported = (now_s, sent)
        return Report(
            state=self._state(),
            streams=len(streams),
            streams_ended=sum(progress.is_ended for progress in streams),
            sent=sent,
            sent_bytes=sum(progress.sent_bytes for progress in streams),
            acknowledged=sum(progress.acknowledged for progress in streams),
            unacknowledged=sum(progress.unacknowledged for progress in streams),
            ephemeral=sum(progress.sent for progress in streams if progress.stream.is_ephemeral),
            records_per_s=(sent - before) / max(now_s - before_s, 1e-9),
            sessions=self._sessions,
        )

    def _state(self) -> str:
        if self._known.is_done:
            return "done"
        if self._feed is None or not self._feed.is_welcome:
            return "connecting"
        if self._known.is_complete and all(progress.is_ended for progress in self._known.streams.values()):
            return "waiting for commits"
        return "waiting for credits" if self._feed.needs_credits else "sending"

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                helpers = [tasks.create_task(self._list()), tasks.create_task(self._notify_streams())]
                await self._keep_going()
                for helper in helpers:
                    helper.cancel()
        except BaseExceptionGroup as group:
            # The first error is the cause; the others follow from it.
            raise group.exceptions[0] from group.exceptions[0].__cause__
        finally:
            for reading in self._readings.values():
                reading.stop()
            if self._acks:
                self._acks.close()
            if self._options.report:
                self._options.report(self.report())

    async def _notify_streams(self) -> None:
        while self._options.report:
            await asyncio.sleep(self._options.report_interval_s)
            self._options.report(self.report())

    # Streams

    async def _list(self) -> None:
        streams = self._source.streams()
        if isinstance(streams, AsyncIterable):
            async for stream in streams:
                self._name(stream)
        else:
            for stream in streams:
                self._name(stream)
        self._known.is_complete = True
        if self._feed:
            self._feed.close_if_done()

    def _name(self, stream: Stream) -> None:
        """Open a stream that the source has named. A stream that was named before is opened again."""
        if stream.is_ephemeral and self._options.dialect != "draft":
            raise ConfigError(
                f"Stream {stream.name!r} is ephemeral, which only the draft of the protocol supports.",
                next_step='Set the option dialect="draft".',
            )
        is_draft = self._options.dialect == "draft" and not stream.is_ephemeral
        if is_draft and isinstance(self._source, UnnumberedSource) and self._source.is_unnumbered(stream):
            raise ConfigError(
                f"Stream {stream.name!r} has no ids of its own, and in the draft of the protocol a gateway cannot tell"
                " which ids are free.",
                next_step='Give it a spool, give its records ids, or leave out dialect="draft".',
            )
        progress = self._known.streams.get(stream.id)
        if progress is None:
            progress = self._known.streams[stream.id] = StreamProgress(stream)
            if self._feed:
                self._feed.open(progress)
        elif progress.stream.name != stream.name:
            raise ConfigError(
                f"Streams {progress.stream.name!r} and {stream.name!r} have the same id, {stream.id}.",
                next_step="Give each stream an id of its own; Stream.named derives an id from the name.",
            )
        elif self._feed and progress.is_ended:
            progress.reopen()
            self._feed.open(progress)
        else:
            progress.is_named_again = True

    def _progressed(self, progress: StreamProgress) -> None:
        assert progress.committed is not None
        if self._acks:
            self._acks.record(progress.stream.id, progress.committed, self._host.wall_clock_s())
        if isinstance(self._source, Forgetful):
            self._source.forget(progress.stream, progress.committed)

    # Sessions

    async def _keep_going(self) -> None:
        complaints = 0
        is_waiting = False
        while True:
            before, began_s = self.committed, self._host.monotonic_s()
            try:
                restart = await self._trusted(self._session())
            except OSError as error:
                if not is_waiting:
                    log.warning("source.waiting", address=str(self._address), reason=str(error))
                is_waiting = True
                # If a redirect leads to an unreachable gateway, return to the gateway that sent it. If that fails, try
                # the next gateway.
                if self._address == self._homes[0]:
                    self._homes.rotate(-1)
                self._address = self._homes[0]
            except (HelloRefused, RemoteProtocolError) as error:
                # The gateway may be stopping, so one error is retried. Repeated errors need a person.
                complaints = 1 if self.committed != before else complaints + 1
                log.info("session.failed", address=str(self._address), reason=error.sentence)
                if complaints == self._options.complaints_max:
                    raise
            else:
                if restart is None:
                    return
                self._go_to(restart)
            if self.committed != before or self._host.monotonic_s() - began_s > self._options.backoff_limit_s:
                self._backoff.reset()
                is_waiting = False
            self._check_patience()
            await asyncio.sleep(self._backoff.next_s())

    def _check_patience(self) -> None:
        patience_s = self._options.patience_s
        if patience_s is not None and self._host.monotonic_s() - self._disconnected_since_s > patience_s:
            raise ConfigError(
                f"No gateway at {', '.join(map(str, self._homes))} opened a session within {patience_s:g} seconds.",
                next_step="Start the gateway, or check the address; committed records are not sent again.",
            )

    def _go_to(self, restart: Restart) -> None:
        try:
            self._address = parse_address(restart.address) if restart.address else self._address
        except ConfigError:
            log.warning("source.restart_address_invalid", address=restart.address)

    async def _trusted(self, session: Awaitable[Restart | None]) -> Restart | None:
        """Run a session. Raises HelloRefused if a certificate is not trusted, because a retry cannot help."""
        try:
            return await session
        except OSError as error:
            if trouble := complaint(error):
                raise HelloRefused(
                    f"The gateway at {self._address}: {trouble}.", next_step="Check the certificates of both sides."
                ) from error
            raise

    async def _session(self) -> Restart | None:
        options = self._options
        hello = Hello(VERSIONS[options.dialect], options.cookie, options.program, options.instance)
        reader, writer = await self._connect()
        try:
            self._feed = StreamFeed(
                self._source,
                self._known,
                options,
                Connection(ConnectionSide.INITIATOR, Role.SOURCE, dialect=DIALECTS[options.dialect]),
                reader,
                writer,
                pace=self._pace,
                readings=self._readings,
                encoder=self._encoder,
                host=self._host,
                on_progress=self._progressed,
            )
            self._sessions += 1
            return await self._feed.run(hello)
        finally:
            if self._feed and self._feed.is_welcome:
                self._disconnected_since_s = self._host.monotonic_s()
            self._feed = None
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(self._options.connect_timeout_s):
            reader, writer = await connect(self._address, self._options.tls)
        with contextlib.suppress(OSError):  # it may be closed again already; the reader then notices
            notice_silence(writer.get_extra_info("socket"))
        return reader, writer
