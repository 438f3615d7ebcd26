"""Expensive kernels are compiled once, in the background, when there has been enough work."""

from __future__ import annotations

import asyncio
import threading

from procession.background_loading import Readiness


def test_kernels_are_compiled_once_in_a_thread_after_enough_work() -> None:
    threads: list[threading.Thread] = []

    async def work() -> None:
        readiness = Readiness(lambda: threads.append(threading.current_thread()), after=10)
        readiness.worked(9)
        assert not threads
        for _ in range(100):
            readiness.worked(9)

    asyncio.run(work())
    assert len(threads) == 1
    assert threads != [threading.main_thread()]


def test_a_failed_compilation_changes_nothing() -> None:
    def fail() -> None:
        raise RuntimeError("no such processor")

    async def work() -> None:
        Readiness(fail, after=1).worked(1)

    asyncio.run(work())
