"""A gateway with event-time order, for tests: real logs on a real disk and the real decisions. The test acts as the
sockets and the driver."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from procession.gateway.gateway_events import (
    EpochCommitted,
    FrameReceived,
    LeaderFound,
    SessionClosed,
    SessionOpened,
    StreamGranted,
    StreamRelinquished,
)
from procession.gateway.gateway_limits import Limits
from procession.gateway.gateway_options import GatewayConfig
from procession.gateway.performer import GatewayPerformer
from procession.merge.event_time import NO_REFERENCE, DeclaredOrder
from procession.storage.log_reader import LogReader
from procession.storage.segment import ORDERED
from procession.wire.draft_messages import AnyFrame
from procession.wire.messages import Ack, Eos, Hello, Messages, Notify, Ok

EVERYTHING = 1 << 40
PAYLOAD = b"x" * 100


class Client:
    """A producer's session, without a socket."""

    def __init__(self, site: Site, *streams: int, version: str = "0.0.1") -> None:
        self.site = site
        self.frames: list[AnyFrame] = []
        self.reason: str | None = None
        self.is_held = False
        self.unread: deque[Any] = deque()
        """Frames that it sent while the gateway did not read it."""
        self.spent = len(streams)
        self.number = site.gateway.join(self)
        site.gateway.handle(SessionOpened(self.number))
        self.receive(Hello(version, b"", "test", "test"))
        for stream_id in streams:
            self.receive(Notify(stream_id, f"stream {stream_id}", 0))

    def receive(self, what: Any) -> None:
        self.unread.append(what)
        self._read()

    def _read(self) -> None:
        while self.unread and not self.is_held:
            self.site.gateway.handle(FrameReceived(self.number, self.unread.popleft()))

    def send(self, frame: AnyFrame) -> None:
        self.frames.append(frame)

    def hold(self, is_held: bool) -> None:
        self.is_held = is_held
        self._read()

    def close(self, reason: str | None) -> None:
        self.reason = reason

    def die(self) -> None:
        self.site.gateway.leave(self.number)
        self.site.gateway.handle(SessionClosed(self.number))

    def records(self, stream_id: int, *records: tuple[int, int]) -> None:
        """Send records, given as pairs of message id and event time."""
        count = len(records)
        self.receive(
            Messages(
                np.full(count, stream_id, np.uint64),
                np.array([record for record, _ in records], np.uint64),
                np.array([time for _, time in records], np.int64),
                pa.array([b""] * count, pa.binary()),
                pa.array([PAYLOAD] * count, pa.binary()),
            )
        )

    def end(self, stream_id: int) -> None:
        self.receive(Eos(stream_id))

    @property
    def credits(self) -> int:
        """The number of credits granted so far."""
        return sum(frame.credits for frame in self.frames if isinstance(frame, Ok | Ack))

    @property
    def acked(self) -> dict[int, int]:
        return dict(pair for frame in self.frames if isinstance(frame, Ack) for pair in frame.positions)


class Site:
    """One gateway's directory, and the gateway that runs on it. The driver reads what it is offered."""

    def __init__(self, directory: Path, declared: DeclaredOrder, **limits: Any) -> None:
        self.config = GatewayConfig(
            directory, limits=Limits(**limits), declared=declared, segment_bytes_max=4096, append_delay_s=3600.0
        )
        self.rows: list[tuple[int, int, int]] = []
        """The rows that the driver has read: kind, stream id, message id."""
        self.positions: dict[int, int] = {}
        self.epochs = itertools.count()
        directory.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        self.gateway = GatewayPerformer(self.config)
        self.gateway.leader = self
        self.gateway.confirm()
        self.gateway.handle(LeaderFound())

    def ask(self, stream_id: int) -> None:
        """Grant the stream, because there is no other gateway."""
        self.gateway.handle(StreamGranted(stream_id, None))

    def relinquish(self, stream_id: int, committed: int | None, clock: object = None) -> None:
        self.gateway.handle(StreamRelinquished(stream_id))

    def end(self) -> None:
        """Close the logs. Rows that were not written yet are lost."""
        self.gateway.log.close()
        assert self.gateway.ordering is not None
        self.gateway.ordering.log.close()

    def kill(self) -> None:
        """Close the logs and start a new gateway on the directory."""
        self.end()
        self.start()

    async def read(self, records_max: int = 1_000_000) -> int:
        """Read one epoch up to its commit, and return its number of rows."""
        start = len(self.rows)
        end = await self.gateway.offer(1, start, records_max, EVERYTHING)
        for batch in LogReader(self.config.ordered_directory, ORDERED).read(start, end):
            for row in batch.to_pylist():
                self.rows.append((row["kind"], row["stream_id"], row["message_id"]))
                if row["reference"] != NO_REFERENCE:
                    self.positions[row["stream_id"]] = row["reference"]
        return end - start

    async def commit(self) -> None:
        await self.gateway.commit(EpochCommitted(1, next(self.epochs), len(self.rows), self.positions))

    async def epoch(self, records_max: int = 1_000_000) -> list[tuple[int, int, int]]:
        count = await self.read(records_max)
        await self.commit()
        return self.rows[len(self.rows) - count :]

    @property
    def status(self) -> dict[str, Any]:
        return self.gateway.status()


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run
