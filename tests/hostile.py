"""Hostile and broken peers: each is a coroutine that attacks an address on real sockets.

Invariant: an attack calls `at_height` once, at its peak, and then releases everything. The test passes what the server
must still do at that time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from procession.address import Address
from procession.wire import frame_codec, v3
from procession.wire.messages import Frame, Message, Notify, NotifyAck, Ok

AtHeight = Callable[[], Awaitable[None]]
Attack = Callable[[Address, bytes, AtHeight], Awaitable[None]]
"""An attack: its arguments are the address, the bytes of a valid HELLO, and `at_height`."""

AT_ONCE = 100
DEADLINE_S = 30.0
NOTIFY = v3.encode(Notify(7, "s", 0))
CROWD = 100
FEW = 10

SCANS: dict[str, bytes] = {
    "a browser": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a TLS client": bytes.fromhex("16030100dc010000d80303") + bytes(range(209)),
    "an SSH client": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a mail client": b"EHLO example.org\r\n",
    "a remote desktop": bytes.fromhex("030000130ee000000000000100080003000000"),
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "4 GiB": frame_codec.u32(2**32 - 1) + b"\x00" * 100,
    "a frame beyond the limit": frame_codec.u32(2**24 + 1),
    "a tag of nobody": frame_codec.frame(b"\x09"),
    "half a length": b"\x00\x00",
    "nothing": b"",
}


async def connected(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*address)


@contextlib.asynccontextmanager
async def crowd(address: Address, count: int) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    peers = await asyncio.gather(*(connected(address) for _ in range(count)))
    try:
        yield list(peers)
    finally:
        for _, writer in peers:
            writer.transport.abort()


def opened_and_dropped(count: int) -> Attack:
    """Return an attack that opens `count` connections, a hundred at a time, and closes, resets or abandons them within
    a frame."""

    async def attack(address: Address, hello: bytes, at_height: AtHeight) -> None:
        turns = asyncio.Semaphore(AT_ONCE)
        tasks = [asyncio.create_task(one(number, address, hello, turns)) for number in range(count)]
        await tasks[count // 2]
        await at_height()
        await asyncio.gather(*tasks)

    async def one(number: int, address: Address, hello: bytes, turns: asyncio.Semaphore) -> None:
        async with turns:
            with contextlib.suppress(OSError):
                _, writer = await connected(address)
                writer.write((b"", hello, hello[:-3], b"\x00\x00")[number % 4])
                if number % 3:
                    opened: socket.socket = writer.get_extra_info("socket")
                    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.close()

    return attack


async def slow_loris(address: Address, hello: bytes, at_height: AtHeight) -> None:
    """Send the greeting of many peers one byte at a time, and never complete it."""

    async def drip(writer: asyncio.StreamWriter, word: bytes) -> None:
        with contextlib.suppress(OSError):
            for letter in word:
                writer.write(bytes([letter]))
                await writer.drain()
                await asyncio.sleep(0.01)

    async with crowd(address, CROWD) as peers:
        dripping = [asyncio.create_task(drip(writer, hello[:-1])) for _, writer in peers]
        await at_height()
        for task in dripping:
            task.cancel()
        await asyncio.wait(dripping)


async def strangers(address: Address, hello: bytes, at_height: AtHeight) -> None:
    """Send what port scanners and clients of other services send. The server answers each with an ERROR or closes
    it."""

    async def one(probe: bytes) -> None:
        reader, writer = await connected(address)
        with contextlib.suppress(OSError):
            writer.write(probe)
            await heard_out(reader)
        writer.close()

    tasks = [asyncio.create_task(one(probe)) for probe in SCANS.values() for _ in range(3)]
    await at_height()
    await asyncio.gather(*tasks)


async def greeted_twice(address: Address, hello: bytes, at_height: AtHeight) -> None:
    async with crowd(address, FEW) as peers:
        for _, writer in peers:
            writer.write(hello + hello)
        await at_height()
        # A sink closes the older sessions of an instance without a frame; the latest gets the reason.
        heard = [await heard_out(reader) for reader, _ in peers]
        assert any(b"Hello from the initiator" in answer for answer in heard)


async def overspending(address: Address, hello: bytes, at_height: AtHeight) -> None:
    """Greet, open a stream, and send more messages than the credits allow."""
    async with crowd(address, FEW) as peers:
        for stream_id, (reader, writer) in enumerate(peers, start=100):
            writer.write(hello)
            await reader.readexactly(len(v3.encode(Ok(0))))
            writer.write(v3.encode(Notify(stream_id, "s", 0)))
            await reader.readexactly(len(v3.encode(NotifyAck(True, stream_id, 0))))
            writer.write(b"".join(v3.encode(Message(stream_id, number, 0, b"", b"x")) for number in range(5000)))
        await at_height()
        for reader, _ in peers:
            assert b"credits overspent" in await heard_out(reader)


def never_reading(frame: Frame) -> Attack:
    """Greet, send requests without end, and never read an answer."""

    async def attack(address: Address, hello: bytes, at_height: AtHeight) -> None:
        async with crowd(address, 4) as peers:
            for _, writer in peers:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(hello)
            asking = [asyncio.create_task(ask(writer)) for _, writer in peers]
            await at_height()
            for task in asking:
                task.cancel()
            await asyncio.wait(asking)

    async def ask(writer: asyncio.StreamWriter) -> None:
        many = v3.encode(frame) * 2000
        with contextlib.suppress(OSError):
            while not writer.is_closing():
                writer.write(many)
                await writer.drain()

    return attack


async def staying(address: Address, hello: bytes, at_height: AtHeight) -> None:
    """Send garbage from many peers, which get an error and stay connected."""
    async with crowd(address, CROWD) as peers:
        for _, writer in peers:
            writer.write(bytes(64))
        await at_height()


async def half_open(address: Address, hello: bytes, at_height: AtHeight) -> None:
    """Close one direction of many connections before or after the greeting, and never close the other."""
    async with crowd(address, CROWD) as peers:
        for number, (_, writer) in enumerate(peers):
            with contextlib.suppress(OSError):  # the server may have closed it already
                writer.write(hello if number % 2 else hello[:5])
                writer.write_eof()
        await at_height()


async def heard_out(reader: asyncio.StreamReader) -> bytes:
    """Return everything that the server sends until it closes the connection."""
    heard = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(20):
            while piece := await reader.read(65536):
                heard += piece
    return heard


# Resources of a process


def until(is_so: Callable[[], bool]) -> bool:
    """Poll until the condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_so()


def sockets(pid: int) -> int:
    """Return the number of sockets of a process. Files are not counted, because segments are opened and closed."""
    count = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            count += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
    return count


def memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
