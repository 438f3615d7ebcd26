"""Defines benchmark workloads from the literature: Conflux's Listing 1 and its two smaller workloads.

Invariant: all variants do the same work, on the same log, with the same functions. A function that simulates load uses
processor time, so tasks that share a core cannot overlap it. Upstream: the log that `write_log` makes. Downstream:
`bench/listing1`, which measures.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from procession.api.pipeline import Pipeline
from procession.errors import StorageError
from procession.storage.log import IngressLog
from procession.storage.segment import INGRESS_SCHEMA

PAYLOAD_BYTES = 10
DROPPED = 7
"""Every n-th record is removed, beginning with the first."""
ENTRY_RECORDS = 50_000
SINK = "output"


class StageFunction(enum.Enum):
    FILTER = "filter"
    MAP = "map"


class Distribution(enum.Enum):
    """How records are distributed to the tasks of a segment."""

    RANGES = "ranges"
    REBALANCE = "rebalance"
    PARTITION = "partition"


@dataclass(frozen=True)
class Segment:
    """Stages without an exchange between them, and their number of tasks."""

    tasks: int
    stages: tuple[StageFunction, ...]
    into: Distribution


WORKLOADS: dict[str, Sequence[Segment]] = {
    "listing1": (
        Segment(15, (StageFunction.FILTER, StageFunction.MAP), Distribution.RANGES),
        Segment(2, (StageFunction.MAP,), Distribution.REBALANCE),
    ),
    "w1": (
        Segment(3, (StageFunction.FILTER,), Distribution.RANGES),
        Segment(4, (StageFunction.MAP,), Distribution.REBALANCE),
        Segment(2, (StageFunction.MAP,), Distribution.PARTITION),
    ),
    "w2": (
        Segment(4, (StageFunction.FILTER,), Distribution.RANGES),
        Segment(4, (StageFunction.MAP,), Distribution.REBALANCE),
        Segment(2, (StageFunction.MAP,), Distribution.REBALANCE),
    ),
}


def burn(nanoseconds: int) -> None:
    """Use this amount of processor time in this thread."""
    end = time.thread_time_ns() + nanoseconds
    while time.thread_time_ns() < end:
        pass


@dataclass(frozen=True)
class Filter:
    """Keeps the numbers that are not multiples of seven."""

    burn_ns: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        burn(batch.num_rows * self.burn_ns)
        return batch.filter(pa.array(batch.column("message_id").to_numpy() % DROPPED != 0))


@dataclass(frozen=True)
class Identity:
    """Returns its input."""

    burn_ns: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        burn(batch.num_rows * self.burn_ns)
        return batch


FUNCTIONS: dict[StageFunction, type[Filter] | type[Identity]] = {
    StageFunction.FILTER: Filter,
    StageFunction.MAP: Identity,
}


@dataclass(frozen=True)
class ColumnFunction:
    """A function of columns, called as in a pipeline: it receives more columns than it needs."""

    function: Filter | Identity

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch | pa.Array:
        if isinstance(self.function, Identity):
            return self.function(batch).column("payload")
        return self.function(batch.select(["payload", "message_id", "row"]))


def pipeline(segments: Sequence[Segment], order: Literal["total", "none"], burn_ns: int) -> Pipeline:
    """Return the workload as one of our pipelines."""
    made = Pipeline(f"bench-{order}", order=order, parallelism=segments[0].tasks)
    stage = made.source("numbers")
    for segment in segments:
        if segment.into is Distribution.REBALANCE:
            stage = stage.rebalance(parallelism=segment.tasks)
        elif segment.into is Distribution.PARTITION:
            stage = stage.rebalance(_whole, parallelism=segment.tasks)
        for do in segment.stages:
            stage = stage.map_batches(ColumnFunction(FUNCTIONS[do](burn_ns)))
    stage.sink(SINK, to="file:output", framing="raw")
    return made


def _whole(payload: bytes) -> bytes:
    return payload


def write_log(directory: Path, records: int) -> None:
    """Write the source's records: numbers, each with ten digits of payload."""
    directory.mkdir(parents=True)
    with IngressLog(directory) as log:
        for first in range(0, records, ENTRY_RECORDS):
            numbers = np.arange(first, min(records, first + ENTRY_RECORDS), dtype=np.uint64)
            log.append(entry_of(numbers, digits_of(numbers, PAYLOAD_BYTES)))
        log.sync()


def digits_of(values: npt.NDArray[np.uint64], places: int) -> npt.NDArray[np.uint8]:
    """Return a row for each value: its last `places` decimal digits in ASCII."""
    powers = 10 ** np.arange(places - 1, -1, -1, dtype=np.uint64)
    return (values[:, None] // powers % 10 + ord("0")).astype(np.uint8)


def entry_of(numbers: npt.NDArray[np.uint64], digits: npt.NDArray[np.uint8]) -> pa.RecordBatch:
    """Return an entry of the log: messages of one stream with these ids, the rows of digits their payloads."""
    count, width = digits.shape
    edges = np.arange(count + 1, dtype=np.int32) * width
    payloads = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(edges), pa.py_buffer(digits)])
    no_keys = pa.array([b""], pa.binary()).take(pa.array(np.zeros(count, np.int64)))
    zeros = np.zeros(count, np.int64)
    return pa.RecordBatch.from_arrays(
        [pa.array(zeros.astype(np.uint8)), pa.array(zeros.astype(np.uint64)), numbers, zeros, no_keys, payloads],
        schema=INGRESS_SCHEMA,
    )


def expected_count(records: int) -> int:
    return records - -(-records // DROPPED)


def check_output(path: Path, records: int, *, is_ordered: bool) -> int:
    """Return the number of records in the output. Raises StorageError unless they are the expected records, in order
    if requested."""
    digits = np.fromfile(path, np.uint8)
    count, rest = divmod(len(digits), PAYLOAD_BYTES)
    if rest or count != expected_count(records):
        raise StorageError(f"{count:,} records and {rest} bytes came out, not {expected_count(records):,} records")
    powers = 10 ** np.arange(PAYLOAD_BYTES - 1, -1, -1, dtype=np.int64)
    numbers = (digits.reshape(count, PAYLOAD_BYTES) - np.uint8(ord("0"))) @ powers
    if is_ordered and (np.diff(numbers) <= 0).any():
        at = int(np.argmax(np.diff(numbers) <= 0))
        raise StorageError(f"record {numbers[at + 1]} came out after record {numbers[at]}")
    wanted = np.arange(records, dtype=np.int64)
    if (np.sort(numbers) != wanted[wanted % DROPPED != 0]).any():
        raise StorageError("the number of records is right, but some are not the expected ones")
    return count
