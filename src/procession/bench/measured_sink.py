"""Measures a sink, and compares it with a plain writer of the same rows.

Invariant: the sink is the real process. Time is measured from the first byte of an epoch to the reply to its commit,
without the encoding of blocks. The contestants write the same epochs in turn, so that a load on the machine affects
all of them; the result is the median over epochs. Upstream: the benchmarks of sinks; downstream: `sdk/sink_process`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from procession.bench.processes import cpu_total_s
from procession.deployment.local_pipeline import COMMAND
from procession.sdk.doubles import Worker
from procession.sdk.record_blocks import block_batch, encode_blocks
from procession.sdk.sink_process import SinkProcess

WriteEpoch = Callable[[int], Awaitable[float]]
"""Writes the epoch of this index. Returns the seconds that it took."""


@dataclass(frozen=True, slots=True)
class SinkRounds:
    """The options of the measurement of a sink.

    Args:
        records: Records per round.
        epochs: Number of epochs, and so of the sink's transactions, in a round.
        rounds: Number of rounds.
    """

    records: int
    epochs: int
    rounds: int


@dataclass
class Timings:
    """Time of a variant per epoch, and CPU time of all its processes."""

    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def rate(self, records: int) -> float:
        """Return the records per second."""
        return records / statistics.median(self.seconds)

    def ratio(self, plain: Timings) -> float:
        """Return the rate as a share of the other variant's rate."""
        return statistics.median(theirs / ours for ours, theirs in zip(self.seconds, plain.seconds, strict=True))

    def cpu_us(self, records: int) -> float:
        """Return the microseconds of processor time per record."""
        return statistics.fmean(self.cpu_s) / records * 1e6


async def compare(
    contestants: Mapping[str, WriteEpoch], epochs: int, rounds: int, reset: Callable[[], None]
) -> dict[str, Timings]:
    """Let the contestants write all epochs in turn, in an order that changes with each epoch.

    Args:
        contestants: The variants to compare.
        epochs: Number of epochs.
        rounds: How often the epochs are written, after a first time to warm up.
        reset: Called after each round.
    """
    timings = {name: Timings() for name in contestants}
    names = list(contestants)
    for number in range(rounds + 1):
        for epoch in range(epochs):
            names.append(names.pop(0))
            for name in names:
                cpu_s = cpu_total_s()
                seconds = await contestants[name](epoch)
                if number:
                    timings[name].seconds.append(seconds)
                    timings[name].cpu_s.append(cpu_total_s() - cpu_s)
        reset()
    return timings


class MeasuredSink:
    """A sink that is started by `start`, and stopped by `close`.

    Args:
        name: Name of the output.
        arguments: Arguments of `procession sink`, with the placeholder {dir}.
        directory: A directory for the process.
        payloads: The records of each epoch.
    """

    def __init__(self, name: str, arguments: Sequence[str], directory: Path, payloads: Sequence[pa.Array]) -> None:
        directory.mkdir()
        command = [*COMMAND, "sink", *arguments, "--listen", "{listen}", "--records", "blocks"]
        self._process = SinkProcess(command, directory, has_faults=False)
        self._name = name
        self._blocks = [list(encode_blocks(block_batch(array))) for array in payloads]
        self._epochs = self._end = 0
        self._worker: Worker | None = None

    async def start(self) -> None:
        self._worker = worker = await self._process.worker()
        await worker.hello(instance=f"bench-{self._name}-0")

    async def write(self, epoch: int) -> float:
        """Write the epoch with this index, and return the seconds."""
        worker, blocks = self._worker, self._blocks[epoch]
        assert worker is not None, "it was started"
        self._epochs += 1
        txn_id = f"bench-w-{self._name}-id-1.e{self._epochs}.f1:c_id={self._epochs}"
        end = self._end + sum(map(len, blocks))
        began = time.perf_counter()
        position = self._end
        for block in blocks:
            worker.data(position, block)
            await worker.drained()
            position += len(block)
        if not await worker.phase1(txn_id, self._end, end):
            raise AssertionError("the sink voted abort")
        await worker.phase2(txn_id, commit=True)
        self._end = end
        return time.perf_counter() - began

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._process.__exit__(None, None, None)
