"""A real gateway process for tests of sources. The test commits on its control port, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from procession.errors import RoundError
from procession.storage.log_reader import LogReader
from procession.storage.segment import RECORD_KINDS, REFERENCE_KINDS
from tests.gateway.gateway_process import GatewayProcess

ALL = 2**40
POLL_INTERVAL_S = 0.005


class Row(NamedTuple):
    message_id: int
    event_time: int
    key: bytes
    payload: bytes


class LivingGateway(GatewayProcess):
    """A gateway that commits what it receives, unless commits are held. `rows` returns the committed rows."""

    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        super().__init__(directory, settings)
        self._rows: dict[int, list[Row]] = {}
        self._lock = threading.Lock()
        self._may_commit = threading.Event()
        self._may_commit.set()
        self._is_over = threading.Event()
        self._end = 0
        self._epoch = 0
        self._driver = threading.Thread(target=self._drive)

    def begin(self) -> LivingGateway:
        self.start()
        self._driver.start()
        return self

    def finish(self) -> None:
        self._is_over.set()
        self._driver.join()
        if self.process.poll() is None:
            self.kill()

    def hold_commits(self) -> None:
        """Stop commits, and wait for one in progress."""
        with self._lock:
            self._may_commit.clear()

    def let_commit(self) -> None:
        self._may_commit.set()

    def _drive(self) -> None:
        client = self.client(timeout_s=0.2)
        while not self._is_over.wait(POLL_INTERVAL_S):
            try:
                with self._lock:
                    if self._may_commit.is_set():
                        self._commit(client)
            except RoundError:  # killed, and not up again yet
                client.close()
        client.close()

    def _commit(self, client: Any) -> None:
        end = client.offer(0, self._end, ALL, ALL).end
        if end == self._end:
            return
        fresh: dict[int, list[Row]] = {}
        positions: dict[int, int] = {}
        reader = LogReader(self.directory / "log")
        for batch in reader.read(self._end, end):
            for row in batch.to_pylist():
                if row["kind"] in RECORD_KINDS:
                    values = (row["message_id"], row["event_time"], row["key"], row["payload"])
                    fresh.setdefault(row["stream_id"], []).append(Row(*values))
                if row["kind"] in REFERENCE_KINDS:
                    positions[row["stream_id"]] = row["message_id"]
        while not self._is_over.is_set():
            try:
                client.commit(0, self._epoch, end, positions)
                break
            except RoundError:
                # The gateway may have committed nevertheless. Sources then know it, so repeat before `rows` may return.
                client.close()
        self._epoch += 1
        self._end = end
        for stream_id, rows in fresh.items():
            self._rows.setdefault(stream_id, []).extend(rows)

    def rows(self, stream_id: int) -> list[Row]:
        """Return the committed rows of a stream, including all that a source has an acknowledgement for."""
        with self._lock:
            return list(self._rows.get(stream_id, []))

    def payloads(self, stream_id: int) -> list[bytes]:
        return [row.payload for row in self.rows(stream_id)]


@contextmanager
def living_gateway(directory: Path, **settings: Any) -> Iterator[LivingGateway]:
    gateway = LivingGateway(directory / "gateway", settings).begin()
    try:
        yield gateway
    finally:
        gateway.finish()
