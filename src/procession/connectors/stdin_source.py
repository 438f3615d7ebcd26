"""The stdin source: sends the records that another program prints.

Invariant: a record survives a crash when it is in the spool, not when it was printed, because a pipe stores no data.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from procession.connectors.framing import RECORD_BYTES_MAX, CutRecords, RecordFraming
from procession.errors import StorageError
from procession.sdk.batching import GatherLimits
from procession.sdk.push_source import PushStream
from procession.sdk.source_records import Batch
from procession.sdk.stream_reader import begin_reading

READ_BYTES_MAX = 256 * 1024


async def take_in(pushed: PushStream, descriptor: int, framing: RecordFraming) -> None:
    """Put every record of a descriptor into the stream. Reads in a thread, because a read may block."""
    reading = begin_reading(pushed.stream, None, records_of(descriptor, framing), GatherLimits())
    try:
        async for batch in reading:
            await pushed.put(batch)
    finally:
        reading.stop()


def records_of(descriptor: int, framing: RecordFraming) -> Iterator[Batch]:
    """Yield the records as they arrive. Their ids are byte positions, which only define their order."""
    rest, position = b"", 0
    while data := os.read(descriptor, READ_BYTES_MAX):
        rest += data
        cut = framing.cut(rest, is_end=False)
        if len(cut):
            yield _batch(cut, position)
            rest, position = rest[cut.end :], position + cut.end
        if len(rest) >= RECORD_BYTES_MAX + framing.overhead_bytes:
            raise StorageError(
                f"The record at byte {position} of standard input is longer than {RECORD_BYTES_MAX} bytes.",
                next_step="Print shorter records, or correct --framing; earlier records are sent.",
            )
    cut = framing.cut(rest, is_end=True)
    if len(cut):
        yield _batch(cut, position)
    if cut.end < len(rest):
        raise StorageError(
            f"Standard input ended in the middle of the record at byte {position + cut.end}.",
            next_step="Print complete records, or correct --framing; earlier records are sent.",
        )


def _batch(cut: CutRecords, position: int) -> Batch:
    starts = (cut.starts + position).astype(np.uint64)
    return Batch(starts, np.zeros(len(cut), np.int64), cut.payloads)
