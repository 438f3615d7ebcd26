"""Standard input as a source: what another program prints, sent as it comes.

The one rule: a record is safe when it is in the spool, not when it was printed; a pipe keeps nothing. Before it on the
walk: another program. After it: connectors/pushed_sources.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from procession.connectors.framing import RECORD_BYTES_MAX, Cut, Framing
from procession.errors import StorageError
from procession.sdk.batching import GatherLimits
from procession.sdk.push_source import Inlet
from procession.sdk.source_records import Batch
from procession.sdk.stream_reader import begin_reading

READ_BYTES_MAX = 256 * 1024


async def take_in(inlet: Inlet, descriptor: int, framing: Framing) -> None:
    """Put every record of a descriptor into the inlet. It is read in a thread, because such a read may last."""
    reading = begin_reading(inlet.stream, None, records_of(descriptor, framing), GatherLimits())
    try:
        async for batch in reading:
            await inlet.put(batch)
    finally:
        reading.stop()


def records_of(descriptor: int, framing: Framing) -> Iterator[Batch]:
    """The records as they come; their ids are positions, which say only in what order they came."""
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
                next_step="Print shorter records, or give their right --framing; what came before is sent.",
            )
    cut = framing.cut(rest, is_end=True)
    if len(cut):
        yield _batch(cut, position)
    if cut.end < len(rest):
        raise StorageError(
            f"Standard input ended in the middle of the record at byte {position + cut.end}.",
            next_step="Print whole records, or give their right --framing; what came before is sent.",
        )


def _batch(cut: Cut, position: int) -> Batch:
    starts = (cut.starts + position).astype(np.uint64)
    return Batch(starts, np.zeros(len(cut), np.int64), cut.payloads)
