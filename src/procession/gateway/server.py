"""The gateway's server: opens and closes its ports, ticks, and runs the whole process with `serve`.

Invariant: every port is open before its address is written into the directory, and is closed before the log is closed.
The server starts one `gateway/producer_session` for each producer, and `gateway/control`.
"""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
import uvloop

from procession.address import SOCKET_FILE, Address, SocketFile, address_of, parse_address
from procession.errors import StorageError
from procession.gateway.control import ControlServer
from procession.gateway.gateway_directory import MemberFile
from procession.gateway.gateway_events import AckIntervalPassed, GatewayObserver
from procession.gateway.gateway_metrics import figures
from procession.gateway.gateway_options import GatewayConfig
from procession.gateway.global_registry import LEADER
from procession.gateway.leader import Leadership
from procession.gateway.leader_control import LeaderControl
from procession.gateway.leader_link import LeaderLink
from procession.gateway.listen_address import ADDRESS_FILE, CONTROL_FILE, addresses, next_start
from procession.gateway.members import Member, Members
from procession.gateway.performer import GatewayPerformer
from procession.gateway.producer_session import ProducerSession, ReadBuffer, Sessions
from procession.log_format import configure
from procession.metrics import Metric, MetricsServer
from procession.runtime.host import HOST, Host
from procession.storage.durable import write_durably
from procession.storage.flight_reader import this_machine
from procession.tls import TlsListener

if TYPE_CHECKING:
    from procession.gateway.flight_server import LogService

OTHER_DESCRIPTORS = 256
"""Maximum number of open files of a gateway besides its connections."""

log = structlog.get_logger("gateway")


class GatewayServer:
    """A gateway with its ports open: `listen` for producers, `control` for the driver and operators."""

    def __init__(
        self,
        config: GatewayConfig,
        host: Host = HOST,
        observer: GatewayObserver | None = None,
    ) -> None:
        self.gateway = GatewayPerformer(config, host, observer)
        self._host = host
        self.listen = self.control = self.metrics = ""
        self._config = config
        self.sessions: Sessions = {}
        self.flight = self._scheme = ""
        self._service: LogService | None = None
        self._is_departing = False
        self.link: LeaderLink | None = None
        self._linking: asyncio.Task[None] | None = None
        self._control: ControlServer | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._retiring: asyncio.Task[None] | None = None
        self._listener: asyncio.Server | TlsListener | None = None
        self._metrics: MetricsServer | None = None

    async def start(self) -> None:
        """Open both ports, and write their addresses into the directory."""
        loop = asyncio.get_running_loop()
        previous = addresses(self._config.directory, self._host.files)
        listening = self._host.listen(parse_address(self._config.listen), previous.get("listen"))
        controlling = self._control_socket(previous.get("control"))
        self.listen = str(address_of(listening))
        if self._config.flight:
            from procession.gateway.flight_server import (
                scheme,
                serve_log,
            )  # imported late, because few gateways need Arrow Flight

            service = self._service = serve_log(self._config, self.gateway.identity, previous.get("flight"))
            self.gateway.fetched_rows = lambda: service.fetched_rows
            self.flight = str(Address(parse_address(self._config.flight).host, self._service.port))
            self._scheme = scheme(self._config)
        await self._lead_or_follow(controlling)
        intake = ReadBuffer(self._config.read_bytes_max)
        if self._config.tls:
            timeout_s = self._config.handshake_timeout_s
            self._listener = TlsListener(
                listening, self._config.tls, partial(self._session, intake), handshake_timeout_s=timeout_s
            )
        else:
            self._listener = await loop.create_server(partial(self._session, intake), sock=listening)
        if self._config.metrics:
            reading = self._host.listen(parse_address(self._config.metrics), None)
            self.metrics = str(address_of(reading))
            self._metrics = MetricsServer(reading, partial(self._figures, loop))
        self.gateway.check_disk()
        self._ticker = loop.create_task(self._tick())
        document = {
            "listen": self.listen,
            "control": self.control,
            "flight": self.flight,
            "pid": int(self._host.files.owner),
        }
        document |= {"starts": next_start(self._config.directory, self._host)} | (
            {"metrics": self.metrics} if self.metrics else {}
        )
        write_durably(self._config.directory / ADDRESS_FILE, json.dumps(document).encode(), self._host.files)
        log.info(
            "gateway.started", listen=self.listen, control=self.control, next_sequence=self.gateway.state.next_sequence
        )

    def _control_socket(self, previous: Address | None) -> socket.socket:
        if self._config.control:
            controlling = self._host.listen(parse_address(self._config.control), previous)
            self.control = str(address_of(controlling))
            return controlling
        path = self._config.directory.absolute() / CONTROL_FILE
        self.control = str(SocketFile(path))
        return self._host.listen_at_file(path)

    async def _lead_or_follow(self, controlling: socket.socket) -> None:
        """Open the control port, and become the leader or connect to it."""
        config, gateway = self._config, self.gateway
        member = Member(
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
                Members(MemberFile(config.directory, self._host.files)), gateway.state, gateway.handle, config.declared
            )
            leadership.begin(member, is_confirmed=gateway.is_confirmed)
            gateway.on_confirmed = leadership.lead
            self._control = ControlServer(gateway, LeaderControl(leadership))
        else:
            start = next_start(config.directory, self._host)
            gateway.leader = self.link = LeaderLink(gateway, config.join, member, self._depart, start)
            gateway.on_confirmed = self.link.join_again
            self._linking = asyncio.get_running_loop().create_task(self.link.run())
            self._control = ControlServer(gateway, LeaderControl(None, str(config.join)))
        await self._control.start(controlling)

    def _advertised(self, address: str) -> str:
        if address.startswith(SOCKET_FILE):
            return address
        return str(Address(self._config.advertise, parse_address(address).port)) if self._config.advertise else address

    def _depart(self, others: list[str]) -> None:
        """Leave the pipeline: accept no producer, and redirect producers to another gateway."""
        if self._is_departing:
            return
        self._is_departing = True
        log.info("gateway.leaving", sessions=len(self.sessions), others=others)
        if self._listener is not None:
            self._listener.close()
        for number, session in enumerate(list(self.sessions)):
            session.restart(others[number % len(others)] if others else None)

    def _figures(self, loop: asyncio.AbstractEventLoop) -> list[Metric]:
        """Compute the metrics in the event loop. Called in the thread that serves metrics."""

        async def make() -> list[Metric]:
            return figures(self.gateway)

        found = asyncio.run_coroutine_threadsafe(make(), loop).result(self._config.metrics_timeout_s)
        more = self._config.more_metrics
        return found if more is None else [*found, *more()]

    def _session(self, intake: ReadBuffer) -> ProducerSession:
        return ProducerSession(self.gateway, self.sessions, intake)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._config.ack_interval_s)
            self.gateway.check_disk()
            self.gateway.handle(AckIntervalPassed())
            if self._retiring is None or self._retiring.done():
                self._retiring = asyncio.get_running_loop().create_task(self._retire())

    async def _retire(self) -> None:
        """Retire streams in a task of its own. Ticks do not wait for it, and a stop does not interrupt it while it
        writes."""
        with suppress(StorageError):  # this error ends the gateway
            await self.gateway.retire()

    async def stop(self) -> None:
        """Send RESTART to the producers, close the ports, and flush to disk."""
        if self._ticker is not None:
            self._ticker.cancel()
        if self._retiring is not None:
            await self._retiring
        if self._metrics is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._metrics.close)
        if self._listener is not None:
            self._listener.close()
        for session in list(self.sessions):
            session.restart()
        if self.sessions:
            await asyncio.wait([session.gone for session in self.sessions], timeout=2 * self._config.linger_s)
        if self._linking is not None:
            self._linking.cancel()
            await asyncio.wait([self._linking])
        if self._control is not None:
            await self._control.stop()
        if self._service is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._service.shutdown)
        await self.gateway.close()


async def _serve(config: GatewayConfig, host: Host) -> None:
    server = GatewayServer(config, host)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await run_until(server, stopped)


async def run_until(server: GatewayServer, stopped: asyncio.Event) -> None:
    """Run a gateway until `stopped` is set, or until it has left the pipeline or fails. Raises the error of a
    failure."""
    waiter = asyncio.get_running_loop().create_task(stopped.wait())
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
    """Raise the limit of open files to the number that the settings need, as far as the system allows."""
    wanted = config.limits.sessions_max + config.lingering_max + config.controls_max + OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning("gateway.files_limited", allowed=allowed, needed=wanted)


def serve(config: GatewayConfig, host: Host = HOST) -> None:
    """Run a gateway until SIGTERM or SIGINT. Raises ConfigError or StorageError if it cannot start or continue."""
    if not structlog.is_configured():
        configure("info")
    _allow_descriptors(config)
    if not config.limits.cookie:
        log.warning(
            "gateway.open", listen=config.listen, reason="without a secret, any program that reaches this port can send"
        )
    uvloop.run(_serve(config, host))
