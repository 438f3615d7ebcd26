"""Compiles expensive kernels in the background when there is enough work to pay for it.

Invariant: a process with little work never compiles, a process with much work compiles once, and no code waits for the
result. `gateway` and `sdk` decode and encode many frames. They count this work here and run without kernels until the
kernels are ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

log = structlog.get_logger("readiness")


class Readiness:
    """Counts work. After a given amount, calls `make_ready` once, in a thread."""

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
        except Exception as error:  # without compiled kernels everything works, but more slowly
            log.warning("kernels.not_compiled", reason=str(error))
