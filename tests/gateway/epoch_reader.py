"""A driver without Spark, for tests of several gateways.

It uses the real feed, checkpoint and notifications, reads each epoch from the mapped logs, and commits it at once.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Self

from procession.commit.checkpoint import Checkpoint
from procession.commit.round_record import RoundRecord
from procession.driver.offsets import GatewayFeed, GatewayNotifier
from procession.errors import RoundError
from procession.storage.log_ranges import LogRange, epoch_ranges, sequences
from procession.storage.log_reader import LogReader
from procession.storage.segment import RECORD_KINDS, REFERENCE_KINDS

RECORDS_MAX = 20_000
BYTES_MAX = 64 * 1024 * 1024
IDLE_S = 0.02


class EpochReader:
    """One incarnation of a driver. The next one on the same checkpoint continues where this one ended."""

    def __init__(self, root: Path, leader: Path, records_max: int = RECORDS_MAX) -> None:
        self.checkpoint = Checkpoint.claim(root, name="epoch_reader", fingerprint="")
        self.feed = GatewayFeed(leader, b"", self.checkpoint, records_max, BYTES_MAX)
        self.word = GatewayNotifier(leader, b"", self.checkpoint.fence, abandoned=self.checkpoint.abandoned)
        self._leader = leader
        self.epoch = -1
        self.offsets: dict[str, Any] = {"gateway-0": 0}
        self.positions: dict[int, int] = {}
        self.ids: dict[int, list[int]] = {}
        """The message ids of each stream, in the order of the output."""
        self.pieces: list[list[LogRange]] = []
        """For each epoch, the ranges of the logs that it was made of."""
        self._untold: RoundRecord | None = None
        self._acknowledged = -1
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def successor(self) -> Self:
        """Return another driver on the same checkpoint, which knows the epochs that this one committed."""
        other = type(self)(self.checkpoint.root, self._leader, self.feed.records_max)
        other.epoch, other.offsets = self.epoch, dict(self.offsets)
        other.positions, other.ids, other.pieces, other._untold = self.positions, self.ids, self.pieces, self._untold
        other._acknowledged = self._acknowledged
        return other

    def begin(self) -> Self:
        """Take epochs in a thread, until `finish`."""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def finish(self) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                if not self.take():
                    self._is_over.wait(IDLE_S)
        except BaseException as error:
            self.error = error

    def take(self, *, is_told: bool = True) -> bool:
        """Read and commit one epoch if there is one. Unless `is_told` is False, send missing commits to the
        gateways."""
        ends = self.feed.next_ends(self.offsets, self.feed.records_max)
        pieces = list(epoch_ranges(sequences(self.offsets), sequences(ends), self.feed.places()))
        if pieces:
            self._commit(ends, pieces)
        if is_told:
            self.tell()
        return bool(pieces)

    def has(self, stream_id: int, count: int) -> bool:
        """Read and commit epochs, and return whether a stream has `count` records and all gateways have the commit."""
        is_done = not self.take() and self.tell()
        return is_done and len(self.ids.get(stream_id, [])) == count

    def tell(self) -> bool:
        """Send the last commit to a gateway. Returns False if it could not be reached; the commit is then sent
        again."""
        if self._untold is None:
            return True
        try:
            self.word.acknowledge(self._untold)
        except RoundError:
            return False
        self._acknowledged, self._untold = self._untold.epoch, None
        return True

    def _commit(self, ends: dict[str, Any], pieces: list[LogRange]) -> None:
        self.epoch += 1
        self._write("offsets", f"v1\n{{}}\n{json.dumps(ends)}")
        self._read_all(pieces)
        self.pieces.append(pieces)
        first, last = sum(sequences(self.offsets).values()), sum(sequences(ends).values())
        self._untold = RoundRecord(
            epoch=self.epoch,
            fence=self.checkpoint.fence,
            fingerprint="",
            first=first,
            last=last,
            parts={},
            positions=dict(self.positions),
            ends=sequences(ends),
            acknowledged=self._acknowledged,
        )
        self.checkpoint.rounds.write(self._untold)
        self._write("commits", "v1\n{}")
        self.checkpoint.log.sync_commit(self.epoch)
        self.offsets = ends

    def _read_all(self, pieces: list[LogRange]) -> None:
        for piece in pieces:
            self._read(piece)

    def _read(self, piece: LogRange) -> None:
        for batch in LogReader(Path(piece.place.directory)).read(piece.first, piece.last):
            for row in batch.select(["kind", "stream_id", "message_id"]).to_pylist():
                if row["kind"] in RECORD_KINDS:
                    self.ids.setdefault(row["stream_id"], []).append(row["message_id"])
                if row["kind"] in REFERENCE_KINDS:
                    self.positions[row["stream_id"]] = row["message_id"]

    def _write(self, part: str, text: str) -> None:
        folder = self.checkpoint.directory / part
        folder.mkdir(exist_ok=True)
        (folder / str(self.epoch)).write_text(text)
