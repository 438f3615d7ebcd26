"""The emitter: reads the runs of an epoch in the order in which a sink receives them, and makes messages of them.

Invariant: runs with an order key are merged by it. Runs without an order key are concatenated, by chain and partition.
A message holds one record, the bytes of many records, or a block of many records (`wire/block_codec`), as the sink
requests. `commit/sink_link` sends the messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from procession.commit.lane_emitter import block_sized, lane_messages
from procession.commit.round_events import EmitEpoch
from procession.commit.sink_link import SinkOptions
from procession.errors import StorageError
from procession.merge.kway import merged
from procession.storage.run_store import Manifest, Run, Runs
from procession.wire.block_codec import block_batch, encode_blocks

IN_BLOCKS = ("payload", "key", "event_time")
"""The columns of runs for sinks that take blocks."""


def runs_for(sink: str, bucket: int | None, manifests: Sequence[Manifest]) -> list[Run]:
    """Return the runs of a sink, or of one of its connections: those in its bucket."""
    found = (run for manifest in manifests for run in manifest.runs if run.to == sink)
    return [run for run in found if bucket is None or run.bucket == bucket]


def payloads(store: Runs, epoch: int, runs: Sequence[Run]) -> Iterator[pa.Array]:
    """Yield the payloads of one output's runs, in its order, piece by piece."""
    for batch in _batches(store, epoch, runs, ("payload",)):
        yield batch.column("payload")


def _batches(store: Runs, epoch: int, runs: Sequence[Run], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    paths = store.read_all(epoch, runs)
    if runs and all(run.keys for run in runs):
        return merged(paths, columns)
    return (batch for path in paths for batch in path)


class ConnectionRuns(NamedTuple):
    """A connection's part of an epoch: its runs, and the number of records in all connections of its sink."""

    runs: Sequence[Run]
    total: int


class SinkRuns:
    """The runs of an epoch by sink and bucket. With many connections, a search for each of them would take long."""

    def __init__(self, manifests: Sequence[Manifest]) -> None:
        self._by_sink: dict[str, list[Run]] = {}
        self._by_bucket: dict[tuple[str, int], list[Run]] = {}
        for manifest in manifests:
            for run in manifest.runs:
                self._by_sink.setdefault(run.to, []).append(run)
                self._by_bucket.setdefault((run.to, run.bucket), []).append(run)
        self._totals = {sink: sum(run.count for run in runs) for sink, runs in self._by_sink.items()}

    def of(self, options: SinkOptions) -> ConnectionRuns:
        sink = options.sink or options.name
        total = self._totals.get(sink, 0) if options.lane is not None else 0
        if options.bucket is None:
            return ConnectionRuns(self._by_sink.get(sink, []), total)
        return ConnectionRuns(self._by_bucket.get((sink, options.bucket), []), total)


def emission(store: Runs, action: EmitEpoch, given: ConnectionRuns, options: SinkOptions) -> Iterator[pa.Array]:
    """Yield the messages for a connection, piece by piece."""
    if options.lane is None:
        return messages(store, action.epoch, given.runs, options)
    return lane_messages(store, action.epoch, action.txn, given.runs, given.total, options.lane, options.pack_bytes_max)


def messages(store: Runs, epoch: int, runs: Sequence[Run], options: SinkOptions) -> Iterator[pa.Array]:
    """Yield the messages for a sink without lanes, piece by piece."""
    if options.is_in_blocks:
        return blocks(store, epoch, runs, options.pack_bytes_max)
    return (packed(piece, options.pack_bytes_max) for piece in payloads(store, epoch, runs))


def length_of(runs: Sequence[Run], options: SinkOptions) -> int | None:
    """Return the total bytes of the messages. None: blocks are made when they are sent, so their size is unknown
    before."""
    return None if options.is_in_blocks else sum(run.payload_bytes for run in runs)


def packed(payload: pa.Array, bytes_max: int) -> pa.Array:
    """Pack records into messages of up to `bytes_max` bytes after their first record. 0: one record per message. No
    byte is copied: a message is a longer view of the same buffer."""
    if not bytes_max:
        return payload
    _, offsets_buffer, data = payload.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[payload.offset : payload.offset + len(payload) + 1]
    # The messages result from a cut every `bytes_max` bytes. A record belongs to the message of its last byte.
    last = (offsets[1:] - offsets[0] - 1) // bytes_max
    cuts = np.concatenate(([0], np.flatnonzero(np.diff(last)) + 1, [len(payload)]))
    return pa.Array.from_buffers(pa.binary(), len(cuts) - 1, [None, pa.py_buffer(offsets[cuts].copy()), data])


def blocks(store: Runs, epoch: int, runs: Sequence[Run], bytes_max: int) -> Iterator[pa.Array]:
    """Yield the records as blocks, each of them a message. Raises StorageError if the number of records in the runs
    differs from their manifests."""
    expected, count = sum(run.count for run in runs), 0
    batches = (batch.select(IN_BLOCKS) for batch in _batches(store, epoch, runs, IN_BLOCKS))
    for batch in block_sized(batches, bytes_max):
        count += batch.num_rows
        whole = block_batch(*(batch.column(name) for name in IN_BLOCKS))
        for block in encode_blocks(whole, bytes_max):
            yield pa.array([block], pa.binary())
    if count != expected:
        raise StorageError(f"the runs of epoch {epoch} hold {count} records, their manifests say {expected}")
