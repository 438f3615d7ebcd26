"""The asynchronous map: a user's coroutine function on many records at a time, results in the order of the records.

The one rule: never more calls under way than allowed, none longer than allowed, and the first that fails ends them all.
One event loop for the life of a worker, so that a function may keep its connections open between batches. Before it
`operators/chain`, which is pure and is handed `await_all`; after it whatever service the function asks.
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
    """The function's result for each value, in their order. Raises `CallFailed` for the first call that fails."""
    return _runner().run(_all(function, values, concurrency, timeout_s))


async def _all(
    function: Callable[[Any], Awaitable[Any]], values: list[Any], concurrency: int, timeout_s: float
) -> list[Any]:
    results: list[Any] = [None] * len(values)
    waiting = iter(range(len(values)))

    async def work() -> None:
        for row in waiting:  # shared: each takes the next that nobody has
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
                group.create_task(work())
    except ExceptionGroup as failures:
        # Of several that failed at once, the first in the order of the records.
        failed = [error for error in failures.exceptions if isinstance(error, CallFailed)]
        raise min(failed, key=lambda error: error.row) from None
    return results


@functools.cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()
