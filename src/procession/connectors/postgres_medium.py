"""Shared code of the two PostgreSQL sources: the session, its thread, reconnection, and errors as sentences.

Invariant: all calls of the database run in one thread. A lost connection is opened again, and the source continues
from its position; any other error of the database ends it with a sentence. Upstream: `connectors/postgres_source` and
`connectors/postgres_polling`; downstream: `sdk/push_source`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import psycopg
import structlog

from procession.connectors.postgres_connection import Session, connect, explained, is_lost, named, place
from procession.sdk.push_source import PushStream

log = structlog.get_logger()

Result = TypeVar("Result")


class SourceSession:
    """The session of a source, which can be opened again. All methods run in one thread."""

    def __init__(self, url: str, name: str, *, patience_s: float, lock_timeout_s: float) -> None:
        self._url, self._name = url, name
        self._patience_s, self._lock_timeout_s = patience_s, lock_timeout_s
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        assert self._session is not None, "it is open"
        return self._session

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Connect. The session stays open after the block, unless the block fails."""
        self.close()
        self._session = connect(
            self._url, f"source {self._name}", patience_s=self._patience_s, lock_timeout_s=self._lock_timeout_s
        )
        try:
            with named(self._url):
                yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


class PostgresMedium(ABC):
    """A medium for `run_pushed`: reads the database and puts the records into the spool."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._thread = ThreadPoolExecutor(1, "postgres")

    @abstractmethod
    def begin(self) -> None:
        """Open the connection and determine the source's position."""

    @abstractmethod
    async def step(self, pushed: PushStream) -> bool:
        """Read once. Return whether the source has reached its end."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def explain(self, error: psycopg.Error) -> Exception:
        """Return the error as a sentence."""
        return explained(error, place(self._url))

    def check(self) -> None:
        """Check that the source can run. Raises the error that would stop it."""
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
