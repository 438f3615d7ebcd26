"""Writes lanes as a pipeline does, for tests of mergers: with the sink's own output, and a commit for each epoch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from procession.connectors.lane_sink import lane_opener
from procession.sdk.output import OpenOutput, refuse_to_wait
from procession.sdk.participant import SinkParticipant
from procession.sdk.sink_directory import SinkDirectory
from procession.wire.lane_blocks import (
    Frontier,
    LaneIdentity,
    encode_frontier,
    encode_records,
    group_of,
    lane_schema,
)
from procession.wire.messages import DATA_STREAM

BLOCK_ROWS = 7
"""Small, so that a lane has several blocks in an epoch."""


class LaneWriter:
    """A sink with lanes. Each record is a number, which is its order key and its payload. `close` closes its files."""

    def __init__(
        self,
        directory: Path,
        lanes: int,
        *,
        pipeline: str = "shop",
        checkpoint: str = "c0ffee",
        order: str = "total",
        open_output: OpenOutput | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.lanes = lanes
        self.identity = LaneIdentity(
            group_of(checkpoint, pipeline, "trades", lanes), pipeline, "trades", (), lanes, order, paths=lanes
        )
        self._sink = SinkDirectory(directory, open_output or lane_opener(directory))
        self._participants = [self._opened(f"{pipeline}-trades-{lane}") for lane in range(lanes)]
        self.epochs = 0
        self._is_open = True

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            self.close()

    def _opened(self, instance: str) -> SinkParticipant:
        participant = self._sink.open_participant(instance, refuse_to_wait)
        participant.begin()
        return participant

    def epoch(self, shares: Sequence[Sequence[int]], only: Sequence[int] | None = None) -> int:
        """Write an epoch with these numbers in each lane, and return it. If `only` is given, only these lanes commit
        it; the test calls `commit` for the others."""
        epoch, self.epochs = self.epochs, self.epochs + 1
        self._shares = getattr(self, "_shares", {}) | {epoch: shares}
        for lane in range(self.lanes) if only is None else only:
            self.commit(epoch, lane)
        return epoch

    def commit(self, epoch: int, lane: int) -> None:
        """Commit a lane's part of an epoch."""
        shares = self._shares[epoch]
        numbers, participant = shares[lane], self._participants[lane]
        messages = [
            encode_records(epoch, batch_of(numbers[start : start + BLOCK_ROWS]))
            for start in range(0, len(numbers), BLOCK_ROWS)
        ]
        identity = self.identity.covering((lane,))
        messages.append(encode_frontier(Frontier(epoch, identity, len(numbers), sum(map(len, shares)))))
        start = position = participant.committed_end
        for message in messages:
            participant.append([position], [message])
            position += len(message)
        txn = f"shop-w-trades-id-c0ffee.e{epoch}.f1:c_id={epoch}"
        assert participant.phase1(txn, [(DATA_STREAM, start, position)])
        participant.phase2(txn, commit=True)

    def close(self) -> None:
        self._is_open = False
        for participant in self._participants:
            participant.close()
        self._sink.close()


def batch_of(numbers: Sequence[int]) -> pa.RecordBatch:
    """Return records whose payload and order key are these numbers. The key is the last digit, the time the number."""
    columns = [
        pa.array([b"%d" % number for number in numbers], pa.binary()),
        pa.array([b"%d" % (number % 10) for number in numbers], pa.binary()),
        pa.array(numbers, pa.int64()),
        pa.array([number // 3 for number in numbers], pa.int64()),
        pa.array([number % 3 for number in numbers], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=lane_schema(2))


def dealt(numbers: Sequence[int], lanes: int, seed: int, empty: Sequence[int] = ()) -> list[list[int]]:
    """Return the numbers distributed randomly over lanes, each lane sorted. `empty` lanes get none."""
    chance = random.Random(seed)
    open_lanes = [lane for lane in range(lanes) if lane not in empty]
    shares: list[list[int]] = [[] for _ in range(lanes)]
    for number in numbers:
        shares[chance.choice(open_lanes)].append(number)
    return shares
