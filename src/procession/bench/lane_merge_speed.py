"""Measures a merger in processor time: it merges the records of lanes in memory into one sequence.

Adjacent records are in random lanes, so the merge finds no long runs: the worst case. Keys have two columns, as after
a stage that creates several records from one. The result is the median over the rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from procession.sdk.lane_files import LaneReader
from procession.sdk.lane_merge import LaneMerge, MergeOptions
from procession.wire.lane_blocks import Frontier, LaneIdentity, lane_schema

EPOCHS = 4
BLOCK_ROWS = 16_384
PAYLOAD_BYTES = 10


class MemoryLane:
    """A lane in memory, which can be read several times."""

    def __init__(self, number: int, lanes: int) -> None:
        self.name = f"lane-{number}"
        self.identity = LaneIdentity("bench", "bench", "bench", (number,), lanes, "total")
        self.frontier: Frontier | None = None
        self.merged = -1
        self.position = 0
        self.epochs: list[tuple[list[pa.RecordBatch], int]] = []

    def poll(self) -> int | None:
        return self.position if self.position < len(self.epochs) else None

    def batches(self) -> Iterator[pa.RecordBatch]:
        batches, total = self.epochs[self.position]
        yield from batches
        count = sum(batch.num_rows for batch in batches)
        self.frontier = Frontier(self.position, self.identity, count, total)
        self.position += 1

    def close(self) -> None:
        """Do nothing, so that the records can be read again."""


def measure(records: int, lanes: int, rounds: int) -> dict[str, float]:
    """Return the millions of records per second of processor time, without and with `--verify`."""
    made = lanes_of(records, lanes)
    found: dict[str, list[float]] = {"merged": [], "verified": []}
    for _ in range(rounds):
        for name, times in found.items():
            for lane in made:
                lane.position = 0
            began_s = time.process_time()
            count = _merged(made, is_verifying=name == "verified")
            times.append(count / (time.process_time() - began_s) / 1e6)
            assert count == records // EPOCHS * EPOCHS
    return {name: round(statistics.median(times), 2) for name, times in found.items()}


def report_lines(figures: Mapping[str, float], lanes: int) -> Iterator[str]:
    yield f"{lanes} lanes in memory, M records/s of processor time: " + ", ".join(
        f"{name} {value:g}" for name, value in figures.items()
    )


def lanes_of(records: int, lanes: int) -> list[MemoryLane]:
    """Return lanes with this total number of records, in some epochs."""
    chance = np.random.default_rng(1)
    made = [MemoryLane(number, lanes) for number in range(lanes)]
    each = records // EPOCHS
    for epoch in range(EPOCHS):
        owners, numbers = chance.integers(0, lanes, each), np.arange(epoch * each, (epoch + 1) * each)
        for number, lane in enumerate(made):
            own = numbers[owners == number]
            pieces = (own[start : start + BLOCK_ROWS] for start in range(0, len(own), BLOCK_ROWS))
            lane.epochs.append(([_batch(piece) for piece in pieces], each))
    return made


def _batch(numbers: npt.NDArray[np.int64]) -> pa.RecordBatch:
    count = len(numbers)
    edges = pa.py_buffer((np.arange(count + 1) * PAYLOAD_BYTES).astype(np.int32))
    payloads = pa.Array.from_buffers(pa.binary(), count, [None, edges, pa.py_buffer(bytes(PAYLOAD_BYTES * count))])
    columns = [payloads, pa.nulls(count, pa.binary()), pa.nulls(count, pa.int64())]
    order = [pa.array(numbers), pa.array(np.zeros(count, np.int64))]
    return pa.RecordBatch.from_arrays([*columns, *order], schema=lane_schema(2))


def _merged(lanes: Sequence[LaneReader], *, is_verifying: bool) -> int:
    merge = LaneMerge(lambda _: lanes, MergeOptions(is_verifying=is_verifying))
    return sum(batch.rows.num_rows for turn in merge.turns() for batch in turn)
