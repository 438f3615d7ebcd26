"""The emitter process: sends the runs of an epoch over its connections, on behalf of a driver.

Invariant: this process makes no decisions. The driver orders every phase 2, after it has read its fence. When the
driver ends, this process ends, too. Then the driver's successor decides the open votes, as for its own connections.
`commit/emitter_client` in the driver sends requests; `commit/sink_link` connects to the sinks.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from procession.commit.emitter_frames import (
    Answer,
    GatewaysLeft,
    LinkFailed,
    Notice,
    OpenAgain,
    OpenConnections,
    Request,
    SendDecision,
    SendRuns,
    documents,
    read_request,
    written_answer,
)
from procession.commit.epoch_link import EpochLink, direct_links
from procession.errors import LocalProtocolError, ProcessionError
from procession.log_format import configure
from procession.storage.run_store import RunStore


class EmitterProcess:
    """The connections of this process. `writer` leads to the driver."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._links: dict[str, EpochLink] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Carry out the driver's requests, until it closes the connection."""
        try:
            async for document in documents(reader):
                self._do(read_request(document))
        except ConnectionError:
            pass  # the driver has ended
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _do(self, request: Request) -> None:
        match request:
            case OpenConnections(runs, options):
                make = direct_links(RunStore(Path(runs)))
                for each in options:
                    link = self._links[each.name] = make(each, self._answer, self._say)
                    self._spawn(each.name, link.run())
            case SendRuns(action, given):
                self._spawn(action.sink, self._links[action.sink].emit(action, given))
            case SendDecision(sink, txn, commit):
                self._links[sink].phase2(txn, commit)
            case OpenAgain(sink, delay_s):
                self._links[sink].reconnect(delay_s)
            case GatewaysLeft(sink, names):
                self._links[sink].workers_left(names)

    def _say(self, sentence: str) -> None:
        self._answer(Notice(sentence))

    def _answer(self, answer: Any) -> None:
        written: Answer = answer
        self._writer.write(written_answer(written))

    def _spawn(self, sink: str, work: Coroutine[Any, Any, None]) -> None:
        async def watched() -> None:
            try:
                await work
            except ProcessionError as error:
                self._answer(LinkFailed(sink, error, isinstance(error, LocalProtocolError)))

        task = asyncio.create_task(watched())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug: this process ends, the driver starts another process, and both report it.
            asyncio.get_running_loop().stop()
            raise error


async def serve(descriptor: int) -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    await EmitterProcess(writer).serve(reader)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with its driver, which first ends the round
    configure("info")
    asyncio.run(serve(int(sys.argv[1])))
