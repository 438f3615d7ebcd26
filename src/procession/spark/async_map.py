"""The asynchronous map: calls a user's coroutine function for many records concurrently and keeps the records' order.

Invariant: there are never more than `concurrency` calls in flight, each call has a timeout, and the first failure
cancels the rest. A worker keeps one event loop for its lifetime, so a function can keep connections open between
batches. `operators/chain` is pure and gets `await_all` as an argument.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from procession.operators.chain import CallFailed


def await_all(
    function: Callable[[Any], Awaitable[Any]], values: list[Any], concurrency: int, timeout_s: float
) -> list[Any]:
    """Return the function's result for each value, in the order of the values.

    Raises `CallFailed` for the first call that fails."""
    return _runner().run(_all(function, values, concurrency, timeout_s))


async def _all(
    function: Callable[[Any], Awaitable[Any]], values: list[Any], concurrency: int, timeout_s: float
) -> list[Any]:
    results: list[Any] = [None] * len(values)
    waiting = iter(range(len(values)))

    async def worker() -> None:
        for row in waiting:  # all workers share the iterator: each takes the next row
            try:
                async with asyncio.timeout(timeout_s):
                    results[row] = await function(values[row])
            except TimeoutError as error:
                raise CallFailed(row, TimeoutError(f"it took longer than {timeout_s:g} s")) from error
            except Exception as error:  # the user's code may raise anything
                raise CallFailed(row, error) from error

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(values))):
                group.create_task(worker())
    except ExceptionGroup as failures:
        # If several calls failed, report the first one in the order of the records.
        failed = [error for error in failures.exceptions if isinstance(error, CallFailed)]
        raise min(failed, key=lambda error: error.row) from None
    return results


@functools.cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()
