"""Compiles expensive kernels in the background, once there is enough work to pay for it.

The one rule: a process that has little to do never pays, one with much to do pays once, and nobody waits meanwhile. The
rooms that decode and encode many frames (`gateway`, `sdk`) count their work here, and go on as they are until it is
done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

log = structlog.get_logger("readiness")


class Readiness:
    """Counts work, and calls `make_ready` in a thread, once, when there was so much of it."""

    def __init__(self, make_ready: Callable[[], None], *, after: int) -> None:
        self._make_ready = make_ready
        self._left = after

    def worked(self, amount: int) -> None:
        if self._left > 0:
            self._left -= amount
            if self._left <= 0:
                asyncio.get_running_loop().run_in_executor(None, self._try)

    def _try(self) -> None:
        try:
            self._make_ready()
        except Exception as error:  # whatever a compiler dislikes about this machine: we only go on more slowly
            log.warning("kernels.not_compiled", reason=str(error))
