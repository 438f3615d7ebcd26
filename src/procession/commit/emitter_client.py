"""The driver's side of emitter processes: starts them, sends requests, and passes on their answers.

Invariant: the end of an emitter process is only a lost connection for each of its sinks. Another process is started,
connects again, and lists the transactions that the sinks have voted for. The coordinator decides them as after every
lost connection. Used by `commit/performer`; the other side is `commit/emitter_process`.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import structlog

from procession.commit.emitter import ConnectionRuns
from procession.commit.emitter_frames import (
    Answer,
    GatewaysLeft,
    LinkFailed,
    Notice,
    OpenAgain,
    OpenConnections,
    Request,
    SendDecision,
    SendRuns,
    documents,
    read_answer,
    written_request,
)
from procession.commit.epoch_link import EpochLink, LinkMaker, Report, Say, direct_links
from procession.commit.round_events import EmitEpoch, SinkConnected, SinkLost
from procession.commit.sink_link import LINGER_S, SinkOptions
from procession.commit.stop_reasons import unsendable
from procession.errors import ProcessionError, RemoteProtocolError
from procession.storage.run_store import RunStore

log = structlog.get_logger("commit")

RESTART_S = 0.2
"""Time before an emitter process that has ended is started again."""
ENDS_MAX = 10
"""Number of ends in a row, without a connection to a sink in between, after which the pipeline stops."""


class EmitterLink:
    """A connection that an emitter process holds."""

    def __init__(self, client: EmitterClient, options: SinkOptions, report: Report) -> None:
        self.options = options
        self.report = report
        self.is_connected = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Completes with the error that permanently ends the connection."""
        self._client = client

    async def run(self) -> None:
        """Run until cancelled."""
        self._client.start()
        try:
            await self.ended
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

    def lost(self) -> None:
        if self.is_connected:
            self.is_connected = False
            self.report(SinkLost(self.options.name))


class EmitterClient:
    """One emitter process with its connections. It is started again whenever it ends."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._links: dict[str, EmitterLink] = {}
        self._say: Say = print
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._ends = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.left: dict[str, tuple[str, ...]] = {}
        """The gateways that have left, as last sent to each link."""

    def link(self, options: SinkOptions, report: Report, say: Say) -> EmitterLink:
        self._say = say
        found = self._links[options.name] = EmitterLink(self, options, report)
        return found

    def start(self) -> None:
        """Start the process when all links are made."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._failed)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def order(self, request: Request) -> None:
        """Send a request, unless there is no process. Requests of lost connections are repeated later."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(written_request(request))

    async def _run(self) -> None:
        while True:
            await self._session()
            self._ends += 1
            if self._ends >= ENDS_MAX:
                raise ProcessionError(
                    f"The process that sends to {', '.join(self._links)} has ended {self._ends} times in a row.",
                    next_step="Its log says why. Set emitters to 0 to send from the driver.",
                )
            self._say(f"the process that sends to {', '.join(self._links)} has ended; starting another")
            await asyncio.sleep(RESTART_S)

    async def _session(self) -> None:
        """Start a process, and pass on its answers until it ends."""
        process, here = _started()
        self.process = process
        reader, writer = await asyncio.open_connection(sock=here)
        log.info("emitter.started", pid=process.pid, sinks=list(self._links))
        try:
            self._writer = writer
            self.order(OpenConnections(str(self._runs), tuple(link.options for link in self._links.values())))
            for name, names in self.left.items():
                self.order(GatewaysLeft(name, names))
            with suppress(ConnectionError):
                async for document in documents(reader):
                    self._take(read_answer(document))
        except RemoteProtocolError as error:
            log.error("emitter.garbled", reason=error.sentence)
        finally:
            self._writer = None
            writer.close()
            await asyncio.shield(self._reap(process))
            for link in self._links.values():
                link.lost()

    async def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the end of a process that the driver has left. The process first sends its buffered data."""
        wait = asyncio.get_running_loop().run_in_executor(None, process.wait)
        try:
            await asyncio.wait_for(asyncio.shield(wait), LINGER_S)
        except TimeoutError:
            process.kill()
            await wait
        log.info("emitter.ended", pid=process.pid, status=process.returncode)

    def _take(self, answer: Answer) -> None:
        match answer:
            case Notice(sentence):
                self._say(sentence)
            case LinkFailed(sink, error, is_unsendable):
                self._end(self._links[sink], unsendable(sink, error.sentence) if is_unsendable else error)
            case event:
                link = self._links[event.sink]
                if isinstance(event, SinkLost):
                    link.is_connected = False
                elif isinstance(event, SinkConnected):
                    link.is_connected, self._ends = True, 0
                link.report(event)

    def _failed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            for link in self._links.values():
                self._end(link, error)

    @staticmethod
    def _end(link: EmitterLink, error: BaseException) -> None:
        if not link.ended.done():
            link.ended.set_exception(error)


def _started() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process. Returns it, and the socket that leads to it."""
    here, there = socket.socketpair()
    with there:
        argv = [sys.executable, "-m", "procession.commit.emitter_process", str(there.fileno())]
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=(there.fileno(),)), here


def emitter_links(count: int, runs: RunStore) -> LinkMaker:
    """Return a maker of links for a driver. `count` processes send to sinks with several connections; the driver itself
    sends to the others. Consecutive connections of a sink go to different processes."""
    direct = direct_links(runs)
    clients = itertools.cycle([EmitterClient(runs.directory) for _ in range(count)])

    def make(options: SinkOptions, report: Report, say: Say) -> EpochLink:
        if options.bucket is None:
            return direct(options, report, say)
        return next(clients).link(options, report, say)

    return make
