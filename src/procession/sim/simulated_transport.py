"""Implements asyncio's transports and listening sockets on the simulated network.

Invariant: a protocol is called as asyncio calls it: `connection_made`, then data in order, then the end, then
`connection_lost`, each in a callback of the loop. Nothing arrives while reading is paused. Used by `simulated_loop`,
over `network`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from procession.address import Address
from procession.sim.network import Endpoint

if TYPE_CHECKING:
    from procession.sim.simulated_loop import AsyncioProcess, SimulatedLoop


class SimulatedListener:
    """A listening socket, and the server on it once `open` is called."""

    family = None

    def __init__(self, address: Address) -> None:
        self._name = address
        self._address = str(address) if address.port else address.host
        self._process: AsyncioProcess | None = None

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def listen(self, backlog: int) -> None:
        """Do nothing: the socket listens when `open` sets its server."""

    def open(self, process: AsyncioProcess, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self._process = process
        process.ports[self._address] = protocol_factory
        process.site.network.listeners[self._address] = process

    def close(self) -> None:
        """Accept no more connections."""
        if self._process is not None and self._process.ports.pop(self._address, None) is not None:
            listeners = self._process.site.network.listeners
            if listeners.get(self._address) is self._process:
                del listeners[self._address]


class SimulatedTransport(asyncio.Transport):
    """One end of a simulated connection. Written data does not wait here; the network delays it."""

    def __init__(self, loop: SimulatedLoop, end: Endpoint, make_protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        super().__init__()
        self._loop = loop
        self._end = end
        self._make_protocol = make_protocol
        self._protocol: Any
        self._is_closing = False
        self._is_paused = False
        self._unread: list[Callable[[], None]] = []
        """Events that have arrived while reading is paused."""
        end.tag = self
        loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._protocol = self._make_protocol()
        self._protocol.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the transport has no buffer."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing:
            self._end.write(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._is_closing:
            self._end.half_close()

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        unread, self._unread = self._unread, []
        for take in unread:
            self._loop.call_soon(take)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._end.close()
            self._loop.call_soon(self._end_protocol, None)

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._end.drop()
            self._loop.call_soon(self._end_protocol, None)

    # Calls from the network

    def received(self, data: bytes) -> None:
        if not self._is_closing:
            self._loop.call_soon(self._take, data)

    def _take(self, data: bytes) -> None:
        if self._is_closing:
            return
        if self._is_paused:
            self._unread.append(partial(self._take, data))
        elif isinstance(self._protocol, asyncio.BufferedProtocol):
            while data and not self._is_closing:
                if self._has_paused():
                    self._unread.insert(0, partial(self._take, data))
                    return
                buffer = memoryview(self._protocol.get_buffer(-1))
                length = min(len(data), len(buffer))
                buffer[:length] = data[:length]
                self._protocol.buffer_updated(length)
                data = data[length:]
        else:
            self._protocol.data_received(data)

    def _has_paused(self) -> bool:
        """Return whether the protocol has paused reading."""
        return self._is_paused

    def lost(self, *, is_clean: bool) -> None:
        """Handle a connection that the other side has closed or that is broken."""
        if is_clean:
            self._loop.call_soon(self._take_eof)
        else:
            self._loop.call_soon(self._reset)

    def _take_eof(self) -> None:
        if self._is_closing:
            return
        if self._is_paused:
            self._unread.append(self._take_eof)
        elif not self._protocol.eof_received():
            self.close()

    def _reset(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._end_protocol(ConnectionResetError("Connection reset by peer"))

    def _end_protocol(self, error: Exception | None) -> None:
        self._protocol.connection_lost(error)


class CallTransport(asyncio.Transport):
    """The listening end of a connection with one request, which is one line, and its answer."""

    def __init__(
        self,
        loop: SimulatedLoop,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        request: bytes,
        answered: Callable[[bytes], None],
    ) -> None:
        super().__init__()
        self._loop = loop
        self._make_protocol = make_protocol
        self._protocol: Any
        self._request = request
        self._answered = answered
        self._is_closing = False
        loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._protocol = self._make_protocol()
        self._protocol.connection_made(self)
        self._protocol.data_received(self._request)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._loop.step()
        self._answered(bytes(data))
        self._loop.call_soon(self._protocol.eof_received)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._protocol.connection_lost, None)
