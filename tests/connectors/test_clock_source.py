"""The clock source: times that only go forward."""

from __future__ import annotations

import asyncio
import json

from procession.connectors.clock_source import ClockSource
from procession.sdk.source_records import Stream


def test_a_tick_has_the_time_as_its_id_its_event_time_and_its_payload() -> None:
    source = ClockSource(1, lambda: 1_700_000_000_123_456_789, lambda: 7)
    assert source.tick() == (1_700_000_000_123, 1_700_000_000_123_000_000, b"", b"1700000000.123")
    assert json.loads(source.tick()[3]) == 1_700_000_000.124


def test_the_time_follows_the_monotonic_clock_and_continues_after_the_last_commit() -> None:
    monotonic = iter([0, 5_000_000, 5_000_000])
    source = ClockSource(0.0, lambda: 1_000_000_000, lambda: next(monotonic))

    async def first(after: int | None) -> int:
        records = source.read(Stream.named("clock"), after)
        message_id = (await anext(records))[0]
        await records.aclose()  # type: ignore[attr-defined]
        return message_id

    assert asyncio.run(first(None)) == 1005
    assert asyncio.run(first(2000)) == 2001, "a clock that was set back does not repeat ids"
