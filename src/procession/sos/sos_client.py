"""A client of the object service: one connection with many concurrent requests.

Invariant: a request is sent when a credit is free, in the order of the calls. Read data is checked against the
checksums of its writer. A lost connection fails all requests without a reply; their outcome is then unknown. The client
never retries. Use all methods in one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

from procession.address import Address, notice_silence
from procession.errors import ProcessionError, RemoteProtocolError
from procession.sos.sos_connection import SosConnection, SosViolation
from procession.sos.sos_frames import (
    VERSION,
    AppendChunk,
    ChunksReply,
    ClaimVolume,
    CreateObject,
    DescribeVolume,
    FormatVolume,
    ListVolumes,
    NamesReply,
    ProgressReply,
    ReadChunks,
    RefusedReply,
    RetainFrom,
    SosError,
    SosHello,
    SosReply,
    SosRequest,
    SosWelcome,
    VolumeReply,
    checked_chunks,
)
from procession.sos.volume_rules import ObjectHead, RequestRefused, VolumeState
from procession.tls import ClientTls, complaint, connect
from procession.wire.lifecycle import ConnectionSide

READ_BYTES = 256 * 1024
CONNECT_TIMEOUT_S = 10.0
PROGRAM = "procession"


class SosUnreachable(ProcessionError):
    """The service cannot be reached, or the connection was lost. The outcome of open requests is unknown."""


class SosClient:
    """A connection. Call `open` first. After SosUnreachable, the client cannot be used again."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
        self.name = name
        self._reader = reader
        self._writer = writer
        self._connection = SosConnection(ConnectionSide.INITIATOR)
        self._replies: dict[int, asyncio.Future[SosReply]] = {}
        self._unsent: deque[SosRequest] = deque()
        self._number = 0
        self._error: ProcessionError | None = None
        self._welcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listening: asyncio.Task[None]

    @classmethod
    async def open(
        cls,
        address: Address,
        cookie: bytes,
        tls: ClientTls | None = None,
        timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> SosClient:
        """Connect to the service. Raises SosUnreachable, or RemoteProtocolError if the service refuses the client."""
        name = str(address)
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await connect(address, tls)
                client = cls(reader, writer, name)
                notice_silence(writer.get_extra_info("socket"))
                client._listening = asyncio.ensure_future(client._listen())
                try:
                    writer.write(client._connection.send(SosHello(VERSION, cookie, PROGRAM)))
                    await client._welcome
                except BaseException:
                    client.close()
                    raise
        except (OSError, TimeoutError) as error:
            reason = complaint(error) or (str(error) or "it does not answer")
            raise SosUnreachable(f"The object service at {name} cannot be reached: {reason}.") from error
        return client

    @property
    def is_open(self) -> bool:
        return self._error is None

    async def closed(self) -> None:
        """Wait until the connection has ended."""
        await asyncio.wait([self._listening])

    def close(self) -> None:
        self._fail(SosUnreachable(f"The connection to the object service at {self.name} is closed."))
        self._listening.cancel()

    # Requests

    async def format(self, volume: str) -> VolumeState:
        """Create the copy of a volume if there is none, and return it."""
        state = cast(VolumeReply, await self.send(FormatVolume(self.next_number(), volume))).state
        if state is None:
            raise RemoteProtocolError("a volume that was made is not there")
        return state

    async def describe(self, volume: str) -> VolumeState | None:
        return cast(VolumeReply, await self.send(DescribeVolume(self.next_number(), volume))).state

    async def names(self) -> list[str]:
        """Return the names of all volumes, in order."""
        found: list[str] = []
        while True:
            reply = cast(NamesReply, await self.send(ListVolumes(self.next_number(), found[-1] if found else "")))
            if not reply.names:
                return found
            if reply.names[0] <= (found[-1] if found else "") or list(reply.names) != sorted(set(reply.names)):
                raise RemoteProtocolError("names that are not in order")
            found += reply.names

    async def claim(self, volume: str, fence: int, token: bytes) -> VolumeState:
        state = cast(VolumeReply, await self.send(ClaimVolume(self.next_number(), volume, fence, token))).state
        if state is None or state.promised != fence:
            raise RemoteProtocolError("a claim that was not promised")
        return state

    async def create(self, volume: str, fence: int, number: int, head: ObjectHead, mark: int = 0) -> ProgressReply:
        request = CreateObject(self.next_number(), volume, fence, number, head, mark)
        return cast(ProgressReply, await self.send(request))

    async def append(
        self, volume: str, fence: int, number: int, offset: int, checksum: int, data: bytes, *, is_barrier: bool
    ) -> ProgressReply:
        """Append data. With `is_barrier`, this data and all earlier data are synced when this returns."""
        request = AppendChunk(self.next_number(), volume, fence, number, offset, checksum, is_barrier, data)
        return cast(ProgressReply, await self.send(request))

    async def read(self, volume: str, number: int, offset: int, bytes_max: int) -> list[tuple[bytes, int]]:
        """Read whole appends from an offset on, each with the object's checksum after it. An empty result means the
        end."""
        request = ReadChunks(self.next_number(), volume, number, offset, bytes_max)
        reply = cast(ChunksReply, await self.send(request))
        if reply.number != number or reply.offset != offset:
            raise RemoteProtocolError("data that was not asked for")
        return checked_chunks(reply)

    async def retain(self, volume: str, fence: int, mark: int) -> None:
        await self.send(RetainFrom(self.next_number(), volume, fence, mark))

    def next_number(self) -> int:
        self._number = self._number % (2**32 - 1) + 1
        return self._number

    def send(self, request: SosRequest) -> asyncio.Future[SosReply]:
        """Send a request and return its future reply. It fails with RequestRefused, SosUnreachable or
        RemoteProtocolError."""
        reply: asyncio.Future[SosReply] = asyncio.get_running_loop().create_future()
        if self._error is not None:
            reply.set_exception(self._error)
            return reply
        self._replies[request.request] = reply
        self._unsent.append(request)
        self._send_unsent()
        return reply

    def _send_unsent(self) -> None:
        while self._unsent and self._connection.free_credits > 0 and self._error is None:
            self._writer.write(self._connection.send(self._unsent.popleft()))

    # Replies

    async def _listen(self) -> None:
        try:
            while data := await self._reader.read(READ_BYTES):
                for event in self._connection.receive(data):
                    self._take(event)
                self._send_unsent()
            self._fail(SosUnreachable(f"The object service at {self.name} has closed the connection."))
        except OSError as error:
            self._fail(SosUnreachable(f"The connection to the object service at {self.name} is lost: {error}."))
        except ProcessionError as error:
            self._fail(error)

    def _take(self, event: Any) -> None:
        match event:
            case SosViolation(reason):
                raise RemoteProtocolError(f"The object service at {self.name} sent {reason}.")
            case SosError(reason):
                raise RemoteProtocolError(f"The object service at {self.name} refuses us: {reason}.")
            case SosWelcome(version):
                if version != VERSION:
                    raise RemoteProtocolError(f"The object service at {self.name} speaks version {version}.")
                if not self._welcome.done():
                    self._welcome.set_result(None)
            case RefusedReply(request, code, promised, reason):
                reply = self._replies.pop(request)
                if not reply.done():  # the caller may have been cancelled
                    reply.set_exception(RequestRefused(reason, code=code, promised=promised))
            case _:
                reply = self._replies.pop(event.request)
                if not reply.done():
                    reply.set_result(event)

    def _fail(self, error: ProcessionError) -> None:
        if self._error is not None:
            return
        self._error = error
        self._writer.close()
        self._unsent.clear()
        waiting: list[asyncio.Future[Any]] = [self._welcome, *self._replies.values()]
        for reply in waiting:
            if not reply.done():
                reply.set_exception(error)
                reply.exception()  # retrieved, so that asyncio does not log it if no call waits for it
        self._replies.clear()
