"""The clock source: sends the time at an interval, so that ticks are records in the log.

Invariant: the time never goes back, even if the machine's clock does: message ids are milliseconds and increase. A
tick that was lost is not sent again; the next one has a later time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from procession.planner.connector_registry import CLOCK_STREAM
from procession.sdk.source_records import Record, Stream

MS = 1_000_000
"""Nanoseconds in a millisecond."""


class ClockSource:
    """One stream of ticks. A payload is the time in seconds, as JSON."""

    def __init__(
        self,
        interval_s: float,
        now_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._interval_s = interval_s
        self._monotonic_ns = monotonic_ns
        self._offset_ns = now_ns() - monotonic_ns()
        self._last = 0

    def streams(self) -> list[Stream]:
        return [Stream.named(CLOCK_STREAM)]

    async def read(self, _: Stream, after: int | None) -> AsyncIterator[Record]:
        self._last = max(self._last, after or 0)
        while True:
            yield self.tick()
            await asyncio.sleep(self._interval_s)

    def tick(self) -> Record:
        """Return a record with the current time, which is later than that of the last record."""
        self._last = max(self._last + 1, (self._offset_ns + self._monotonic_ns()) // MS)
        return self._last, self._last * MS, b"", b"%d.%03d" % divmod(self._last, 1000)
