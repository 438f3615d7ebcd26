"""A connector as a program: one coroutine on a fast loop, stopped cleanly by SIGTERM or SIGINT.

The one rule: a signal cancels the coroutine, so that its `finally` blocks run; nothing is left half closed. Before it
on the walk: the command line. After it: sdk/source and sdk/sink.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

Result = TypeVar("Result")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_program(main: Coroutine[Any, Any, Result]) -> Result | None:
    """What the coroutine returns, or None if a signal stopped it first."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_until_stopped(main))


async def _until_stopped(main: Coroutine[Any, Any, Result]) -> Result | None:
    loop = asyncio.get_running_loop()
    task = loop.create_task(main)
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return None
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
