"""Compiles expensive kernels in the background, once there is enough work to pay for it.

Invariant: a process with little work never pays, one with much work pays once, and nothing waits meanwhile. `gateway`
and `sdk`, which decode and encode many frames, count their work here and continue without kernels until they are ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

log = structlog.get_logger("readiness")


class Readiness:
    """Counts work, and calls `make_ready` once, in a thread, after this amount of it."""

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
        except Exception as error:  # without compiled kernels everything works, only slower
            log.warning("kernels.not_compiled", reason=str(error))
