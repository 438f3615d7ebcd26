"""The server of the object service: passes requests in batches to the store, and sends its replies.

Invariant: a peer can end its own connection, never the server. Requests of all connections that arrive while a batch is
on its way to disk form the next batch, so that many appends share one sync. Credits bound the waiting requests of a
connection, and the number of connections is bounded. A failing disk ends the server without a reply to the failed
requests. `sos/sos_client` connects; `sos/sos_store` performs the requests.
"""

from __future__ import annotations

import asyncio
import hmac
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from procession.address import Address, address_of, notice_silence, parse_address, peer_of, send_at_once
from procession.errors import ConfigError, RemoteProtocolError
from procession.runtime.host import HOST, Host
from procession.sos.sos_connection import SosConnection, SosEvent, SosViolation
from procession.sos.sos_frames import REQUESTS, VERSION, SosError, SosHello, SosRequest, SosWelcome
from procession.sos.sos_store import Claims, SosStore
from procession.tls import ServerTls, TlsListener
from procession.wire.lifecycle import ConnectionSide

CREDITS = 256
"""Maximum number of a connection's waiting requests. At most one of them is being received, of at most a frame's size;
`BATCH_BYTES_MAX` bounds the others."""
CONNECTIONS_MAX = 64
HANDSHAKE_TIMEOUT_S = 10.0
READ_BYTES = 256 * 1024
BATCH_BYTES_MAX = 16 * 1024 * 1024
"""Maximum appended bytes of all connections that wait for the disk. Above it, no connection is read."""
WRITE_BYTES_MAX = 1024 * 1024
BACKLOG = 64
LINGER_S = 1.0

log = structlog.get_logger("sos")


@dataclass(frozen=True)
class SosConfig:
    directory: Path
    listen: str
    cookie: bytes = field(default=b"", repr=False)
    tls: ServerTls | None = None
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S
    connections_max: int = CONNECTIONS_MAX


class SosServer:
    """Serves one store. `serve` ends when it is cancelled, or raises the error of the disk."""

    def __init__(self, config: SosConfig, store: SosStore) -> None:
        self._config = config
        self._store = store
        self._sessions: dict[SosSession, None] = {}
        self._batch: list[tuple[SosSession, SosRequest]] = []
        self._batch_bytes = 0
        self._has_requests = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def serve(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        server: asyncio.Server | TlsListener
        if self._config.tls is not None:
            timeout_s = self._config.handshake_timeout_s
            server = TlsListener(listener, self._config.tls, self._protocol, handshake_timeout_s=timeout_s)
        else:
            server = await loop.create_server(self._protocol, sock=listener, backlog=BACKLOG)
        try:
            await self._perform_batches()
        finally:
            server.close()
            for session in list(self._sessions):
                session.close()
            self._store.close()

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(READ_BYTES, loop)
        return asyncio.StreamReaderProtocol(reader, self._accept, loop)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = SosSession(self, self._config, reader, writer)
        if len(self._sessions) >= self._config.connections_max:
            session.refuse("too many connections")
            session.close()
            return
        self._sessions[session] = None
        try:
            await session.run()
        finally:
            self._sessions.pop(session, None)
            session.close()

    async def enqueue(self, session: SosSession, request: SosRequest) -> None:
        """Add a request to the next batch. Waits while too many bytes wait for the disk."""
        await self._has_room.wait()
        self._batch.append((session, request))
        self._batch_bytes += len(getattr(request, "data", b""))
        if self._batch_bytes >= BATCH_BYTES_MAX:
            self._has_room.clear()
        self._has_requests.set()

    async def _perform_batches(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._has_requests.wait()
            self._has_requests.clear()
            batch, self._batch, self._batch_bytes = self._batch, [], 0
            self._has_room.set()
            requests = [(session.claims, request) for session, request in batch]
            replies = await loop.run_in_executor(None, self._store.perform, requests)
            for (session, _), reply in zip(batch, replies, strict=True):
                session.reply(reply)


class SosSession:
    """A connection of a client."""

    def __init__(
        self, server: SosServer, config: SosConfig, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._server = server
        self._config = config
        self._reader = reader
        self._writer = writer
        self._connection = SosConnection(ConnectionSide.ACCEPTOR)
        self.claims: Claims = {}
        self._deadline = asyncio.timeout(config.handshake_timeout_s)
        writer.transport.set_write_buffer_limits(WRITE_BYTES_MAX)
        notice_silence(writer.get_extra_info("socket"))
        send_at_once(writer.get_extra_info("socket"))

    async def run(self) -> None:
        try:
            async with self._deadline:
                while data := await self._reader.read(READ_BYTES):
                    for event in self._connection.receive(data):
                        await self._take(event)
                    # A client that does not read its replies is not read, either.
                    await self._writer.drain()
        except RemoteProtocolError as error:
            self.refuse(error.sentence)
            await self._linger()
        except TimeoutError:
            self.refuse("no HELLO in time")
        except OSError as error:
            log.debug("sos.connection_lost", error=str(error))

    async def _linger(self) -> None:
        """Discard the bytes that still arrive. Closing with unread bytes resets the connection, and the peer may lose
        the reason."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while await self._reader.read(READ_BYTES):
                    pass

    async def _take(self, event: SosEvent) -> None:
        match event:
            case SosViolation(reason):
                raise RemoteProtocolError(reason)
            case SosHello(version, cookie):
                if not hmac.compare_digest(cookie, self._config.cookie):
                    raise RemoteProtocolError("the cookie does not match")
                if version != VERSION:
                    raise RemoteProtocolError(f"version {version} is not known here; this service speaks {VERSION}")
                self._deadline.reschedule(None)
                self._write(self._connection.send(SosWelcome(VERSION, CREDITS)))
            case SosError(reason):
                log.warning("sos.client_error", reason=reason)
                self.close()
            case _ if isinstance(event, REQUESTS):
                await self._server.enqueue(self, event)

    def reply(self, reply: Any) -> None:
        if not self._connection.is_over and not self._writer.is_closing():
            self._write(self._connection.send(reply))

    def _write(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    def refuse(self, reason: str) -> None:
        log.warning("sos.connection_refused", peer=peer_of(self._writer.get_extra_info("socket")), reason=reason)
        self._write(self._connection.error_frame(reason))
        if self._writer.can_write_eof() and not self._writer.is_closing():
            self._writer.write_eof()

    def close(self) -> None:
        self._writer.close()


def open_store(config: SosConfig, host: Host = HOST) -> SosStore:
    return SosStore(config.directory, host.files, host.random_bits)


def check_sos_config(config: SosConfig) -> Address:
    """Raise ConfigError if these options would let any program use the service."""
    address = parse_address(config.listen)
    if not config.cookie:
        raise ConfigError(
            "An object service needs a secret.", next_step="Give it one with --cookie-file, or let it make one."
        )
    return address


def run_sos(config: SosConfig, say: Callable[[str], None], host: Host = HOST) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError or StorageError if it cannot start or its disk fails."""
    address = check_sos_config(config)
    store = open_store(config, host)

    async def run() -> None:
        listener = host.listen(address, None)
        loop = asyncio.get_running_loop()
        serving = asyncio.ensure_future(SosServer(config, store).serve(listener))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, serving.cancel)
        say(f"keeping objects in {config.directory}, listening on {address_of(listener)}")
        with suppress(asyncio.CancelledError):
            await serving

    asyncio.run(run())
