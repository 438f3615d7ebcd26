"""A sink's server over real TCP, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from procession.address import Address, address_of, listening_socket
from procession.sdk.doubles import MemoryOutput, Worker
from procession.sdk.output import Wait
from procession.sdk.participant import SinkParticipant
from procession.sdk.sink_server import SinkServer
from procession.sdk.transaction_log import TransactionLog
from procession.wire.messages import Error


class Sink:
    """A running server whose outputs are in memory and whose transaction logs are on disk."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.outputs: dict[str, Any] = {}
        self.address = Address("127.0.0.1", 0)
        self.server: SinkServer | None = None

    def open_participant(self, instance: str, wait: Wait) -> SinkParticipant:
        txnlog = TransactionLog(self.directory / f"{instance}.txnlog")
        txnlog.open()
        return SinkParticipant(self.outputs.setdefault(instance, MemoryOutput()), txnlog, wait=wait)

    @asynccontextmanager
    async def serving(
        self,
        *,
        cookie: bytes = b"",
        sessions_max: int = 10,
        handshake_timeout_s: float = 5.0,
        frame_bytes_max: int = 10_000,
    ) -> AsyncIterator[asyncio.Task[None]]:
        self.server = server = SinkServer(
            self.open_participant,
            cookie=cookie,
            sessions_max=sessions_max,
            handshake_timeout_s=handshake_timeout_s,
            frame_bytes_max=frame_bytes_max,
        )
        with listening_socket(Address("127.0.0.1", 0)) as listener:
            self.address = address_of(listener)
            task = asyncio.create_task(server.serve(listener))
            try:
                yield task
            finally:
                task.cancel()
                await asyncio.wait([task])

    async def worker(self) -> Worker:
        return await Worker.connect(self.address)


async def refusal(worker: Worker) -> str:
    event = await worker.receive()
    while event and not isinstance(event, Error):
        event = await worker.receive()
    assert isinstance(event, Error), "the server sends the reason before it closes"
    assert await worker.receive() is None
    return event.reason
