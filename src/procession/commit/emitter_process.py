"""The emitter process of a driver on this machine: one session, over a socket that the process inherits.

Invariant: this process ends when its driver ends, or with the error of its session. Then the driver starts another one
(`commit/emitter_channel`). `commit/emitter_session` does the work.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys

from procession.commit.emitter_frames import documents
from procession.commit.emitter_session import EmitterSession
from procession.log_format import configure


async def serve(descriptor: int) -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    await EmitterSession(writer).serve(documents(reader))


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with its driver, which first ends the round
    configure("info")
    asyncio.run(serve(int(sys.argv[1])))
