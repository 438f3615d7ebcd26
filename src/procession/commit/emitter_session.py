"""An emitter's session with a driver: opens the connections that the driver names, and sends what the driver orders.

Invariant: a session makes no decisions. The driver orders every phase 2, after it has read its fence. When the driver's
connection ends, the session closes its connections to the sinks; then the driver, or its successor, decides the open
votes as for its own connections. An error in a session ends only the session. `commit/emitter_process` and
`commit/emitter_server` serve sessions; `commit/emitter_client` is the driver's side.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from procession import faults
from procession.commit.emitter_frames import (
    RUNS_IDENTITY,
    Answer,
    GatewaysLeft,
    LinkFailed,
    Notice,
    OpenAgain,
    OpenConnections,
    Request,
    RunPlace,
    SendDecision,
    SendRuns,
    read_request,
    written_answer,
)
from procession.commit.epoch_link import EpochLink, LinkMaker, direct_links
from procession.commit.round_events import VoteReceived
from procession.errors import ConfigError, LocalProtocolError, ProcessionError, RemoteProtocolError
from procession.storage.host_runs import DIRECTORY_VARIABLE
from procession.storage.run_store import RunStore


def links_at(place: RunPlace) -> LinkMaker:
    """Return a maker of connections that send runs of this place. Runs on other machines are fetched, those on this
    machine are mapped. Raises ConfigError if the runs are in a directory that is not the driver's."""
    if place.hosts is None:
        _check_directory(place)
        return direct_links(RunStore(Path(place.directory)))
    has_service = bool(os.environ.get(DIRECTORY_VARIABLE))
    runs = place.hosts.store() if has_service else RunStore(Path(place.directory), remote=place.hosts)
    return direct_links(runs, is_remote=True)


def _check_directory(place: RunPlace) -> None:
    found = ""
    with suppress(OSError):
        found = (Path(place.directory) / RUNS_IDENTITY).read_text()
    if place.identity and found != place.identity:
        raise ConfigError(
            f"The emitter cannot read the runs of the driver in {place.directory}.",
            next_step="Use --host-services, or give --runs a directory that both machines have at the same path.",
        )


def as_asked(request: OpenConnections) -> OpenConnections:
    return request


class EmitterSession:
    """The connections of one driver. `writer` leads to the driver. `adapted` changes paths and names in the driver's
    first request to those of this machine, or raises the error that makes the pipeline stop."""

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        adapted: Callable[[OpenConnections], OpenConnections] = as_asked,
        links: Callable[[RunPlace], LinkMaker] = links_at,
    ) -> None:
        self._writer = writer
        self._adapted = adapted
        self._links_at = links
        self._links: dict[str, EpochLink] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self, requests: AsyncIterator[Mapping[str, Any]]) -> None:
        """Carry out the driver's requests, until it closes the connection. Raises the error that ends the session
        before: RemoteProtocolError if a request is invalid."""
        reading = asyncio.ensure_future(self._read(requests))
        try:
            await asyncio.wait((reading, self._failure), return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            await reading
        finally:
            for task in (reading, *self._tasks):
                task.cancel()
            await asyncio.gather(reading, *self._tasks, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[Mapping[str, Any]]) -> None:
        with suppress(ConnectionError):  # the driver has ended
            async for document in requests:
                self._do(read_request(document))

    def _do(self, request: Request) -> None:
        match request:
            case OpenConnections():
                self._open(request)
            case SendRuns(action, given):
                self._spawn(action.sink, self._link(action.sink).emit(action, given))
            case SendDecision(sink, txn, commit):
                faults.point("emitter:before-phase2")
                self._link(sink).phase2(txn, commit)
            case OpenAgain(sink, delay_s):
                self._link(sink).reconnect(delay_s)
            case GatewaysLeft(sink, names):
                self._link(sink).workers_left(names)

    def _open(self, request: OpenConnections) -> None:
        if self._links:
            raise RemoteProtocolError("A driver has opened its connections twice.")
        try:
            request = self._adapted(request)
            make = self._links_at(request.runs)
        except ProcessionError as error:
            for each in request.options:
                self._answer(LinkFailed(each.name, error))
            return
        for each in request.options:
            link = self._links[each.name] = make(each, self._answer, self._say)
            self._spawn(each.name, link.run())

    def _link(self, sink: str) -> EpochLink:
        if sink not in self._links:
            raise RemoteProtocolError(f"A request to an emitter is for the connection {str(sink)[:80]!r}, not opened.")
        return self._links[sink]

    def _say(self, sentence: str) -> None:
        self._answer(Notice(sentence))

    def _answer(self, answer: Any) -> None:
        if isinstance(answer, VoteReceived):
            faults.point("emitter:voted")
        written: Answer = answer
        if not self._writer.is_closing():
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
        if not task.cancelled() and (error := task.exception()) is not None and not self._failure.done():
            self._failure.set_exception(error)  # a bug: the driver connects again
