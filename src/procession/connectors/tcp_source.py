"""The TCP source: accepts connections and sends each line as a record.

Invariant: a bad peer loses only its own connection, and a connection buffers at most one line and one read. Lines of a
connection keep their order; all connections form one stream in arrival order.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass

import numpy as np
import structlog

from procession.address import address_of, notice_silence
from procession.connectors.framing import LineFraming
from procession.errors import ProcessionError
from procession.sdk.push_source import PushStream
from procession.sdk.source_records import Batch

READ_BYTES_MAX = 64 * 1024
LINE_BYTES_MAX = 64 * 1024
CONNECTIONS_MAX = 256

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TcpMedium:
    """The input of the TCP source: a listening socket."""

    listener: socket.socket
    line_bytes_max: int = LINE_BYTES_MAX
    connections_max: int = CONNECTIONS_MAX

    async def take_in(self, pushed: PushStream) -> None:
        """Put the lines of every connection into the stream, until cancelled."""
        connections: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            try:
                if len(connections) > self.connections_max:
                    log.warning("source.connections_exceeded", connections_max=self.connections_max)
                else:
                    await self._take_lines(reader, writer, pushed)
            except OSError as error:
                log.info("source.connection_lost", reason=str(error))
            except ProcessionError:
                pass  # the stream accepts no more records: its reader reports the reason, and the program exits
            except asyncio.CancelledError:
                pass  # the source stops
            finally:
                connections.discard(task)
                writer.close()

        server = await asyncio.start_server(accept, sock=self.listener, limit=READ_BYTES_MAX)
        log.info("source.listening", address=str(address_of(self.listener)))
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            server.close()
            for task in connections:
                task.cancel()
            if connections:
                await asyncio.wait(connections)

    async def _take_lines(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pushed: PushStream) -> None:
        with contextlib.suppress(OSError):
            notice_silence(writer.get_extra_info("socket"))
        lines, rest, position = LineFraming(), b"", 0
        is_end = False
        while not is_end:
            data = await reader.read(READ_BYTES_MAX)
            is_end = not data
            rest += data
            cut = lines.cut(rest, is_end=is_end)
            if len(cut):
                ids = (cut.starts + position).astype(np.uint64)
                await pushed.put(Batch(ids, np.zeros(len(cut), np.int64), cut.payloads))
                rest, position = rest[cut.end :], position + cut.end
            if len(rest) > self.line_bytes_max:
                log.warning("source.line_too_long", line_bytes_max=self.line_bytes_max)
                return
