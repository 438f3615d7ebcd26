"""The emitter that listens: serves the drivers of pipelines, one at a time for each checkpoint.

Invariant: a peer can end its own connection, never the emitter. A peer without the control secret can send
GREETING_BYTES_MAX bytes, for a bounded time, over a bounded number of connections. A driver with a later fence, or the
same driver again, replaces the session of its checkpoint; an earlier driver is refused. Nothing depends on that for
the guarantee: a driver reads its fence itself before each decision. So an emitter keeps nothing but its address on
disk. `commit/emitter_session` carries out a driver's requests; `commit/emitter_channel` connects.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from procession.address import Address, address_of, notice_silence, parse_address, peer_of, send_at_once
from procession.commit.emitter_frames import (
    FORMAT,
    FRAME_BYTES_MAX,
    GREETING_BYTES_MAX,
    DriverGreeting,
    FrameReader,
    OpenConnections,
    RunPlace,
    documents,
    read_greeting,
    written_reply,
)
from procession.commit.emitter_session import EmitterSession, links_at
from procession.commit.epoch_link import LinkMaker
from procession.errors import ConfigError, FencedError, ProcessionError, RemoteProtocolError, UsageError
from procession.format_number import is_known_format
from procession.runtime.host import HOST, Host
from procession.storage.durable import lock_directory, make_directory, write_durably
from procession.storage.flight_reader import FlightAccess
from procession.tls import ClientTls, ServerTls, TlsListener

ANNOUNCEMENT = "emitter.json"
ANNOUNCEMENT_FORMAT = 1
CONNECTIONS_MAX = 64
CHECKPOINTS_MAX = 1024
"""Maximum number of checkpoints whose fences are remembered."""
GREETING_TIMEOUT_S = 10.0
BACKLOG = 64

log = structlog.get_logger("commit")


@dataclass(frozen=True)
class EmitterConfig:
    """The options of an emitter."""

    directory: Path
    listen: str
    cookie: bytes = field(repr=False)
    """The control secret of the pipelines."""
    tls: ServerTls | None = None
    client_tls: ClientTls | None = None
    """The TLS to sinks and host services, with files of this machine."""
    greeting_timeout_s: float = GREETING_TIMEOUT_S
    connections_max: int = CONNECTIONS_MAX


@dataclass
class ServedDriver:
    """The last driver of a checkpoint. `session` is None after its end."""

    fence: int
    session: asyncio.Task[None] | None


class EmitterServer:
    """Serves sessions until it is cancelled. `links` makes the connections for runs of a place."""

    def __init__(self, config: EmitterConfig, links: Callable[[RunPlace], LinkMaker] = links_at) -> None:
        self._config = config
        self._links = links
        self._drivers: dict[str, ServedDriver] = {}
        self._connections: dict[asyncio.Task[None], None] = {}
        self._strangers: dict[asyncio.Task[None], None] = {}
        """Connections that have not greeted yet, the oldest first."""

    async def serve(self, listener: socket.socket) -> None:
        server: asyncio.Server | TlsListener
        if self._config.tls is not None:
            timeout_s = self._config.greeting_timeout_s
            server = TlsListener(listener, self._config.tls, self._protocol, handshake_timeout_s=timeout_s)
        else:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(self._protocol, sock=listener, backlog=BACKLOG)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._accept)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve_connection(reader, writer))
        self._connections[task] = self._strangers[task] = None
        task.add_done_callback(self._ended)
        task.add_done_callback(lambda _: writer.close())
        if len(self._connections) > self._config.connections_max:
            log.warning("emitter.connections_exceeded", connections_max=self._config.connections_max)
            next(iter(self._strangers)).cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.pop(task, None)
        self._strangers.pop(task, None)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connected = writer.get_extra_info("socket")
        notice_silence(connected)
        send_at_once(connected)
        peer = peer_of(connected)
        frames = FrameReader(GREETING_BYTES_MAX)
        requests = documents(reader, frames)
        try:
            async with asyncio.timeout(self._config.greeting_timeout_s):
                greeting = await _greeting(requests)
            driver = self._admitted(greeting, task)
            self._strangers.pop(task, None)
            frames.bytes_max = FRAME_BYTES_MAX
            writer.write(written_reply(None))
            log.info("emitter.driver_connected", peer=peer, checkpoint=greeting.checkpoint_id, fence=greeting.fence)
            try:
                await EmitterSession(writer, self._adapted, self._links).serve(requests)
            finally:
                if driver.session is task:
                    driver.session = None
                log.info("emitter.driver_left", peer=peer, checkpoint=greeting.checkpoint_id, fence=greeting.fence)
        except ProcessionError as error:
            log.warning("emitter.refused", peer=peer, reason=error.sentence)
            if task in self._strangers and not writer.is_closing():
                writer.write(written_reply(error))
        except (OSError, TimeoutError) as error:
            log.debug("emitter.connection_lost", peer=peer, error=str(error))
        except Exception as error:  # a bug in a session: the driver connects again
            log.exception("emitter.session_failed", peer=peer, reason=repr(error))

    def _admitted(self, greeting: DriverGreeting, task: asyncio.Task[None]) -> ServedDriver:
        """Let this session replace the earlier one of its checkpoint. Raises the error that refuses it."""
        if not hmac.compare_digest(greeting.cookie, self._config.cookie):
            raise ConfigError(
                "The emitter refuses the driver: it has another secret.",
                next_step="Give both the same secret with --control-cookie-file.",
            )
        if not is_known_format(greeting.format, FORMAT):
            raise ConfigError(
                f"The emitter refuses the driver: it speaks format {greeting.format}, the emitter 1 to {FORMAT}.",
                next_step="Start the driver and the emitter in the same version.",
            )
        known = self._drivers.get(greeting.checkpoint_id)
        if known is not None and greeting.fence < known.fence:
            raise FencedError(
                f"The emitter serves a later driver, with fence {known.fence} instead of {greeting.fence}.",
                next_step="If there is no later driver, restart the emitter.",
            )
        if known is not None and known.session is not None:
            log.info("emitter.driver_replaced", checkpoint=greeting.checkpoint_id, fence=known.fence)
            known.session.cancel()
        self._forget()
        self._drivers[greeting.checkpoint_id] = served = ServedDriver(greeting.fence, task)
        return served

    def _forget(self) -> None:
        """Keep the number of remembered checkpoints below the limit. Those with a session stay."""
        idle = [checkpoint for checkpoint, driver in self._drivers.items() if driver.session is None]
        for checkpoint in idle[: max(0, len(self._drivers) + 1 - CHECKPOINTS_MAX)]:
            del self._drivers[checkpoint]

    def _adapted(self, request: OpenConnections) -> OpenConnections:
        """Return the request with the TLS files and the secret of this machine. Raises ConfigError if it has none."""
        place = request.runs
        if place.hosts is not None:
            access = FlightAccess(self._config.cookie, self._tls(place.hosts.access.tls))
            place = replace(place, hosts=replace(place.hosts, access=access))
        options = tuple(replace(each, tls=self._tls(each.tls)) for each in request.options)
        return OpenConnections(place, options)

    def _tls(self, asked: ClientTls | None) -> ClientTls | None:
        if asked is None:
            return None
        own = self._config.client_tls
        if own is None:
            raise ConfigError(
                "The driver uses TLS, and its emitter has no authority to trust.",
                next_step="Start the emitter with --tls-ca.",
            )
        return replace(own, name=own.name or asked.name)


async def _greeting(requests: AsyncIterator[Mapping[str, Any]]) -> DriverGreeting:
    async for document in requests:
        return read_greeting(document)
    raise RemoteProtocolError("The peer closed the connection without a greeting.")


def announced_address(directory: Path) -> Address:
    """Return the address of the emitter in this directory. Raises OSError or ValueError if none has been started."""
    return parse_address(str(json.loads((directory / ANNOUNCEMENT).read_text())["listen"]))


def serve_emitter(config: EmitterConfig, say: Callable[[str], None], host: Host = HOST) -> None:
    """Run an emitter until SIGTERM or SIGINT. Raises ConfigError if it cannot start."""
    address = parse_address(config.listen)
    if not config.cookie:
        raise UsageError("An emitter needs the pipeline's control secret.", next_step="Give --control-cookie-file.")
    make_directory(config.directory)
    lock = lock_directory(config.directory)

    async def run() -> None:
        previous = None
        with suppress(OSError, ValueError, KeyError, TypeError, ProcessionError):
            previous = announced_address(config.directory)
        listener = host.listen(address, previous)
        listening = address_of(listener)
        serving = asyncio.ensure_future(EmitterServer(config).serve(listener))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, serving.cancel)
        document = {"format": ANNOUNCEMENT_FORMAT, "pid": os.getpid(), "listen": str(listening)}
        write_durably(config.directory / ANNOUNCEMENT, json.dumps(document).encode())
        say(f"emitting for drivers that connect to {listening}")
        with suppress(asyncio.CancelledError):
            await serving

    try:
        asyncio.run(run())
    finally:
        lock.close()
