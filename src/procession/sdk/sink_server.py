"""The sink's server: accepts the driver's sessions and passes them to the participant of each instance.

Invariant: an instance has only one session, the latest. A peer can end its own session, never the server. A failing
Output or log ends the server, so that recovery runs. Disk access runs in a thread, one at a time per instance.
`commit/sink_link` connects over TCP; `sdk/participant` handles the messages.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from typing import ParamSpec, Protocol, TypeVar

import structlog

from procession.address import notice_silence, peer_of
from procession.background_loading import Readiness
from procession.errors import LocalProtocolError, RemoteProtocolError
from procession.log_format import keep_quiet, print_uncaught_as_sentences
from procession.sdk.output import Wait
from procession.sdk.participant import SinkParticipant
from procession.sdk.payloads import Payloads
from procession.sdk.session_stream import SessionStream
from procession.tls import ServerTls, TlsListener
from procession.wire import columns, two_phase_commit
from procession.wire.connection import Connection, Event, Violation
from procession.wire.frame_codec import FRAME_BYTES_MAX
from procession.wire.lifecycle import ConnectionSide, Role
from procession.wire.messages import (
    DATA_STREAM,
    TWOPC_STREAM,
    Error,
    Frame,
    Hello,
    ListUncommitted,
    Messages,
    Notify,
    NotifyAck,
    Ok,
    Phase1,
    Phase2,
    Reply,
    ReplyUncommitted,
    TwoPhase,
    WorkersLeft,
)
from procession.wire.v3 import VERSIONS

SESSIONS_MAX = 256
LINGERING_MAX = 64
"""Maximum number of refused connections that are kept open until the peer has read the reason."""
BACKLOG = 128
ACCEPTS_AT_ONCE = 8
"""Maximum number of connections accepted per turn of the event loop. Asyncio takes it from the backlog argument."""
INSTANCES_MAX = 128
"""Maximum number of instances. Each has its output and log open as long as the sink runs, and may occupy a thread."""
HANDSHAKE_TIMEOUT_S = 10.0
GRACE_S = 0.5
"""How long a session is still read after its time for HELLO. A busy server may have left the HELLO unread."""
LINGER_S = 2.0
COLUMNS_FROM_MESSAGES = 100_000
"""Number of messages after which decoding by columns makes up for its start-up cost."""
WRITE_BYTES_MAX = 64 * 1024
CREDITS = 2**31 - 1  # TCP does the flow control; this is enough for peers that count credits
FAILED = "the sink failed"
_INSTANCE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:@=+-]{0,199}")

log = structlog.get_logger()

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class OpenParticipant(Protocol):
    """Opens the participant of an instance and recovers it from disk."""

    def __call__(self, instance: str, wait: Wait) -> SinkParticipant: ...


class SinkStopping(Exception):
    """The sink stops without waiting for a coroutine of an Output."""


class SinkServer:
    """Serves any number of instances. `serve` ends when it is cancelled, or raises the error that stopped the sink."""

    def __init__(
        self,
        open_participant: OpenParticipant,
        *,
        cookie: bytes = b"",
        tls: ServerTls | None = None,
        sessions_max: int = SESSIONS_MAX,
        lingering_max: int = LINGERING_MAX,
        instances_max: int = INSTANCES_MAX,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        keep_quiet()
        print_uncaught_as_sentences()
        self.cookie = cookie
        self._tls = tls
        self.handshake_timeout_s = handshake_timeout_s
        self.frame_bytes_max = frame_bytes_max
        self._open_participant = open_participant
        self._sessions_max = sessions_max
        self._lingering_max = lingering_max
        self._instances_max = instances_max
        self._sessions: dict[SinkSession, None] = {}  # the oldest first
        self._instances: dict[str, ServedInstance] = {}
        self.columns = Readiness(columns.make_ready, after=COLUMNS_FROM_MESSAGES)
        self._threads = ThreadPoolExecutor(instances_max, "sink")
        self._loop: asyncio.AbstractEventLoop
        self._failure: asyncio.Future[None] | None = None
        self._waiting = threading.Lock()
        self._waited_for: set[Future[None]] = set()
        self._is_stopping = False

    async def serve(self, listener: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._failure = self._loop.create_future()
        server: asyncio.Server | TlsListener
        if self._tls:
            server = TlsListener(listener, self._tls, self._stream, handshake_timeout_s=self.handshake_timeout_s)
        else:
            server = await self._loop.create_server(self._stream, sock=listener, backlog=ACCEPTS_AT_ONCE)
            listener.listen(BACKLOG)
        try:
            await self._failure
        finally:
            server.close()
            await self._stop()

    def _stream(self) -> SessionStream:
        return SessionStream(self._accept, WRITE_BYTES_MAX)

    async def _stop(self) -> None:
        """Stop reading, cancel the Outputs' coroutines and wait for the work in threads."""
        for session in list(self._sessions):
            session.close()
        for instance in self._instances.values():
            instance.session = None
        with self._waiting:
            self._is_stopping = True
            for future in self._waited_for:
                future.cancel()
        async with AsyncExitStack() as stack:
            for instance in self._instances.values():
                await stack.enter_async_context(instance.lock)
            self._is_stopping = False
            for instance in self._instances.values():
                if instance.participant is not None:
                    await self.in_thread(instance.participant.close)
        self._threads.shutdown(wait=False)

    async def in_thread(
        self, function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        return await self._loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))

    def instance(self, name: str) -> ServedInstance:
        if name not in self._instances:
            if len(self._instances) >= self._instances_max:
                raise RemoteProtocolError("too many instances")
            self._instances[name] = ServedInstance(name)
        return self._instances[name]

    async def opened(self, instance: ServedInstance) -> SinkParticipant:
        """Return the instance's participant, which is opened at first use. The caller holds the instance's lock."""
        if instance.participant is None:
            instance.participant = await self.in_thread(self._open_participant, instance.name, self._wait)
        return instance.participant

    def _wait(self, awaitable: Awaitable[None]) -> None:
        """Run an Output's coroutine on the loop and wait for its end. Called in a thread."""
        with self._waiting:
            future = asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._loop)
            self._waited_for.add(future)
            if self._is_stopping:
                future.cancel()
        try:
            future.result()
        except CancelledError:
            raise SinkStopping from None
        finally:
            with self._waiting:
                self._waited_for.discard(future)

    async def _accept(self, stream: SessionStream) -> None:
        session = SinkSession(self, stream)
        self._sessions[session] = None
        try:
            if self._has_room():
                await session.run()
            else:
                await session.refuse("too many sessions")
        except SinkStopping:
            pass
        except Exception as error:  # an error of the author's Output may have lost a vote
            if self._failure and not self._failure.done():
                self._failure.set_exception(error)
            session.say_error(FAILED)
        finally:
            self._sessions.pop(session, None)
            session.close()

    def _has_room(self) -> bool:
        """Whether the newest session may stay. To make room in a full server, closes the oldest session without a
        HELLO."""
        lingering = [session for session in self._sessions if session.is_refused and not session.is_closed]
        if len(lingering) > self._lingering_max:
            lingering[0].abort()
        if sum(not (session.is_refused or session.is_closed) for session in self._sessions) <= self._sessions_max:
            return True
        silent = next((session for session in self._sessions if session.is_silent), None)
        if silent is not None:
            silent.give_up()
        return silent is not None


async def _awaited(awaitable: Awaitable[None]) -> None:
    await awaitable


class ServedInstance:
    """A participant and its current session. The lock admits one event at a time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.participant: SinkParticipant | None = None
        self.lock = asyncio.Lock()
        self.session: SinkSession | None = None


class SinkSession:
    """A session of a driver with one instance."""

    def __init__(self, server: SinkServer, stream: SessionStream) -> None:
        self._server = server
        self._stream = stream
        self._transport = stream.transport
        self._connection = Connection(ConnectionSide.ACCEPTOR, Role.SINK, server.frame_bytes_max)
        self._instance: ServedInstance | None = None
        self.is_silent = False
        """The peer is connected and has sent no HELLO yet."""
        self.is_refused = False
        self._deadline = asyncio.timeout(server.handshake_timeout_s)
        notice_silence(self._transport.get_extra_info("socket"))

    async def run(self) -> None:
        """Run until either side ends the session. An escaping exception is a failure of the output, not of the peer."""
        try:
            try:
                async with self._deadline:
                    self.is_silent = True
                    await self._listen()
            except TimeoutError:
                if self._instance is not None:
                    raise
                self.is_refused = True
                async with asyncio.timeout(GRACE_S) as self._deadline:
                    await self._listen()
        except RemoteProtocolError as error:
            await self.refuse(error.sentence)
        except LocalProtocolError as error:
            # The peer's messages allow no answer; for example, two NOTIFYs of one stream arrived.
            await self.refuse(f"out of turn: {error.sentence}")
        except TimeoutError:
            await self.refuse("no HELLO in time")
        except OSError as error:
            log.debug("session.lost", error=str(error))

    async def _listen(self) -> None:
        while data := await self._stream.read():
            for event in self._connection.receive(data):
                await self._take(event)
            await self._stream.drain()

    async def refuse(self, reason: str) -> None:
        """Send the reason and discard bytes that still arrive. Closing with unread bytes would reset the connection."""
        self.is_silent, self.is_refused = False, True
        self.say_error(reason)
        with suppress(OSError):
            async with asyncio.timeout(LINGER_S):
                while await self._stream.read():
                    pass

    def say_error(self, reason: str) -> None:
        """Send an ERROR frame and close this side of the connection."""
        log.warning("session.refused", peer=peer_of(self._transport.get_extra_info("socket")), reason=reason)
        if not self._transport.is_closing():
            self._transport.write(self._connection.error_frame(reason))
            if self._transport.can_write_eof():  # TLS cannot close only one side
                self._transport.write_eof()

    def close(self) -> None:
        self._transport.close()

    @property
    def is_closed(self) -> bool:
        return self._transport.is_closing()

    def give_up(self) -> None:
        """End the time for HELLO now."""
        self.is_silent = False
        self._deadline.reschedule(asyncio.get_running_loop().time())

    def abort(self) -> None:
        self._transport.abort()

    async def _take(self, event: Event) -> None:
        match event:
            case Violation(reason):
                raise RemoteProtocolError(reason)
            case Error(reason):
                log.warning("session.worker_error", reason=reason)
                self.close()
            case Hello():
                await self._begin(event)
            case _ if self._instance:
                async with self._instance.lock:
                    if self._instance.session is self:
                        await self._use(await self._server.opened(self._instance), event)

    async def _begin(self, hello: Hello) -> None:
        if hello.version not in VERSIONS:
            raise RemoteProtocolError(f"version {hello.version!r} is unknown")
        if not hmac.compare_digest(hello.cookie, self._server.cookie):
            raise RemoteProtocolError("the cookie does not match")
        if not _INSTANCE.fullmatch(hello.instance):
            raise RemoteProtocolError("the instance's name cannot name a file")
        self.is_silent = self.is_refused = False
        self._deadline.reschedule(None)
        self._instance = instance = self._server.instance(hello.instance)
        if instance.session:
            instance.session.close()
        instance.session = self
        async with instance.lock:
            if instance.session is not self:
                return  # a newer session began meanwhile
            participant = await self._server.opened(instance)
            await self._server.in_thread(participant.begin)
        log.info("session.opened", instance=hello.instance, committed=participant.committed_end)
        self._send(Ok(CREDITS))

    async def _use(self, participant: SinkParticipant, event: Event) -> None:
        match event:
            case Notify(stream_id):
                self._send(NotifyAck(stream_id == DATA_STREAM, stream_id, participant.committed_end))
            case Messages():
                self._server.columns.worked(len(event))
                answers: list[TwoPhase] = []
                try:
                    await self._server.in_thread(_answer_messages, participant, event, answers)
                finally:
                    # Answers before a message that ends the session are sent, too: their votes and decisions are
                    # durable.
                    for answer in answers:
                        self._send(two_phase_commit.wrap(answer))

    def _send(self, frame: Frame) -> None:
        # A violation later in the same segment may have ended the connection before this answer.
        if not self._connection.is_over and not self._transport.is_closing():
            self._transport.write(self._connection.send(frame))


def _answer_messages(participant: SinkParticipant, messages: Messages, answers: list[TwoPhase]) -> None:
    """Pass these messages to the participant, in order. Runs in a thread."""
    for stream_id, some in messages.by_stream():
        if stream_id == TWOPC_STREAM:
            for payload in some.payloads.to_pylist():
                message = two_phase_commit.decode(payload)
                log.debug("session.received", message=message)
                answers += _answers(participant, message)
        else:
            for part in some.parts():
                participant.append(part.message_ids, Payloads(part.payloads))


def _answers(participant: SinkParticipant, message: TwoPhase) -> list[TwoPhase]:
    match message:
        case ListUncommitted(rtag):
            return [ReplyUncommitted(rtag, participant.list_uncommitted())]
        case Phase1(txn_id, where):
            return [Reply(txn_id, participant.phase1(txn_id, where))]
        case Phase2(txn_id, commit):
            participant.phase2(txn_id, commit)
            return [Reply(txn_id, commit)]
        case ReplyUncommitted() | Reply():
            raise RemoteProtocolError("the coordinator sent a message of a participant")
        case WorkersLeft(workers=workers):
            participant.workers_left()
            log.info("sink.workers_left", workers=workers)
            return []
