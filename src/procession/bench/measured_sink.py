"""A sink under measurement: the real sink process, with a benchmark driver that sends blocks and decides.

Invariant: time is measured from the first byte of the first epoch to the reply to the last commit, without the encoding
of blocks. Upstream: the benchmarks of sinks; downstream: `sdk/sink_process`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from procession.sdk.record_blocks import block_batch, encode_blocks
from procession.sdk.sink_process import SinkProcess
from procession.sdk.testing import Worker


class MeasuredSink:
    """A sink that is started by `start`, and stopped by `close`.

    Args:
        name: Name of the output.
        words: The words behind `procession sink`, with the placeholder {dir}.
        directory: A directory for the process.
    """

    def __init__(self, name: str, words: Sequence[str], directory: Path) -> None:
        directory.mkdir()
        command = [sys.executable, "-m", "procession", "sink", *words, "--listen", "{listen}", "--records", "blocks"]
        self._process = SinkProcess(command, directory)
        self._name = name
        self._epochs = self._end = 0
        self._worker: Worker | None = None

    async def start(self) -> None:
        self._worker = worker = await self._process.worker()
        await worker.hello(instance=f"bench-{self._name}-0")

    async def write(self, payloads: list[pa.Array]) -> float:
        """Seconds for all epochs, one for each array of records."""
        messages = [list(encode_blocks(block_batch(array))) for array in payloads]
        worker = self._worker
        assert worker is not None, "it was started"
        began = time.perf_counter()
        for epoch in messages:
            self._epochs += 1
            txn_id = f"bench-w-{self._name}-id-1.e{self._epochs}.f1:c_id={self._epochs}"
            end = self._end + sum(map(len, epoch))
            worker.data(self._end, *epoch)
            if not await worker.phase1(txn_id, self._end, end):
                raise AssertionError("the sink voted abort")
            await worker.phase2(txn_id, commit=True)
            self._end = end
        return time.perf_counter() - began

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._process.__exit__(None, None, None)
