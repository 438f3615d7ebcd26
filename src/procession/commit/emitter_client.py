"""The driver's side of emitters: opens sessions with them, sends requests, and passes on their answers.

Invariant: the end of a session is only a lost connection for each of its sinks. In the next session the emitter
connects again, and lists the transactions that the sinks have voted for. The coordinator decides them as after every
lost connection. Used by `commit/performer`; `commit/emitter_channel` opens the connections to emitters, whose side is
`commit/emitter_session`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from contextlib import suppress

import structlog

from procession.commit.emitter import ConnectionRuns
from procession.commit.emitter_channel import EmitterChannel
from procession.commit.emitter_frames import (
    Answer,
    GatewaysLeft,
    LinkFailed,
    Notice,
    OpenAgain,
    OpenConnections,
    Request,
    RunPlace,
    SendDecision,
    SendRuns,
    documents,
    read_answer,
    written_request,
)
from procession.commit.epoch_link import EpochLink, LinkMaker, Report, Say, direct_links
from procession.commit.round_events import EmitEpoch, SinkConnected, SinkLost
from procession.commit.sink_link import SinkOptions
from procession.commit.stop_reasons import unsendable
from procession.errors import ProcessionError, RemoteProtocolError
from procession.storage.run_store import Runs
from procession.tls import complaint

log = structlog.get_logger("commit")

RETRY_S = 0.2
"""Time before the next session with an emitter."""
RETRY_S_MAX = 2.0
ENDS_MAX = 10
"""Number of sessions in a row that end without a connection to a sink, after which the pipeline stops."""


class EmitterLink:
    """A connection that an emitter holds."""

    def __init__(self, client: EmitterClient, options: SinkOptions, report: Report) -> None:
        self.options = options
        self.report = report
        self.is_connected = False
        self._client = client
        self._error: BaseException | None = None
        self._has_ended = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled. Raises the error that permanently ends the connection."""
        self._client.start()
        try:
            await self._has_ended.wait()
            assert self._error is not None
            raise self._error
        finally:
            await self._client.close()

    async def emit(self, action: EmitEpoch, given: ConnectionRuns) -> None:
        if self.is_connected:
            self._client.order(SendRuns(action, given))

    def phase2(self, txn: str, commit: bool) -> None:
        if self.is_connected:
            self._client.order(SendDecision(self.options.name, txn, commit))

    def reconnect(self, delay_s: float) -> None:
        self._client.order(OpenAgain(self.options.name, delay_s))

    def workers_left(self, names: tuple[str, ...]) -> None:
        self._client.left[self.options.name] = names
        self._client.order(GatewaysLeft(self.options.name, names))

    def end(self, error: BaseException) -> None:
        self._error = self._error or error
        self._has_ended.set()

    def lost(self) -> None:
        if self.is_connected:
            self.is_connected = False
            self.report(SinkLost(self.options.name))


class EmitterClient:
    """One emitter with its connections. Whenever a session with it ends, the next one is opened."""

    def __init__(self, channel: EmitterChannel, runs: RunPlace) -> None:
        self.channel = channel
        self._runs = runs
        self._links: dict[str, EmitterLink] = {}
        self._say: Say = print
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._ends = 0
        self._is_reported = False
        self._delay_s = RETRY_S
        self.left: dict[str, tuple[str, ...]] = {}
        """The gateways that have left, as last sent to each link."""

    def link(self, options: SinkOptions, report: Report, say: Say) -> EmitterLink:
        self._say = say
        found = self._links[options.name] = EmitterLink(self, options, report)
        return found

    def start(self) -> None:
        """Open the first session when all links are made."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._failed)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def order(self, request: Request) -> None:
        """Send a request, unless there is no session. Requests of lost connections are repeated later."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(written_request(request))

    async def _run(self) -> None:
        name = self.channel.name
        while True:
            try:
                reader, writer = await self.channel.open()
            except OSError as error:
                self._unreachable(error)
            else:
                self._is_reported, self._delay_s = False, RETRY_S
                await self._session(reader, writer)
                self._ends += 1
                if self._ends >= ENDS_MAX:
                    raise ProcessionError(
                        f"{name[:1].upper()}{name[1:]}, which sends to {', '.join(self._links)}, has ended"
                        f" {self._ends} times in a row.",
                        next_step=self.channel.next_step,
                    )
                self._say(
                    f"the session with {name}, which sends to {', '.join(self._links)}, has ended; opening another"
                )
            await asyncio.sleep(self._delay_s)

    def _unreachable(self, error: OSError) -> None:
        # asyncio puts the whole address into its own text.
        reason = complaint(error) or (os.strerror(error.errno) if error.errno else str(error)) or "no answer"
        if not self._is_reported:
            self._say(f"{self.channel.name} cannot be reached: {reason}; waiting for it")
        log.warning("emitter.unreachable", emitter=self.channel.name, reason=reason)
        self._is_reported, self._delay_s = True, min(RETRY_S_MAX, 2 * self._delay_s)

    async def _session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send the connections to open, and pass on the emitter's answers until the session ends."""
        try:
            self._writer = writer
            self.order(OpenConnections(self._runs, tuple(link.options for link in self._links.values())))
            for name, names in self.left.items():
                self.order(GatewaysLeft(name, names))
            with suppress(OSError):
                async for document in documents(reader):
                    self._take(read_answer(document))
        except RemoteProtocolError as error:
            log.error("emitter.garbled", emitter=self.channel.name, reason=error.sentence)
        finally:
            self._writer = None
            writer.close()
            await asyncio.shield(self.channel.close())
            for link in self._links.values():
                link.lost()

    def _take(self, answer: Answer) -> None:
        match answer:
            case Notice(sentence):
                self._say(sentence)
            case LinkFailed(sink, error, is_unsendable):
                self._link(sink).end(unsendable(sink, error.sentence) if is_unsendable else error)
            case event:
                link = self._link(event.sink)
                if isinstance(event, SinkLost):
                    link.is_connected = False
                elif isinstance(event, SinkConnected):
                    link.is_connected, self._ends = True, 0
                link.report(event)

    def _link(self, sink: str) -> EmitterLink:
        if sink not in self._links:
            raise RemoteProtocolError(f"An answer of an emitter is for the connection {str(sink)[:80]!r}, not opened.")
        return self._links[sink]

    def _failed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            for link in self._links.values():
                link.end(error)


def emitter_links(clients: Sequence[EmitterClient], runs: Runs) -> LinkMaker:
    """Return a maker of links for a driver. The emitters send to sinks with several connections; the driver itself
    sends to the others. Consecutive connections of a sink go to different emitters."""
    direct = direct_links(runs)
    turns = itertools.cycle(clients)

    def make(options: SinkOptions, report: Report, say: Say) -> EpochLink:
        if options.bucket is None:
            return direct(options, report, say)
        return next(turns).link(options, report, say)

    return make
