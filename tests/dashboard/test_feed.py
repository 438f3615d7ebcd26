"""The live feed continues after an error, and never has two readers at a time."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from procession.dashboard import feed
from procession.dashboard.feed import SnapshotFeed


def feed_of(take: Callable[[], dict[str, Any]]) -> SnapshotFeed:
    snapshots: Any = SimpleNamespace(
        take=take, recent=SimpleNamespace(lines=[]), check=SimpleNamespace(checkpoint="one")
    )
    return SnapshotFeed(snapshots)


def test_a_snapshot_that_fails_does_not_end_the_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "INTERVAL_S", 0.01)
    answers: Iterator[Any] = iter([ValueError("torn"), {"pipeline": "orders"}])

    def take() -> dict[str, Any]:
        answer = next(answers, {"pipeline": "orders"})
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def run() -> list[Any]:
        events = feed_of(take).events("")
        try:
            return [json.loads((await asyncio.wait_for(anext(events), 10))["data"]) for _ in range(2)]
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    first, second = asyncio.run(run())
    assert "torn" in first["error"]
    assert second == {"pipeline": "orders"}


def test_a_cancelled_reader_ends_before_the_next_one_starts() -> None:
    begun, goes_on = threading.Event(), threading.Event()
    readers = most = 0

    def take() -> dict[str, Any]:
        nonlocal readers, most
        readers += 1
        most = max(most, readers)
        begun.set()
        goes_on.wait(10)
        readers -= 1
        return {}

    async def run() -> None:
        found = feed_of(take)
        first = asyncio.create_task(found.take())
        await asyncio.to_thread(begun.wait, 10)
        first.cancel()
        begun.clear()
        second = asyncio.create_task(found.take())
        assert not await asyncio.to_thread(begun.wait, 0.2)
        goes_on.set()
        assert await second == {}
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(run())
    assert most == 1
