"""Runs push sources: their inputs cannot be replayed, so records are kept until they are committed.

Invariant: records are lost only if the user accepts it. Either there is a spool on disk, which survives this process,
or the user chose --best-effort, and a log line reports what was lost. Used by `stdin_source` and `tcp_source`; built on
`sdk/push_source`.
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
from procession.sdk.push_source import BYTES_MAX, PushStream
from procession.sdk.source_options import SourceOptions
from procession.sdk.source_records import Stream

SPOOL_BYTES_MAX = 1024 * 1024 * 1024

log = structlog.get_logger()

Medium = Callable[[PushStream], Coroutine[Any, Any, None]]
"""Puts records into the stream, and returns at the end of the input. It is cancelled to stop earlier."""


@dataclass(frozen=True, slots=True)
class SpoolOptions:
    """Where and how records are kept until they are committed."""

    spool: Path | None = None
    is_best_effort: bool = False
    bytes_max: int | None = None
    """Maximum uncommitted bytes: reading pauses above this."""

    def open_stream(self, stream: str, medium: str) -> PushStream:
        if self.spool is None and not self.is_best_effort:
            raise UsageError(
                f"{medium} cannot be read twice: uncommitted records would be lost if this program died.",
                next_step="Use --spool DIR, to keep records on disk until they are committed; or --best-effort.",
            )
        if self.spool is not None and self.is_best_effort:
            raise UsageError("--spool and --best-effort exclude each other.", next_step="Use one of them.")
        if self.spool is not None:
            return PushStream(Stream.named(stream), Spool(self.spool), bytes_max=self.bytes_max or SPOOL_BYTES_MAX)
        return PushStream(Stream.named(stream), Buffer(), bytes_max=self.bytes_max or BYTES_MAX)


def run_pushed(pushed: PushStream, medium: Medium, to: str, options: SourceOptions, *, is_json: bool = False) -> bool:
    """Send the records of an input. Return True when it ends and all is committed, False if a signal comes first.

    Without a spool, the first signal only stops reading; a second signal, or the end of `stop_wait_s`, drops
    uncommitted records. An error of the input is raised when all records before it are committed.
    """
    reader = MediumReader(pushed, medium)
    try:
        on_stop = None if pushed.is_durable else reader.stop
        is_done = run_source(pushed, to, options, is_json=is_json, on_stop=on_stop, beside=reader.run)
    finally:
        if pushed.records and not pushed.is_durable:
            log.error("source.records_lost", records=pushed.records, detail="read but not committed")
        elif pushed.records:
            log.info("source.records_spooled", records=pushed.records)
        pushed.close()
    if reader.error:
        raise reader.error
    return is_done


def after_answer(medium: Medium) -> Medium:
    """Return a medium that is read only after a gateway has reported its number of records in the stream. A new spool
    is refused if the stream already has records, because the gateway would drop new records as duplicates."""

    async def take_in(pushed: PushStream) -> None:
        await pushed.committed()
        await medium(pushed)

    return take_in


class MediumReader:
    """Runs an input that puts records into a stream, until it ends, fails or is stopped."""

    def __init__(self, pushed: PushStream, medium: Medium) -> None:
        self.error: Exception | None = None
        self._pushed = pushed
        self._medium = medium
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        reader, stopped = loop.create_task(self._medium(self._pushed)), loop.create_task(self._stopped.wait())
        both: list[asyncio.Task[Any]] = [reader, stopped]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.wait(both)
        if not reader.cancelled():
            error = reader.exception()
            self.error = error if isinstance(error, Exception) else None
        self._pushed.end()

    def stop(self) -> None:
        self._stopped.set()
