"""The socket of a sink's session has one bounded buffer and handles every end of a connection."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from procession.sdk.session_stream import BUFFER_BYTES_MAX, BUFFER_BYTES_MIN, SessionStream
from tests.sdk.loops import on_a_loop

WRITE_BYTES_MAX = 64 * 1024


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[SessionStream, socket.socket]]:
    """Yield a stream and the blocking socket of its peer."""
    streams: asyncio.Queue[SessionStream] = asyncio.Queue()
    peer, ours = socket.socketpair()
    loop = asyncio.get_running_loop()
    await loop.connect_accepted_socket(lambda: SessionStream(streams.put, WRITE_BYTES_MAX), ours)
    stream = await streams.get()
    try:
        yield stream, peer
    finally:
        stream.transport.abort()
        peer.close()


@on_a_loop
async def test_all_bytes_arrive_in_their_order_and_the_end_is_empty() -> None:
    data = bytes(range(256)) * (5 * BUFFER_BYTES_MAX // 256)
    async with connected() as (stream, peer):

        def send() -> None:
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)

        sending = asyncio.create_task(asyncio.to_thread(send))
        received = bytearray()
        while view := await stream.read():
            received += view
            assert len(view) <= BUFFER_BYTES_MAX
        await sending
        assert received == data
        assert not await stream.read()


@on_a_loop
async def test_an_unread_stream_takes_one_buffer() -> None:
    async with connected() as (stream, peer):
        peer.setblocking(False)
        sent = 0
        is_full = False
        while not is_full:
            try:
                sent += peer.send(bytes(BUFFER_BYTES_MIN))
            except BlockingIOError:
                # The kernel's buffers are full. If the loop reads nothing in this turn, it reads nothing later, either.
                await asyncio.sleep(0)
                is_full = not stream.transport.is_reading()
        assert len(await stream.read()) == BUFFER_BYTES_MIN
        assert stream.transport.is_reading()
        assert len(await stream.read()) <= 2 * BUFFER_BYTES_MIN
        assert sent < 64 * BUFFER_BYTES_MAX


@on_a_loop
async def test_our_half_stays_open_when_the_peer_has_ended_its_half() -> None:
    async with connected() as (stream, peer):
        peer.shutdown(socket.SHUT_WR)
        assert not await stream.read()
        stream.transport.write(b"a last word")
        await stream.drain()
        assert await asyncio.to_thread(peer.recv, 100) == b"a last word"


@on_a_loop
async def test_a_lost_connection_is_an_error_for_reader_and_writer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        streams: asyncio.Queue[SessionStream] = asyncio.Queue()
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: SessionStream(streams.put, WRITE_BYTES_MAX), accepted
        )
        stream = await streams.get()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        with pytest.raises(ConnectionResetError):
            await stream.read()
        with pytest.raises(ConnectionResetError):
            await stream.drain()


@on_a_loop
async def test_a_writer_waits_for_a_peer_that_does_not_read() -> None:
    async with connected() as (stream, peer):
        stream.transport.write(bytes(16 * BUFFER_BYTES_MAX))
        draining = asyncio.create_task(stream.drain())
        await asyncio.sleep(0)
        assert not draining.done()

        def receive() -> int:
            received = 0
            while received < 16 * BUFFER_BYTES_MAX:
                received += len(peer.recv(BUFFER_BYTES_MAX))
            return received

        await asyncio.to_thread(receive)
        await draining
