"""Datagrams as a source: each is an ephemeral record, sent at most once.

The one rule: best effort, and bounded: a datagram that finds no room is dropped and counted, and nothing waits for it.
Before it on the walk: programs that send to a UDP port. After it: the gateway, in the draft's words, because version 3
cannot say that a record has no identity.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pyarrow as pa
import structlog

from procession.address import Address
from procession.errors import ConfigError
from procession.sdk.source_records import Batch, Stream
from procession.sdk.source_report import Report

BYTES_MAX = 16 * 1024 * 1024
"""Datagrams that wait to be sent."""
DATAGRAM_BYTES = 64
"""What a waiting datagram costs beside its content."""
BATCH_RECORDS_MAX = 8192
KERNEL_BYTES = 4 * 1024 * 1024
"""What the system is asked to hold for us while we are busy; it may give less."""

log = structlog.get_logger()


class UdpSource(asyncio.DatagramProtocol):
    """One stream, of what comes to a socket. `listen` runs beside the client; `stop` ends the stream."""

    def __init__(self, door: socket.socket, stream: str, *, bytes_max: int = BYTES_MAX) -> None:
        self.received = 0
        self.dropped = 0
        self.sent = 0
        self._door = door
        self._stream = Stream.named(stream, is_ephemeral=True)
        self._bytes_max = bytes_max
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._number = 0
        self._news = asyncio.Event()
        self._is_stopped = False

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=self._door)
        log.info("source.listening", address=str(Address(*self._door.getsockname()[:2])))
        try:
            await loop.create_future()
        finally:
            transport.close()

    def stop(self) -> None:
        """Take no more; what waits is still sent."""
        self._is_stopped = True
        self._news.set()

    def hear(self, report: Report) -> None:
        """How many were sent: the client tells."""
        self.sent = report.ephemeral

    def close(self) -> None:
        """Say what became of what came."""
        if unsent := self.received - self.dropped - self.sent:
            log.error("source.datagrams_lost", lost=unsent, received=self.received)
        if self.dropped:
            log.warning("source.datagrams_dropped", dropped=self.dropped, received=self.received)

    # What the socket brings

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.received += 1
        if self._is_stopped or self._waiting_bytes + len(data) + DATAGRAM_BYTES > self._bytes_max:
            self.dropped += 1
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data) + DATAGRAM_BYTES
        self._news.set()

    def error_received(self, exc: Exception) -> None:
        log.info("source.socket_error", reason=str(exc))

    # As a Source

    def streams(self) -> list[Stream]:
        return [self._stream]

    async def read(self, stream: Stream, after: int | None) -> AsyncIterator[Batch]:
        while self._waiting or not self._is_stopped:
            if self._waiting:
                yield self._batch()
            else:
                self._news.clear()
                await self._news.wait()

    def _batch(self) -> Batch:
        some = self._waiting[:BATCH_RECORDS_MAX]
        del self._waiting[:BATCH_RECORDS_MAX]
        self._waiting_bytes -= sum(map(len, some)) + DATAGRAM_BYTES * len(some)
        ids = np.arange(self._number, self._number + len(some), dtype=np.uint64)
        self._number += len(some)
        return Batch(ids, np.zeros(len(some), np.int64), pa.array(some, pa.binary()))


def datagram_socket(address: Address) -> socket.socket:
    """A UDP socket that is bound to an address of this machine."""
    door = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_DGRAM)
    with contextlib.suppress(OSError):
        door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
    try:
        door.bind(address)
    except OSError as error:
        door.close()
        raise ConfigError(
            f"Cannot receive datagrams at {address}: {error.strerror or error}.",
            next_step="Choose an address of this machine, and a port that is free.",
        ) from error
    door.setblocking(False)
    return door
