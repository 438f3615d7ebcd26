"""The socket of a sink's session: received bytes are read from one buffer that is reused.

Invariant: a byte is copied once from the kernel and not again before `wire/connection` decodes it. When the buffer is
full, reading pauses until the bytes are taken. Asyncio's own streams copy each byte three times, each time into new
memory. `sdk/sink_server` reads the driver's connections through it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

BUFFER_BYTES_MIN = 64 * 1024
"""Size of the buffer of a new connection. It doubles each time it is full."""
BUFFER_BYTES_MAX = 1024 * 1024

Serve = Callable[["SessionStream"], Coroutine[Any, Any, None]]


class SessionStream(asyncio.BufferedProtocol):
    """Reads and writes one connection. `serve` starts as a task when the connection is made."""

    def __init__(self, serve: Serve, write_bytes_max: int) -> None:
        self._serve = serve
        self._write_bytes_max = write_bytes_max
        self._buffer = memoryview(bytearray(BUFFER_BYTES_MIN))
        self._filled = 0
        self._is_ended = False
        self._error: Exception | None = None
        self._has_changed = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self.transport: asyncio.Transport
        self._task: asyncio.Task[None]

    async def read(self) -> memoryview:
        """Wait for bytes and return a view of them. An empty view means that the peer sends no more. The view is valid
        until the next await.

        Raises:
            OSError: The connection is lost.
        """
        while not self._filled and not self._is_ended:
            self._has_changed.clear()
            await self._has_changed.wait()
        if self._error is not None:
            raise self._error
        data = self._buffer[: self._filled]
        if self._filled == len(self._buffer):
            if self._filled < BUFFER_BYTES_MAX:
                self._buffer = memoryview(bytearray(2 * self._filled))
            if not self.transport.is_closing():
                self.transport.resume_reading()
        self._filled = 0
        return data

    async def drain(self) -> None:
        """Wait until the peer has read enough of the written bytes."""
        await self._may_write.wait()
        if self._error is not None:
            raise self._error

    # Called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(self._write_bytes_max)
        self._task = asyncio.get_running_loop().create_task(self._serve(self))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled == len(self._buffer):
            self.transport.pause_reading()
        self._has_changed.set()

    def eof_received(self) -> bool:
        self._is_ended = True
        self._has_changed.set()
        # This side stays open for a last answer. TLS has no half-open connections.
        return self.transport.get_extra_info("sslcontext") is None

    def connection_lost(self, error: Exception | None) -> None:
        self._error = error
        self._is_ended = True
        self._has_changed.set()
        self._may_write.set()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()
