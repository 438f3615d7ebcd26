"""Runs work that a cancellation must not interrupt."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


async def finished(work: Coroutine[Any, Any, None]) -> None:
    """Await the work to its end, even if the caller is cancelled. The cancellation takes effect afterwards. This is for
    work in a thread, which cannot be cancelled: the caller keeps its locks until the work is done."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise
