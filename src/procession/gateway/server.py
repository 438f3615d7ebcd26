"""The gateway's TCP server for producers, and `serve`, which runs the whole process.

The one rule: a session feeds bytes to its connection, passes the events on, and writes whole frames; nothing else. No
input from the network ends the process, and no peer makes it buffer more than `write_bytes_max`. Before it the socket;
after it `gateway/performer`.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import structlog
import uvloop

from procession.address import (
    SOCKET_FILE,
    Address,
    SocketFile,
    address_of,
    listening_file,
    listening_socket,
    notice_silence,
    parse_address,
)
from procession.background_loading import Readiness
from procession.errors import StorageError
from procession.gateway.control import ControlServer
from procession.gateway.gateway_events import Received, SessionClosed, SessionOpened, Ticked
from procession.gateway.gateway_metrics import figures
from procession.gateway.gateway_options import GatewayConfig
from procession.gateway.global_registry import LEADER
from procession.gateway.leader import Leadership
from procession.gateway.leader_control import Doorway
from procession.gateway.leader_link import LeaderLink
from procession.gateway.listen_address import ADDRESS_FILE, CONTROL_FILE, addresses, starts
from procession.gateway.members import Member, Members
from procession.gateway.performer import Gateway
from procession.log_format import configure
from procession.metrics import Figure, MetricsDoor
from procession.storage.durable import write_durably
from procession.storage.flight_reader import this_machine
from procession.tls import Door
from procession.wire import columns
from procession.wire.connection import Connection
from procession.wire.draft_messages import AnyFrame, DraftMessages
from procession.wire.lifecycle import Role, Side, State
from procession.wire.messages import Messages, Restart

if TYPE_CHECKING:
    from procession.gateway.flight_server import LogService

WRITE_BYTES_HIGH = 64 * 1024
"""Bytes that the peer has not read at which the gateway stops reading from it."""

OTHER_DESCRIPTORS = 256
"""Upper bound of the files that a gateway has open besides its connections."""

COLUMNS_FROM_RECORDS = 100_000
"""Records after which decoding by columns is worth its start-up cost."""

log = structlog.get_logger("gateway")


class Intake:
    """The read buffer, shared by all sessions: received bytes are processed before the next read."""

    def __init__(self, read_bytes_max: int) -> None:
        self.buffer = memoryview(bytearray(read_bytes_max))
        self.columns = Readiness(columns.make_ready, after=COLUMNS_FROM_RECORDS)


class Session(asyncio.BufferedProtocol):
    """The connection of a producer."""

    def __init__(self, gateway: Gateway, sessions: set[Session], intake: Intake) -> None:
        self._gateway = gateway
        self._config = gateway.config
        self._sessions = sessions
        self._intake = intake
        self._connection = Connection(Side.ACCEPTOR, Role.SOURCE, self._config.frame_bytes_max)
        self._timers: list[asyncio.TimerHandle] = []
        self._transport: asyncio.Transport
        self._number = 0
        self._is_lingering = False
        self._is_held = False
        self._is_unread = False
        """The peer does not read what it is sent."""
        self.gone = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH)
        notice_silence(self._transport.get_extra_info("socket"), self._config.silence_s)
        self._sessions.add(self)
        self._after(self._config.handshake_timeout_s, self._give_up_handshake)
        self._number = self._gateway.join(self)
        log.debug("session.opened", session=self._number, peer=self._transport.get_extra_info("peername"))
        self._gateway.handle(SessionOpened(self._number))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._intake.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._gateway.tally.received_bytes += nbytes
        for event in self._connection.receive(self._intake.buffer[:nbytes]):
            told = len(event) if isinstance(event, Messages | DraftMessages) else event
            log.debug("session.received", session=self._number, frame=told)
            self._gateway.handle(Received(self._number, event))
            if isinstance(event, Messages):
                self._intake.columns.worked(len(event))

    def connection_lost(self, error: Exception | None) -> None:
        for timer in self._timers:
            timer.cancel()
        self._sessions.discard(self)
        self._gateway.leave(self._number)
        self._gateway.handle(SessionClosed(self._number))
        log.debug("session.closed", session=self._number, reason=str(error or ""))
        self.gone.set_result(None)

    def pause_writing(self) -> None:
        self._is_unread = True
        self._read_or_not()

    def resume_writing(self) -> None:
        self._is_unread = False
        self._read_or_not()

    def hold(self, is_held: bool) -> None:
        """Pauses or resumes reading from the peer."""
        if is_held is not self._is_held:
            self._is_held = is_held
            self._read_or_not()

    def _read_or_not(self) -> None:
        if self._transport.is_closing():
            return
        if self._is_unread or (self._is_held and not self._is_lingering):
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def send(self, frame: AnyFrame) -> None:
        if self._connection.is_over or self._transport.is_closing():
            return
        log.debug("session.sent", session=self._number, frame=frame)
        self._transport.write(self._connection.send(frame))
        if self._transport.get_write_buffer_size() > self._config.write_bytes_max:
            reason = "does not read what it is sent"
            log.warning("session.aborted", session=self._number, reason=reason)
            self._gateway.tally.failed(reason)
            self._transport.abort()

    def close(self, reason: str | None) -> None:
        """Sends the reason, then closes."""
        if reason is not None and not self._is_lingering:
            log.warning("session.refused", session=self._number, reason=reason)
            self._gateway.tally.failed(reason)
            word = self._connection.error_frame(reason)
            if not self._transport.is_closing():
                self._transport.write(word)
        self._linger()

    def restart(self, address: str | None = None) -> None:
        """Sends RESTART, with the address of another gateway if there is one, then closes."""
        if self._connection.state is not State.STREAMING:
            self.close("the gateway is stopping")
            return
        self.send(Restart(address))
        self._linger()

    def _linger(self) -> None:
        # A socket that is closed with unread bytes resets, and the peer loses our last word. So we only end our half,
        # go on reading (the connection discards it), and cut when the peer closes or has had its time.
        if self._is_lingering or self._transport.is_closing():
            return
        self._is_lingering = True
        self._read_or_not()
        self._hurry_others()
        if self._transport.can_write_eof():  # not with TLS
            self._transport.write_eof()
        self._after(self._config.linger_s, self._transport.abort)

    def _hurry_others(self) -> None:
        """Limits the refused connections that are still open: aborts the oldest."""
        lingering = [one for one in self._sessions if one._is_lingering and not one._transport.is_closing()]
        if len(lingering) > self._config.lingering_max:
            min(lingering, key=lambda one: one._number)._transport.abort()

    def _give_up_handshake(self) -> None:
        if self._connection.state in (State.CONNECTED, State.HANDSHAKE):
            self._gateway.handle(SessionClosed(self._number))
            self.close("no HELLO in time")

    def _after(self, delay_s: float, call: Callable[[], object]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(delay_s, call))


class GatewayServer:
    """A gateway with its ports open: `listen` for producers, `control` for the driver and operators."""

    def __init__(self, config: GatewayConfig) -> None:
        self.gateway = Gateway(config)
        self.listen = self.control = self.metrics = ""
        self._config = config
        self._sessions: set[Session] = set()
        self.flight = self._scheme = ""
        self._service: LogService | None = None
        self._is_departing = False
        self.link: LeaderLink | None = None
        self._linking: asyncio.Task[None] | None = None
        self._control: ControlServer | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._retiring: asyncio.Task[None] | None = None
        self._door: asyncio.Server | Door | None = None
        self._metrics: MetricsDoor | None = None

    async def start(self) -> None:
        """Opens both ports, and writes their addresses into the directory."""
        loop = asyncio.get_running_loop()
        previous = addresses(self._config.directory)
        listening = listening_socket(parse_address(self._config.listen), previous.get("listen"))
        controlling = self._control_socket(previous.get("control"))
        self.listen = str(address_of(listening))
        if self._config.flight:
            from procession.gateway.flight_server import scheme, serve_log  # few gateways need what it brings along

            service = self._service = serve_log(self._config, self.gateway.identity, previous.get("flight"))
            self.gateway.fetched_rows = lambda: service.fetched_rows
            self.flight = str(Address(parse_address(self._config.flight).host, self._service.port))
            self._scheme = scheme(self._config)
        await self._lead_or_follow(controlling)
        intake = Intake(self._config.read_bytes_max)
        if self._config.tls:
            timeout_s = self._config.handshake_timeout_s
            self._door = Door(
                listening, self._config.tls, partial(self._session, intake), handshake_timeout_s=timeout_s
            )
        else:
            self._door = await loop.create_server(partial(self._session, intake), sock=listening)
        if self._config.metrics:
            reading = listening_socket(parse_address(self._config.metrics))
            self.metrics = str(address_of(reading))
            self._metrics = MetricsDoor(reading, partial(self._figures, loop))
        self.gateway.look_at_disk()
        self._ticker = loop.create_task(self._tick())
        document = {"listen": self.listen, "control": self.control, "flight": self.flight, "pid": os.getpid()}
        document["starts"] = starts(self._config.directory) + 1
        document |= {"metrics": self.metrics} if self.metrics else {}
        write_durably(self._config.directory / ADDRESS_FILE, json.dumps(document).encode())
        log.info(
            "gateway.started", listen=self.listen, control=self.control, next_sequence=self.gateway.state.next_sequence
        )

    def _control_socket(self, previous: Address | None) -> socket.socket:
        if self._config.control:
            controlling = listening_socket(parse_address(self._config.control), previous)
            self.control = str(address_of(controlling))
            return controlling
        path = self._config.directory.absolute() / CONTROL_FILE
        self.control = str(SocketFile(path))
        return listening_file(path)

    async def _lead_or_follow(self, controlling: socket.socket) -> None:
        """Opens the control port, and becomes the leader or connects to it."""
        config, gateway = self._config, self.gateway
        own = Member(
            config.name if config.join else LEADER,
            gateway.identity,
            self._advertised(self.listen),
            self._advertised(self.control),
            str(config.offered_directory.resolve()),
            f"{self._scheme}://{self._advertised(self.flight)}" if self.flight else "",
            machine=config.machine or this_machine(),
        )
        if config.join is None:
            gateway.leader = leadership = Leadership(
                Members(config.directory), gateway.state, gateway.handle, config.declared
            )
            leadership.begin(own, is_confirmed=gateway.is_confirmed)
            gateway.on_confirmed = leadership.lead
            self._control = ControlServer(gateway, Doorway(leadership))
        else:
            gateway.leader = self.link = LeaderLink(gateway, config.join, own, self._depart, starts(config.directory))
            gateway.on_confirmed = self.link.greet_again
            self._linking = asyncio.get_running_loop().create_task(self.link.run())
            self._control = ControlServer(gateway, Doorway(None, str(config.join)))
        await self._control.start(controlling)

    def _advertised(self, address: str) -> str:
        if address.startswith(SOCKET_FILE):
            return address
        return str(Address(self._config.advertise, parse_address(address).port)) if self._config.advertise else address

    def _depart(self, others: list[str]) -> None:
        """Leaves the pipeline: accepts nobody, and redirects the producers to another gateway."""
        if self._is_departing:
            return
        self._is_departing = True
        log.info("gateway.leaving", sessions=len(self._sessions), others=others)
        if self._door is not None:
            self._door.close()
        for number, session in enumerate(list(self._sessions)):
            session.restart(others[number % len(others)] if others else None)

    def _figures(self, loop: asyncio.AbstractEventLoop) -> list[Figure]:
        """Called in the thread that serves metrics: computes them in the event loop."""

        async def make() -> list[Figure]:
            return figures(self.gateway)

        return asyncio.run_coroutine_threadsafe(make(), loop).result(self._config.metrics_timeout_s)

    def _session(self, intake: Intake) -> Session:
        return Session(self.gateway, self._sessions, intake)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._config.ack_interval_s)
            self.gateway.look_at_disk()
            self.gateway.handle(Ticked())
            if self._retiring is None or self._retiring.done():
                self._retiring = asyncio.get_running_loop().create_task(self._retire())

    async def _retire(self) -> None:
        """A task of its own: ticks do not wait for it, and a stop does not cut it off while it writes."""
        with suppress(StorageError):  # the gateway ends by it
            await self.gateway.retire()

    async def stop(self) -> None:
        """Sends RESTART to the producers, closes the ports, and flushes to disk."""
        if self._ticker is not None:
            self._ticker.cancel()
        if self._retiring is not None:
            await self._retiring
        if self._metrics is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._metrics.close)
        if self._door is not None:
            self._door.close()
        for session in list(self._sessions):
            session.restart()
        if self._sessions:
            await asyncio.wait([session.gone for session in self._sessions], timeout=2 * self._config.linger_s)
        if self._linking is not None:
            self._linking.cancel()
            await asyncio.wait([self._linking])
        if self._control is not None:
            await self._control.stop()
        if self._service is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._service.shutdown)
        await self.gateway.close()


async def _serve(config: GatewayConfig) -> None:
    server = GatewayServer(config)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    waiter = loop.create_task(stopped.wait())
    try:
        await server.start()
        endings: list[asyncio.Future[Any]] = [waiter, server.gateway.failure]
        endings += [server.link.has_left] if server.link is not None else []
        await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()
        await server.stop()
    if server.gateway.failure.done():
        server.gateway.failure.result()


def _allow_descriptors(config: GatewayConfig) -> None:
    """Raises the limit of open files to what the settings need, as far as the system allows."""
    wanted = config.limits.sessions_max + config.lingering_max + config.controls_max + OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning("gateway.files_limited", allowed=allowed, needed=wanted)


def serve(config: GatewayConfig) -> None:
    """Runs a gateway until SIGTERM or SIGINT. Raises ConfigError or StorageError if it cannot start or continue."""
    if not structlog.is_configured():
        configure("info")
    _allow_descriptors(config)
    if not config.limits.cookie:
        log.warning("gateway.open", listen=config.listen, reason="anybody who reaches it can send, without a secret")
    uvloop.run(_serve(config))
