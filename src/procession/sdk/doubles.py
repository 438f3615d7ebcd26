"""Test doubles for connectors: a source and an output in memory, and scripted peers on real sockets.

Invariant: a double does only what the real peer may do, including a crash at a marker. The doubles replace the gateway,
the worker, the input and the output.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from procession.address import Address
from procession.sdk.source_records import Batch, Stream
from procession.sdk.transaction_log import Transaction
from procession.wire import two_phase_commit
from procession.wire.connection import Connection, Event
from procession.wire.lifecycle import ConnectionSide, Role
from procession.wire.messages import (
    DATA_STREAM,
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
    binaries,
)
from procession.wire.v3 import SINK_VERSION

ANSWER_TIMEOUT_S = 10.0


class Crashed(Exception):
    """Reading reached a crash marker."""


class Crash:
    """A crash marker among a ListSource's records: reading raises here, but only the first time."""

    def __init__(self) -> None:
        self.is_over = False

    def reach(self) -> None:
        if not self.is_over:
            self.is_over = True
            raise Crashed


class ListSource:
    """Streams of records in memory, numbered 0, 1, 2 …. A Crash among the records takes no number."""

    def __init__(self, streams: dict[Stream, Sequence[bytes | Crash]], batch_records: int = 3) -> None:
        self._streams = streams
        self._batch_records = batch_records

    def streams(self) -> list[Stream]:
        return list(self._streams)

    def read(self, stream: Stream, after: int | None) -> Iterator[Batch]:
        message_ids: list[int] = []
        payloads: list[bytes] = []
        following = 0
        for record in self._streams[stream]:
            if isinstance(record, Crash):
                yield from _numbered(message_ids, payloads)
                message_ids, payloads = [], []
                record.reach()
                continue
            if after is None or following > after:
                message_ids.append(following)
                payloads.append(record)
            following += 1
            if len(payloads) == self._batch_records:
                yield from _numbered(message_ids, payloads)
                message_ids, payloads = [], []
        yield from _numbered(message_ids, payloads)


def _numbered(message_ids: list[int], payloads: list[bytes]) -> Iterator[Batch]:
    if payloads:
        times = np.zeros(len(payloads), np.int64)
        yield Batch(np.array(message_ids, np.uint64), times, pa.array(payloads, pa.binary()))


class MemoryOutput:
    """An output in memory. `visible` has the bytes that its readers would see."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.visible = b""

    def recover(self, committed_end: int, prepared: Transaction | None) -> None:
        del self.data[max(committed_end, prepared.end if prepared else 0) :]

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        self.data[position:] = b"".join(payloads)

    def prepare(self, transaction: Transaction) -> None:
        assert len(self.data) >= transaction.end

    def commit(self, transaction: Transaction) -> None:
        self.visible = bytes(self.data[: transaction.end])

    def abort(self, transaction: Transaction) -> None:
        del self.data[transaction.start :]

    def close(self) -> None:
        pass


CLOSED = "the sink closed the connection"


class Peer:
    """One end of a real connection, controlled by a test: it sends a frame, or waits for the next event."""

    def __init__(self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection = connection
        self._reader = reader
        self._writer = writer
        self._events: list[Event] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, *frames: Frame) -> None:
        self._writer.write(b"".join(self.connection.send(frame) for frame in frames))

    def send_bytes(self, data: bytes) -> None:
        """Send arbitrary bytes, without the protocol's checks."""
        self._writer.write(data)

    async def receive(self, timeout_s: float = ANSWER_TIMEOUT_S) -> Event | None:
        """Return the next event. None: the other end has closed."""
        async with asyncio.timeout(timeout_s):
            while not self._events:
                try:
                    data = await self._reader.read(1 << 20)
                except ConnectionError:
                    data = b""
                if not data:
                    return None
                self._events = self.connection.receive(data)
        return self._events.pop(0)

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        """Close as a crash does: unread data is lost, and the peer gets a reset."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


class Worker(Peer):
    """Plays the worker for a sink."""

    cookie = b""
    """The cookie that HELLO carries by default."""

    @classmethod
    async def connect(cls, address: Address) -> Self:
        return cls(Connection(ConnectionSide.INITIATOR, Role.SINK), *await asyncio.open_connection(*address))

    async def hello(self, instance: str = "out", cookie: bytes | None = None) -> tuple[int, tuple[str, ...]]:
        """Perform the handshake. Returns the sink's committed end and its uncommitted transactions."""
        self.send(
            Hello(SINK_VERSION, self.cookie if cookie is None else cookie, "test", instance),
            Notify(DATA_STREAM, "out", 0),
            two_phase_commit.wrap(ListUncommitted(7)),
        )
        ok, notify_ack = await self.receive(), await self.receive()
        assert isinstance(ok, Ok), ok or CLOSED
        assert isinstance(notify_ack, NotifyAck), notify_ack
        assert notify_ack.success
        answer = await self.answer()
        assert isinstance(answer, ReplyUncommitted), answer
        return notify_ack.point_of_reference, answer.txn_ids

    def data(self, position: int, *payloads: bytes) -> None:
        for payload in payloads:
            # By columns, as the driver sends them, so a large payload is copied only once.
            ids = np.array([position], np.uint64)
            frames = self.connection.send_messages(DATA_STREAM, ids, np.zeros(1, np.int64), None, binaries([payload]))
            self._writer.write(memoryview(frames))
            position += len(payload)

    async def drained(self) -> None:
        """Wait until most of the data is sent, as the driver does after each block."""
        await self._writer.drain()

    async def phase1(self, txn_id: str, start: int, end: int) -> bool:
        """Ask for the sink's vote. Returns True for commit."""
        self.send(two_phase_commit.wrap(Phase1(txn_id, ((DATA_STREAM, start, end),))))
        answer = await self.answer()
        assert isinstance(answer, Reply), answer
        assert answer.txn_id == txn_id
        return answer.commit

    async def phase2(self, txn_id: str, commit: bool) -> None:
        self.send(two_phase_commit.wrap(Phase2(txn_id, commit)))
        assert await self.answer() == Reply(txn_id, commit)

    async def answer(self) -> TwoPhase:
        messages = await self.receive()
        assert isinstance(messages, Messages), messages or CLOSED
        assert len(messages) == 1
        return two_phase_commit.decode(messages.payloads[0].as_py())


class Gateway:
    """Plays the gateway: accepts sources one after the other, and a test talks to them."""

    def __init__(self) -> None:
        self._arrivals: asyncio.Queue[Peer] = asyncio.Queue()
        self._server: asyncio.Server | None = None
        self.address = Address("127.0.0.1", 0)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, *self.address)
        self.address = Address(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server
        self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._arrivals.put(Peer(Connection(ConnectionSide.ACCEPTOR, Role.SOURCE), reader, writer))

    async def session(self) -> Peer:
        """Wait for the next source and return its connection."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await self._arrivals.get()
