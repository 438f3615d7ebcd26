"""The UDP source: sends each datagram as an ephemeral record, at most once.

Invariant: memory is bounded. A datagram that does not fit is dropped and counted. It uses the draft protocol, because
version 3 has no records without an identity.
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
"""Maximum bytes of datagrams that wait to be sent."""
DATAGRAM_BYTES = 64
"""Memory per waiting datagram besides its content."""
BATCH_RECORDS_MAX = 8192
KERNEL_BYTES = 4 * 1024 * 1024
"""Requested size of the kernel's receive buffer; the system may grant less."""

log = structlog.get_logger()


class UdpSource(asyncio.DatagramProtocol):
    """The datagrams of a socket, as one stream. `listen` runs concurrently with the client; `stop` ends the stream."""

    def __init__(self, bound_socket: socket.socket, stream: str, *, bytes_max: int = BYTES_MAX) -> None:
        self.received = 0
        self.dropped = 0
        self.sent = 0
        self._socket = bound_socket
        self._stream = Stream.named(stream, is_ephemeral=True)
        self._bytes_max = bytes_max
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._number = 0
        self._changed = asyncio.Event()
        self._is_stopped = False

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=self._socket)
        log.info("source.listening", address=str(Address(*self._socket.getsockname()[:2])))
        try:
            await loop.create_future()
        finally:
            transport.close()

    def stop(self) -> None:
        """Stop receiving. Waiting datagrams are still sent."""
        self._is_stopped = True
        self._changed.set()

    def on_report(self, report: Report) -> None:
        """Record how many datagrams the client has sent."""
        self.sent = report.ephemeral

    def close(self) -> None:
        """Log how many datagrams were lost or dropped."""
        if unsent := self.received - self.dropped - self.sent:
            log.error("source.datagrams_lost", lost=unsent, received=self.received)
        if self.dropped:
            log.warning("source.datagrams_dropped", dropped=self.dropped, received=self.received)

    # Callbacks of the socket

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.received += 1
        if self._is_stopped or self._waiting_bytes + len(data) + DATAGRAM_BYTES > self._bytes_max:
            self.dropped += 1
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data) + DATAGRAM_BYTES
        self._changed.set()

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
                self._changed.clear()
                await self._changed.wait()

    def _batch(self) -> Batch:
        some = self._waiting[:BATCH_RECORDS_MAX]
        del self._waiting[:BATCH_RECORDS_MAX]
        self._waiting_bytes -= sum(map(len, some)) + DATAGRAM_BYTES * len(some)
        ids = np.arange(self._number, self._number + len(some), dtype=np.uint64)
        self._number += len(some)
        return Batch(ids, np.zeros(len(some), np.int64), pa.array(some, pa.binary()))


def datagram_socket(address: Address) -> socket.socket:
    """Return a UDP socket that is bound to an address of this machine."""
    bound_socket = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_DGRAM)
    with contextlib.suppress(OSError):
        bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
    try:
        bound_socket.bind(address)
    except OSError as error:
        bound_socket.close()
        raise ConfigError(
            f"Cannot receive datagrams at {address}: {error.strerror or error}.",
            next_step="Choose an address of this machine, and a free port.",
        ) from error
    bound_socket.setblocking(False)
    return bound_socket
