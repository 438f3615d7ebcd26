"""The connection of a producer to a gateway.

Invariant: a session only feeds bytes to its connection, passes the events on, and writes whole frames. No input from
the network ends the process, and no peer makes it buffer more than `write_bytes_max`. `gateway/server` accepts the
sockets; `gateway/performer` handles the events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import structlog

from procession.address import notice_silence, peer_of
from procession.background_loading import Readiness
from procession.gateway.gateway_events import FrameReceived, SessionClosed, SessionOpened
from procession.gateway.performer import GatewayPerformer
from procession.wire import columns
from procession.wire.connection import Connection
from procession.wire.draft_messages import AnyFrame, DraftMessages
from procession.wire.lifecycle import ConnectionSide, ConnectionState, Role
from procession.wire.messages import Messages, Restart

WRITE_BYTES_HIGH = 64 * 1024
"""Maximum bytes that the peer may leave unread before the gateway stops reading from it."""

COLUMNS_FROM_RECORDS = 100_000
"""Number of records after which decoding by columns makes up for its start-up cost."""

log = structlog.get_logger("gateway")


class ReadBuffer:
    """The read buffer, shared by all sessions. Received bytes are processed before the next read."""

    def __init__(self, read_bytes_max: int) -> None:
        self.buffer = memoryview(bytearray(read_bytes_max))
        self.columns = Readiness(columns.make_ready, after=COLUMNS_FROM_RECORDS)


class ProducerSession(asyncio.BufferedProtocol):
    """The connection of a producer."""

    def __init__(self, gateway: GatewayPerformer, sessions: Sessions, intake: ReadBuffer) -> None:
        self._gateway = gateway
        self._config = gateway.config
        self._sessions = sessions
        self._intake = intake
        self.connection = Connection(ConnectionSide.ACCEPTOR, Role.SOURCE, self._config.frame_bytes_max)
        self._timers: list[asyncio.TimerHandle] = []
        self._transport: asyncio.Transport
        self.number = 0
        self._is_lingering = False
        self._is_held = False
        self._is_unread = False
        """Whether the peer has stopped reading the frames that it is sent."""
        self.gone = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH)
        notice_silence(self._transport.get_extra_info("socket"), self._config.silence_s)
        self._sessions[self] = None
        self._after(self._config.handshake_timeout_s, self._give_up_handshake)
        self.number = self._gateway.join(self)
        self._peer = peer_of(self._transport.get_extra_info("socket"))
        log.debug("session.opened", session=self.number, peer=self._peer)
        self._gateway.handle(SessionOpened(self.number))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._intake.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._gateway.tally.received_bytes += nbytes
        for event in self.connection.receive(self._intake.buffer[:nbytes]):
            logged = len(event) if isinstance(event, Messages | DraftMessages) else event
            log.debug("session.received", session=self.number, frame=logged)
            self._gateway.handle(FrameReceived(self.number, event))
            if isinstance(event, Messages):
                self._intake.columns.worked(len(event))

    def connection_lost(self, error: Exception | None) -> None:
        for timer in self._timers:
            timer.cancel()
        self._sessions.pop(self, None)
        self._gateway.leave(self.number)
        self._gateway.handle(SessionClosed(self.number))
        log.debug("session.closed", session=self.number, reason=str(error or ""))
        self.gone.set_result(None)

    def pause_writing(self) -> None:
        self._is_unread = True
        self._read_or_not()

    def resume_writing(self) -> None:
        self._is_unread = False
        self._read_or_not()

    def hold(self, is_held: bool) -> None:
        """Pause or resume reading from the peer."""
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
        if self.connection.is_over or self._transport.is_closing():
            return
        log.debug("session.sent", session=self.number, frame=frame)
        self._transport.write(self.connection.send(frame))
        if self._transport.get_write_buffer_size() > self._config.write_bytes_max:
            reason = "does not read what it is sent"
            log.warning("session.aborted", session=self.number, peer=self._peer, reason=reason)
            self._gateway.tally.failed(reason)
            self._transport.abort()

    def close(self, reason: str | None) -> None:
        """Send the reason, then close."""
        if reason is not None and not self._is_lingering:
            log.warning("session.refused", session=self.number, peer=self._peer, reason=reason)
            self._gateway.tally.failed(reason)
            word = self.connection.error_frame(reason)
            if not self._transport.is_closing():
                self._transport.write(word)
        self._linger()

    def restart(self, address: str | None = None) -> None:
        """Send RESTART, with the address of another gateway if there is one, then close."""
        if self.connection.state is not ConnectionState.STREAMING:
            self.close("the gateway is stopping")
            return
        self.send(Restart(address))
        self._linger()

    def _linger(self) -> None:
        # Closing a socket with unread bytes resets the connection, and the peer may lose the last frame. So the gateway
        # closes only its own side and continues to read (the connection discards the bytes). It closes fully when the
        # peer closes or the time is up.
        if self._is_lingering or self._transport.is_closing():
            return
        self._is_lingering = True
        self._read_or_not()
        self._abort_oldest_refused()
        if self._transport.can_write_eof():  # not possible with TLS
            self._transport.write_eof()
        self._after(self._config.linger_s, self._transport.abort)

    def _abort_oldest_refused(self) -> None:
        """Abort the oldest refused connection if too many are still open."""
        lingering = [
            session for session in self._sessions if session._is_lingering and not session._transport.is_closing()
        ]
        if len(lingering) > self._config.lingering_max:
            min(lingering, key=lambda session: session.number)._transport.abort()

    def _give_up_handshake(self) -> None:
        if self.connection.state in (ConnectionState.CONNECTED, ConnectionState.HANDSHAKE):
            self._gateway.handle(SessionClosed(self.number))
            self.close("no HELLO in time")

    def _after(self, delay_s: float, call: Callable[[], object]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(delay_s, call))


Sessions = dict[ProducerSession, None]
"""The sessions of a gateway, the oldest first."""
