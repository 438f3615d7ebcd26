"""Sends the live feed of the page: one reader takes snapshots at an interval for all clients.

Invariant: snapshots are taken only while a client is connected. There are at most `CLIENTS_MAX` clients. A slow
client skips snapshots, because they are not queued. Epochs have ids, so a client that reconnects with Last-Event-ID
gets the missed epochs that are still stored.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from procession.errors import ProcessionError
from procession.monitoring.epoch_history import phases_of
from procession.monitoring.pipeline_snapshot import PipelineSnapshots

CLIENTS_MAX = 32
"""Maximum number of open pages."""
INTERVAL_S = 1.0
"""Time between two snapshots."""
MISSED_MAX = 500
"""Maximum number of missed epochs that a client gets after it reconnects."""


class SnapshotFeed:
    """Sends snapshots to clients. `is_full` if no further client is accepted."""

    def __init__(self, snapshots: PipelineSnapshots) -> None:
        self.snapshots = snapshots
        self.lock = asyncio.Lock()
        """Held while the reader reads, because the reader is not thread-safe."""
        self._clients = 0
        self._latest: dict[str, Any] = {}
        self._number = 0
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        return self._clients >= CLIENTS_MAX

    async def take(self) -> dict[str, Any]:
        """Take a snapshot and return it."""
        async with self.lock:
            taking = asyncio.ensure_future(asyncio.to_thread(self.snapshots.take))
            try:
                return await asyncio.shield(taking)
            except asyncio.CancelledError:
                await asyncio.wait([taking])  # the thread continues, and the next one must not begin before it ends
                raise
            except Exception as error:  # otherwise an unreadable file would end the feed of all pages
                return {"error": error.sentence if isinstance(error, ProcessionError) else repr(error)}

    async def events(self, last_id: str) -> AsyncIterator[dict[str, str]]:
        """Yield the events for one client, until it disconnects. `last_id` is the id of the client's last epoch."""
        self._clients += 1
        try:
            if self._task is None:
                self._task = asyncio.create_task(self._read())
            seen, epoch = 0, _epoch_of(last_id, self.snapshots.check.checkpoint)
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda seen=seen: self._number > seen)  # type: ignore[misc]
                    seen, latest = self._number, self._latest
                missed = [line for line in list(self.snapshots.recent.lines) if line["epoch"] > epoch][-MISSED_MAX:]
                if missed:
                    epoch = missed[-1]["epoch"]
                    yield {
                        "event": "epochs",
                        "id": f"{self.snapshots.check.checkpoint}:{epoch}",
                        "data": json.dumps([_point(line) for line in missed]),
                    }
                yield {"event": "snapshot", "data": json.dumps(latest)}
        finally:
            self._clients -= 1
            if not self._clients and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _read(self) -> None:
        while True:
            latest = await self.take()
            async with self._changed:
                self._latest, self._number = latest, self._number + 1
                self._changed.notify_all()
            await asyncio.sleep(INTERVAL_S)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task


def _epoch_of(last_id: str, checkpoint: str) -> int:
    """Return the epoch in the id of an event. -1 if the id is invalid or of another pipeline."""
    known, _, epoch = last_id.rpartition(":")
    return int(epoch) if known == checkpoint and epoch.isdecimal() and len(epoch) < 19 else -1


def _point(line: dict[str, Any]) -> dict[str, Any]:
    return {
        "epoch": line["epoch"],
        "at_s": round(line["committed_ns"] / 1e9, 3),
        "records": line["records"],
        "phases": phases_of(line),
        "aborts": line.get("aborts", 0),
        "fence": line["fence"],
    }
