"""How a driver reaches an emitter: it starts a process on its machine, or connects to one that listens.

Invariant: `open` returns a connection whose next message is the driver's first request. An emitter that cannot be
reached raises OSError, and is tried again. A refusal raises ProcessionError, because a person must act,
or because another driver has taken over. Used by `commit/emitter_client`; the other sides are `commit/emitter_process`
and `commit/emitter_server`.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from typing import Protocol

import structlog

from procession.address import Address, notice_silence, send_at_once
from procession.commit.emitter_frames import (
    GREETING_BYTES_MAX,
    DriverGreeting,
    FrameReader,
    documents,
    read_reply,
    written_greeting,
)
from procession.commit.sink_link import LINGER_S
from procession.errors import RemoteProtocolError
from procession.tls import ClientTls, connect

log = structlog.get_logger("commit")

ANSWER_TIMEOUT_S = 10.0
"""Maximum time of a connection attempt, with the greeting."""
REPLY_BYTES_MAX = 16 * GREETING_BYTES_MAX

Connected = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class EmitterChannel(Protocol):
    """A way to one emitter."""

    name: str
    """The emitter, as in "the emitter at HOST:PORT"."""
    next_step: str
    """What a person can do if its sessions end again and again."""

    async def open(self) -> Connected: ...

    async def close(self) -> None:
        """Finish the session whose connection is closed."""


class StartedEmitter:
    """A process that is started for each session, and ends with it."""

    name = "the emitter process"
    next_step = "Its log says why. Set emitters to 0 to send from the driver."

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    async def open(self) -> Connected:
        self.process, here = _started()
        log.info("emitter.started", pid=self.process.pid)
        return await asyncio.open_connection(sock=here)

    async def close(self) -> None:
        """Wait until the process has ended. It first sends its buffered data."""
        process = self.process
        if process is None:
            return
        wait = asyncio.get_running_loop().run_in_executor(None, process.wait)
        try:
            await asyncio.wait_for(asyncio.shield(wait), LINGER_S)
        except TimeoutError:
            process.kill()
            await wait
        log.info("emitter.ended", pid=process.pid, status=process.returncode)


def _started() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process. Returns it, and the socket that leads to it."""
    here, there = socket.socketpair()
    with there:
        argv = [sys.executable, "-m", "procession.commit.emitter_process", str(there.fileno())]
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=(there.fileno(),)), here


class ListeningEmitter:
    """An emitter that runs for itself, on any machine (`procession emitter`)."""

    next_step = "Its log says why. Set neither emitters nor emitters_at to send from the driver."

    def __init__(self, address: Address, greeting: DriverGreeting, tls: ClientTls | None = None) -> None:
        self.name = f"the emitter at {address}"
        self._address = address
        self._greeting = greeting
        self._tls = tls

    async def open(self) -> Connected:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            reader, writer = await connect((self._address.host, self._address.port), self._tls)
            try:
                connected = writer.get_extra_info("socket")
                notice_silence(connected)
                send_at_once(connected)
                writer.write(written_greeting(self._greeting))
                await self._greeted(reader)
            except BaseException:
                writer.close()
                raise
        log.info("emitter.connected", address=str(self._address))
        return reader, writer

    async def _greeted(self, reader: asyncio.StreamReader) -> None:
        try:
            # The emitter sends nothing more before the first request.
            async for document in documents(reader, FrameReader(REPLY_BYTES_MAX)):
                if (refusal := read_reply(document)) is not None:
                    raise refusal
                return
        except RemoteProtocolError as error:
            raise ConnectionError(error.sentence) from error
        raise ConnectionError("it closed the connection")

    async def close(self) -> None:
        log.info("emitter.disconnected", address=str(self._address))
