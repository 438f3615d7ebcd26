"""A connector as a program: one coroutine on a fast loop, stopped cleanly by SIGTERM or SIGINT.

Invariant: a signal cancels the coroutine, so its `finally` blocks run and close what is open. Runs `sdk/source_client`
and `sdk/sink_server` for the command line.
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import structlog
import uvloop

from procession.allocation import keep_memory
from procession.sdk.source_client import SourceClient
from procession.sdk.source_options import SourceOptions
from procession.sdk.source_records import Source
from procession.sdk.source_report import SourceReporter
from procession.sdk.source_share import SharedSource

Result = TypeVar("Result")

log = structlog.get_logger()

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_source(
    source: Source,
    to: str,
    options: SourceOptions,
    *,
    is_json: bool = False,
    on_stop: Callable[[], object] | None = None,
    beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> bool:
    """Send all records of a source, and print progress to standard error.

    Args:
        source: The source.
        to: Address of the gateway, HOST:PORT.
        options: The options of the source.
        is_json: Print JSON objects instead of text.
        on_stop: Called at the first signal, so that the source can end by itself. A second signal, or the end of
            `stop_wait_s`, stops the source. Without `on_stop`, the first signal stops the source.
        beside: A coroutine function that runs on the same loop until the source has ended.

    Returns:
        True when all records are committed, False if a signal came first.
    """
    if options.share is not None:
        source = SharedSource(source, options.share)
    reporter = SourceReporter(is_json=is_json, beside=options.report)
    client = SourceClient(source, to, replace(options, report=reporter))
    try:
        return run_program(_all_of(client, beside), on_stop, options.stop_wait_s) is True
    finally:
        reporter.close()


async def _all_of(client: SourceClient, beside: Callable[[], Coroutine[Any, Any, None]] | None) -> bool:
    helper = asyncio.get_running_loop().create_task(beside()) if beside else None
    try:
        await client.run()
    finally:
        if helper:
            helper.cancel()
            await asyncio.wait([helper])
    return True


def run_program(
    main: Coroutine[Any, Any, Result], on_stop: Callable[[], object] | None = None, stop_wait_s: float = math.inf
) -> Result | None:
    """Run the coroutine. Returns its result, or None if a signal stopped it."""
    keep_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_until_stopped(main, on_stop, stop_wait_s))


async def _until_stopped(
    main: Coroutine[Any, Any, Result], on_stop: Callable[[], object] | None, stop_wait_s: float
) -> Result | None:
    loop = asyncio.get_running_loop()
    task = loop.create_task(main)
    gentle = [on_stop] if on_stop else []

    def stop() -> None:
        if not gentle:
            task.cancel()
            return
        detail = "takes no new records; sends the others until all are committed or the next signal comes"
        log.warning("program.stopping", wait_s=stop_wait_s, detail=detail)
        gentle.pop()()
        if math.isfinite(stop_wait_s):
            loop.call_later(stop_wait_s, give_up)

    def give_up() -> None:
        if not task.done():
            log.warning("program.wait_expired", waited_s=stop_wait_s, detail="gives up unacknowledged records")
            task.cancel()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        return await task
    except asyncio.CancelledError:
        return None
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
