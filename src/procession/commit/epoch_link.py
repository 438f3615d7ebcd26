"""A connection to a sink, as the performer uses it: it gets runs and sends their records.

Invariant: the round does not depend on the process that reads the runs. `DirectLink` reads them in this process. An
`EmitterLink` (`commit/emitter_client`) passes them to another process, which has a `DirectLink`. `commit/performer`
uses the links; `commit/sink_link` connects to the sinks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import aclosing
from typing import Protocol

from procession.commit.emitter import ConnectionRuns, emission
from procession.commit.read_ahead import in_turn, read_ahead
from procession.commit.round_events import EmitEpoch, Event
from procession.commit.sink_link import SinkLink, SinkOptions
from procession.storage.run_store import Runs

Report = Callable[[Event], None]
Say = Callable[[str], None]


class EpochLink(Protocol):
    """One connection. The methods are those of `SinkLink`, except that `emit` takes runs."""

    options: SinkOptions

    async def run(self) -> None: ...

    async def emit(self, action: EmitEpoch, given: ConnectionRuns) -> None: ...

    def phase2(self, txn: str, commit: bool) -> None: ...

    def reconnect(self, delay_s: float) -> None: ...

    def workers_left(self, names: tuple[str, ...]) -> None: ...


class DirectLink:
    """A connection of this process, and the store with its runs. With `is_remote`, a thread reads the runs, because
    reading waits for other machines."""

    def __init__(self, link: SinkLink, runs: Runs, *, is_remote: bool = False) -> None:
        self.options = link.options
        self._link = link
        self._runs = runs
        self._is_remote = is_remote
        self.run, self.phase2 = link.run, link.phase2
        self.reconnect, self.workers_left = link.reconnect, link.workers_left

    async def emit(self, action: EmitEpoch, given: ConnectionRuns) -> None:
        messages = emission(self._runs, action, given, self.options)
        async with aclosing(read_ahead(messages) if self._is_remote else in_turn(messages)) as pieces:
            await self._link.emit(action, pieces)


LinkMaker = Callable[[SinkOptions, Report, Say], EpochLink]
"""Makes the link of a connection. The functions receive its events and its sentences for people."""


def direct_links(
    runs: Runs, uniform: Callable[[float, float], float] = random.uniform, *, is_remote: bool = False
) -> LinkMaker:
    """Return a maker of connections in this process. `uniform` draws times to wait."""
    return lambda options, report, say: DirectLink(SinkLink(options, report, say, uniform), runs, is_remote=is_remote)
