"""What the two PostgreSQL sources have in common: a thread for the database, reconnection, and errors as sentences.

Invariant: all calls of the database run in one thread. A lost connection is opened again, and the source goes on from
its position; any other error of the database ends it with a sentence. Upstream: `connectors/postgres_source` and
`connectors/postgres_polling`; downstream: `sdk/push_source`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import psycopg
import structlog

from procession.connectors.postgres_connection import explained, is_lost, place
from procession.sdk.push_source import PushStream

log = structlog.get_logger()

Result = TypeVar("Result")


class PostgresMedium(ABC):
    """A medium for `run_pushed`: puts what it reads from the database into the backlog."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._thread = ThreadPoolExecutor(1, "postgres")

    @abstractmethod
    def begin(self) -> None:
        """Open the connection, and find out where the source is."""

    @abstractmethod
    async def step(self, pushed: PushStream) -> bool:
        """Read once. Return whether the source has reached its end."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def explain(self, error: psycopg.Error) -> Exception:
        """The error as a sentence."""
        return explained(error, place(self._url))

    def check(self) -> None:
        """Find out whether the source can work, before it is run. Raises what stops it."""
        try:
            self.begin()
        except psycopg.Error as error:
            raise self.explain(error) from error
        finally:
            self.close()

    async def take_in(self, pushed: PushStream) -> None:
        """Read until cancelled, or up to the end."""
        try:
            await self.call(self.begin)
            while True:
                try:
                    if await self.step(pushed):
                        return
                except psycopg.OperationalError as error:
                    if not is_lost(error):
                        raise
                    log.warning("source.connection_lost", reason=str(error).strip())
                    await self.call(self.begin)
        except psycopg.Error as error:
            raise self.explain(error) from error
        finally:
            self._thread.submit(self.close)
            self._thread.shutdown(wait=False)

    async def call(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Call a function in the thread of the database."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: function(*arguments))
