"""Defines the records of `procession bench conflux`, which are numbers with timestamps, and the stages that process
them.

Invariant: a record has a fixed size, so stages process it in columns. Every contestant runs the same stages on the
same records, and each stage uses the stated processor time. `created_ns` is set by the source, `processed_ns` by the
last stage of the pipeline. Downstream: `bench/conflux_contestants`, which runs pipelines of these stages.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from procession.api.pipeline import Pipeline
from procession.bench.window_sort import bytes_of
from procession.bench.workload import DROPPED, SINK, WORKLOADS, Distribution, Segment, StageFunction, burn
from procession.sdk.connector_program import run_source
from procession.sdk.source_options import SourceOptions
from procession.sdk.source_records import Batch, Stream

RECORD = np.dtype([("number", "<i8"), ("created_ns", "<i8"), ("processed_ns", "<i8"), ("payload", "S10")])
BATCH_RECORDS = 1024
"""Records that the source creates at once, with one creation time."""

Records = npt.NDArray[np.void]


def records_of(payload: pa.Array) -> Records:
    """Return the records of a column, without a copy."""
    return np.frombuffer(bytes_of(payload), RECORD)


def payload_of(records: npt.NDArray[Any]) -> pa.Array:
    """Return the records as a column."""
    edges = np.arange(len(records) + 1, dtype=np.int32) * np.int32(RECORD.itemsize)
    return pa.Array.from_buffers(
        pa.binary(), len(records), [None, pa.py_buffer(edges), pa.py_buffer(records.tobytes())]
    )


def expected_numbers(records: int) -> npt.NDArray[np.int64]:
    """Return the numbers of the output, in the order of the sequential run."""
    numbers: npt.NDArray[np.int64] = np.arange(records, dtype=np.int64)
    return np.compress(numbers % DROPPED != 0, numbers)


@dataclass(frozen=True)
class StampedStage:
    """A stage of a workload on columns. The last stage records the time at which the pipeline has finished a
    record."""

    function: StageFunction
    burn_ns: int
    is_last: bool = False

    def mask(self, payload: pa.Array) -> pa.Array | None:
        """Which rows stay; None: all of them."""
        burn(len(payload) * self.burn_ns)
        if self.function is StageFunction.FILTER:
            return pa.array(records_of(payload)["number"] % DROPPED != 0)
        return None

    def result(self, payload: pa.Array) -> pa.Array:
        if not self.is_last:
            return payload
        records = records_of(payload).copy()
        records["processed_ns"] = time.time_ns()
        return payload_of(records)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch | pa.Array:
        """Process a batch, as `map_batches` calls it."""
        mask = self.mask(batch.column("payload"))
        return self.result(batch.column("payload")) if mask is None else batch.select(["payload", "row"]).filter(mask)


def stages_of(segments: Sequence[Segment], burn_ns: int) -> list[list[StampedStage]]:
    """Return the stages of each segment."""
    made = [[StampedStage(function, burn_ns) for function in segment.stages] for segment in segments]
    made[-1][-1] = StampedStage(segments[-1].stages[-1], burn_ns, is_last=True)
    return made


def number_of(payload: bytes) -> bytes:
    """Return the key of workload W1, which partitions by number."""
    return payload[:8]


def conflux_pipeline(workload: str, contestant: str, burn_ns: int, url: str, lanes: int) -> Pipeline:
    """Return a workload as one of our pipelines.

    Args:
        workload: One of WORKLOADS.
        contestant: `lanes` or `blocks`, which are lanes whose messages have one record or many; `ordered`,
            `unordered`, or `sequential`, which has one task and no exchange.
        burn_ns: Processor time that each stage uses per record.
        url: The topic of the output.
        lanes: Number of lanes.
    """
    segments, is_sequential = WORKLOADS[workload], contestant == "sequential"
    made = Pipeline(
        f"conflux-{contestant}",
        order="none" if contestant == "unordered" else "total",
        parallelism=1 if is_sequential else segments[0].tasks,
    )
    stage = made.source("numbers")
    for segment, stages in zip(segments, stages_of(segments, burn_ns), strict=True):
        if segment.into is Distribution.REBALANCE and not is_sequential:
            stage = stage.rebalance(parallelism=segment.tasks)
        elif segment.into is Distribution.PARTITION and not is_sequential:
            stage = stage.rebalance(number_of, parallelism=segment.tasks)
        for function in stages:
            stage = stage.map_batches(function)
    if contestant == "lanes":
        stage.sink(SINK, to=url, lanes=lanes)
    elif contestant == "blocks":
        stage.sink(SINK, to=f"{url}?lane_messages=blocks", lanes=lanes)
    else:
        stage.sink(SINK, to=f"{url}?partition=0")
    return made


class StampedSource:
    """A stream of numbers from 0 on, created when the gateway takes them, or at a steady rate."""

    def __init__(self, name: str, records: int, rate: float) -> None:
        self._name = name
        self._records = records
        self._rate = rate

    def streams(self) -> list[Stream]:
        return [Stream.named(self._name)]

    def read(self, stream: Stream, after: int | None) -> Iterator[Batch]:
        began_s = time.monotonic()
        first = 0 if after is None else after + 1
        for start in range(first, self._records, BATCH_RECORDS):
            if self._rate and (wait_s := began_s + (start - first) / self._rate - time.monotonic()) > 0:
                time.sleep(wait_s)
            numbers = np.arange(start, min(self._records, start + BATCH_RECORDS))
            records = np.zeros(len(numbers), RECORD)
            records["number"], records["created_ns"], records["payload"] = numbers, time.time_ns(), b"x" * 10
            yield Batch(numbers.astype(np.uint64), np.zeros(len(numbers), np.int64), payload_of(records))


if __name__ == "__main__":
    to, name, records, rate = sys.argv[1:]
    is_done = run_source(
        StampedSource(name, int(records), float(rate)), to, SourceOptions(program="bench", instance=name)
    )
    sys.exit(0 if is_done else 1)
