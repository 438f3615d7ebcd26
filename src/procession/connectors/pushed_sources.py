"""Media that push: what is read from them is gone from them, so it is kept until it is committed.

The one rule: nobody loses records without having said so. Either there is a spool, and what is in it outlives this
process; or the user has asked for best effort, and is told at the end what was lost. Before it on the walk: stdin,
tcp_lines. After it: sdk/push_source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from procession.errors import UsageError
from procession.sdk.backlog import Buffer, Spool
from procession.sdk.connector_program import run_source
from procession.sdk.push_source import BYTES_MAX, Inlet
from procession.sdk.source_options import SourceOptions
from procession.sdk.source_records import Stream

SPOOL_BYTES_MAX = 1024 * 1024 * 1024

log = structlog.get_logger()

Medium = Callable[[Inlet], Coroutine[Any, Any, None]]
"""Puts what comes into the inlet, and returns if nothing more can come. Cancelled when it is to stop before."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """How records are kept that cannot be read again."""

    spool: Path | None = None
    is_best_effort: bool = False
    bytes_max: int | None = None
    """Nothing more is taken in while so much is not committed."""

    def inlet(self, stream: str, medium: str) -> Inlet:
        if self.spool is None and not self.is_best_effort:
            raise UsageError(
                f"{medium} cannot be read twice: what is on its way when this program dies would be lost.",
                next_step="Give --spool DIR, to keep records on disk until they are committed; or --best-effort.",
            )
        if self.spool is not None and self.is_best_effort:
            raise UsageError(
                "--spool loses nothing and --best-effort may.", next_step="Give one of --spool DIR and --best-effort."
            )
        if self.spool is not None:
            return Inlet(Stream.named(stream), Spool(self.spool), bytes_max=self.bytes_max or SPOOL_BYTES_MAX)
        return Inlet(Stream.named(stream), Buffer(), bytes_max=self.bytes_max or BYTES_MAX)


def run_pushed(inlet: Inlet, medium: Medium, to: str, options: SourceOptions, *, is_json: bool = False) -> bool:
    """Send what a medium brings, until it ends and all is committed (True), or a signal comes first (False).

    Without a spool, the first signal only ends the taking in; the second one, or the end of `stop_wait_s`, gives up
    what is not committed. What the medium raises is raised when all that came before is committed.
    """
    taking = Taking(inlet, medium)
    try:
        on_stop = None if inlet.is_durable else taking.stop
        is_done = run_source(inlet, to, options, is_json=is_json, on_stop=on_stop, beside=taking.run)
    finally:
        if inlet.records and not inlet.is_durable:
            log.error("source.records_lost", records=inlet.records, detail="taken in and not committed")
        elif inlet.records:
            log.info("source.records_spooled", records=inlet.records)
        inlet.close()
    if taking.error:
        raise taking.error
    return is_done


class Taking:
    """Lets a medium put into an inlet, until it ends, fails or is stopped."""

    def __init__(self, inlet: Inlet, medium: Medium) -> None:
        self.error: Exception | None = None
        self._inlet = inlet
        self._medium = medium
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        taking, stopped = loop.create_task(self._medium(self._inlet)), loop.create_task(self._stopped.wait())
        both: list[asyncio.Task[Any]] = [taking, stopped]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.wait(both)
        if not taking.cancelled():
            error = taking.exception()
            self.error = error if isinstance(error, Exception) else None
        self._inlet.end()

    def stop(self) -> None:
        self._stopped.set()
