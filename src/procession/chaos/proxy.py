"""Forwards TCP connections between two parts, and injects network faults at run time.

Invariant: without a fault only the address differs. Faults (see FAULTS) are set from the harness's thread; the
proxies run in their own event loop. The target is looked up for each connection, because it may have moved.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from procession.address import Address, address_of, listening_socket
from procession.chaos.frame_splitter import FrameSplitter, SplitFrame, StreamSplitter

HOST = "127.0.0.2"
"""Host where proxies listen. A part listens at the same port of another loopback host, and advertises this host."""
READ_BYTES_MAX = 64 * 1024
HELD_BYTES_MAX = 4 * 1024 * 1024
CONNECT_TIMEOUT_S = 5.0
GATHER_S = 0.2
"""How long `late` collects bytes before the sender loses its connection."""

FAULTS = {
    "cut": "connections are reset, and new connections fail",
    "silent": "no bytes are delivered, and no error is reported",
    "delay": "every read is late by the given seconds",
    "half-close": "one direction (up or down) of the current connections ends",
    "truncate": "half of the next frame (up or down), then nothing more",
    "corrupt": "the head of the next frame (up or down) is wrong",
    "late": "bytes in transit arrive after the sender has lost its connection and has a new one",
    "cut-before": "the connection is reset once, just before the given message passes",
    "cut-after": "the connection is reset once, just after the given message has passed",
    "swallow": "the given message is dropped once",
}
ONCE = frozenset({"truncate", "corrupt", "cut-before", "cut-after", "swallow"})
WAYS = ("up", "down")
HAS_WAY = frozenset({"half-close", "truncate", "corrupt"})
PRESENT = frozenset({"half-close", "late"})
"""Faults that apply to the current connections, or to the next connection if there is none."""


@dataclass(eq=False)
class ProxyFault:
    kind: str
    argument: str = ""
    seconds: float = 0.0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    has_happened: bool = False

    @classmethod
    def parse(cls, text: str) -> ProxyFault:
        kind, _, argument = text.partition(":")
        if kind not in FAULTS:
            raise ValueError(f"there is no network fault {kind!r}; there are: {', '.join(FAULTS)}")
        if kind in HAS_WAY and argument not in WAYS:
            raise ValueError(f"{kind} goes up or down, and not {argument!r}")
        if kind == "delay" and not argument.replace(".", "", 1).isdecimal():
            raise ValueError(f"{argument!r} is not a number of seconds")
        return cls(kind, argument)


class ProxiedConnection:
    """One connection through the proxy, with two directions: `up` to the listening part and `down` from it."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.proxy = proxy
        self.writers = {"up": server, "down": client}
        self.is_late = False
        self.closed: set[str] = set()

    def abort(self) -> None:
        for writer in self.writers.values():
            writer.transport.abort()

    def end(self, direction: str) -> None:
        """End one direction. Later bytes are dropped."""
        self.closed.add(direction)
        with suppress(OSError, RuntimeError):
            self.writers[direction].write_eof()

    async def forward(self, direction: str, reader: asyncio.StreamReader) -> None:
        cutter = self.proxy.make_cutter()
        held = bytearray()
        writer = self.writers[direction]
        try:
            while data := await reader.read(READ_BYTES_MAX):
                await self.proxy.await_faults(self)
                for piece in cutter.feed(data):
                    out, is_last = self.proxy.apply_faults(piece, direction)
                    if direction in self.closed:
                        continue
                    if self.is_late and direction == "up":
                        held += out[: HELD_BYTES_MAX - len(held)]
                        continue
                    if writer.is_closing():
                        raise ConnectionResetError("the other side is gone")
                    writer.write(out)
                    if is_last:
                        await writer.drain()
                        self._lose(writer)
                        return
                await writer.drain()
        except OSError:
            pass
        if self.is_late and direction == "up":
            with suppress(OSError):
                await self._deliver_late(bytes(held))
        elif direction not in self.closed:
            self.end(direction)

    def _lose(self, delivered: asyncio.StreamWriter) -> None:
        """Reset the connection, but first deliver the bytes that were sent to one side."""
        delivered.close()
        for writer in self.writers.values():
            if writer is not delivered:
                writer.transport.abort()

    async def _deliver_late(self, held: bytes) -> None:
        for fault in [fault for fault in self.proxy.faults if fault.kind == "late"]:
            await fault.ended.wait()
        self.writers["up"].write(held)
        await self.writers["up"].drain()
        self.writers["up"].close()


class Proxy:
    """Listens at `address`. `upstream` returns the target's current address. All methods but `put` run in the loop."""

    def __init__(
        self, name: str, upstream: Callable[[], Address], make_cutter: Callable[[], StreamSplitter] = FrameSplitter
    ) -> None:
        self.name = name
        self.make_cutter = make_cutter
        self.address = Address("", 0)
        self.faults: list[ProxyFault] = []
        self.fired = 0
        """How often a fault took effect. A scenario whose fault has no effect proves nothing."""
        self._upstream = upstream
        self._links: set[ProxiedConnection] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        listener = listening_socket(Address(HOST, 0))
        self.address = address_of(listener)
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=READ_BYTES_MAX)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for link in self._links:
            link.abort()

    def put(self, text: str, seconds: float, patience_s: float) -> None:
        """Set a fault. It ends `seconds` after its first effect, or after `patience_s` without effect."""
        fault = ProxyFault.parse(text)
        fault.seconds = seconds
        self.faults.append(fault)
        asyncio.get_running_loop().call_later(patience_s, self._lift_unless_happened, fault)
        for link in list(self._links):
            self._meet(fault, link)

    def _meet(self, fault: ProxyFault, link: ProxiedConnection) -> None:
        """Apply a fault to a whole connection, if the fault is of this kind."""
        if fault.kind != "cut" and fault.kind not in PRESENT:
            return
        self._note_happened(fault)
        match fault.kind:
            case "cut":
                link.abort()
            case "half-close":
                link.end(fault.argument)
            case "late":
                link.is_late = True
                asyncio.get_running_loop().call_later(GATHER_S, link.writers["down"].transport.abort)

    def _note_happened(self, fault: ProxyFault) -> None:
        self.fired += 1
        if not fault.has_happened:
            fault.has_happened = True
            asyncio.get_running_loop().call_later(fault.seconds, self._lift, fault)

    def _lift_unless_happened(self, fault: ProxyFault) -> None:
        if not fault.has_happened:
            self._lift(fault)

    def _lift(self, fault: ProxyFault) -> None:
        if fault in self.faults:
            self.faults.remove(fault)
        fault.ended.set()

    def lift_all(self) -> None:
        for fault in list(self.faults):
            self._lift(fault)

    # What happens to connections

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self._check_uncut()
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                other_reader, other = await asyncio.open_connection(*self._upstream(), limit=READ_BYTES_MAX)
            self._check_uncut()  # a cut may have been set while the connection was opened
        except (OSError, TimeoutError, ValueError):
            writer.transport.abort()
            return
        link = ProxiedConnection(self, writer, other)
        self._links.add(link)
        for fault in self.faults:
            if fault.kind in PRESENT and not fault.has_happened:
                self._meet(fault, link)  # there was no connection when the fault was set
        try:
            await asyncio.gather(link.forward("up", reader), link.forward("down", other_reader))
        except asyncio.CancelledError:
            link.abort()  # the proxies are closed
        finally:
            self._links.discard(link)
            for end in (writer, other):
                end.close()

    def _check_uncut(self) -> None:
        for fault in self.faults:
            if fault.kind == "cut":
                self._note_happened(fault)
                raise ConnectionResetError("cut")

    async def await_faults(self, link: ProxiedConnection) -> None:
        """Wait as long as the faults require."""
        for fault in list(self.faults):
            if fault.kind == "silent":
                self._note_happened(fault)
                await fault.ended.wait()
            elif fault.kind == "delay":
                self._note_happened(fault)
                await asyncio.sleep(float(fault.argument))

    def apply_faults(self, piece: SplitFrame, direction: str) -> tuple[bytes, bool]:
        """Return the part of a frame that passes, and whether the connection is lost then."""
        for fault in [fault for fault in self.faults if fault.kind in ONCE]:
            if fault.argument not in (direction, piece.kind):
                continue
            self._note_happened(fault)
            self._lift(fault)
            match fault.kind:
                case "truncate":
                    return piece.data[: max(1, len(piece.data) // 2)], True
                case "corrupt":
                    return b"\xff\xff" + piece.data[2:], False
                case "cut-before":
                    return b"", True
                case "cut-after":
                    return piece.data, True
                case "swallow":
                    return b"", False
        return piece.data, False


class Proxies:
    """Runs proxies in a thread. A context manager; its methods may be called from any thread."""

    def __init__(self, *proxies: Proxy) -> None:
        self._proxies = {proxy.name: proxy for proxy in proxies}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        for proxy in self._proxies.values():
            asyncio.run_coroutine_threadsafe(proxy.open(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for proxy in self._proxies.values():
            proxy.lift_all()
            proxy.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def address(self, name: str) -> Address:
        return self._proxies[name].address

    def put(self, name: str, fault: str, seconds: float, patience_s: float) -> None:
        """Set a fault. It is active when this returns."""
        ProxyFault.parse(fault)
        self._in_loop(lambda: self._proxies[name].put(fault, seconds, patience_s))

    def lift_all(self) -> None:
        for proxy in self._proxies.values():
            self._in_loop(proxy.lift_all)

    def _in_loop(self, call: Callable[[], None]) -> None:
        async def do() -> None:
            call()

        asyncio.run_coroutine_threadsafe(do(), self._loop).result()

    def fired(self) -> dict[str, int]:
        return {name: proxy.fired for name, proxy in self._proxies.items()}
