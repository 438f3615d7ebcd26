"""The lane emitter: the runs of an epoch for one lane as lane blocks, with a frontier behind them.

Invariant: a lane gets its records sorted by the order key, in whole blocks, and one frontier per epoch, also if it has
no records. The frontier names the group of lanes and how many records the epoch has in all of them. So far the driver
reads the runs and sends the blocks, as for every sink; an executor could call `lane_messages` for its own lane, because
it needs nothing but the lane's runs and the transaction. `wire/lane_blocks` has the format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from procession.commit.transaction_id import TransactionId
from procession.errors import StorageError
from procession.merge.kway import merged
from procession.storage.run_store import Run, Runs, payload_bytes
from procession.wire.block_codec import BLOCK_RECORDS_MAX
from procession.wire.lane_blocks import Frontier, LaneIdentity, encode_frontier, encode_records, group_of, lane_batch


def lane_messages(
    store: Runs, epoch: int, txn: str, runs: Sequence[Run], total: int, lane: LaneIdentity, bytes_max: int
) -> Iterator[pa.Array]:
    """The blocks of a lane, each a message.

    Args:
        store: Where the runs are.
        epoch: The epoch.
        txn: Id of the transaction. It names the checkpoint, and so the group of lanes.
        runs: The runs of this lane.
        total: Number of records of the epoch in all lanes of the sink.
        lane: What the lane is part of, without its group.
        bytes_max: Maximum bytes of the payloads in a block behind the first one.
    """
    expected, count = sum(run.count for run in runs), 0
    for batch in _cut(merged([store.read(epoch, run) for run in runs]), bytes_max):
        count += batch.num_rows
        yield pa.array([encode_records(epoch, batch)], pa.binary())
    if count != expected:
        raise StorageError(f"the runs of epoch {epoch} hold {count} records, their manifests say {expected}")
    frontier = Frontier(epoch, replace(lane, group=_group(txn, lane)), count, total)
    yield pa.array([encode_frontier(frontier)], pa.binary())


def _group(txn: str, lane: LaneIdentity) -> str:
    found = TransactionId.parse(txn)
    return group_of("" if found is None else found.checkpoint, lane.pipeline, lane.sink, lane.lanes)


def _cut(batches: Iterator[pa.RecordBatch], bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The rows in batches of about `bytes_max` bytes of payloads: a merge may give them out in short stretches."""
    waiting: list[pa.RecordBatch] = []
    size_bytes = rows = 0
    for batch in batches:
        for piece in _pieces(lane_batch(batch), bytes_max):
            waiting.append(piece)
            size_bytes += payload_bytes(piece.column("payload"))
            rows += piece.num_rows
            if size_bytes >= bytes_max or rows >= BLOCK_RECORDS_MAX:
                yield pa.concat_batches(waiting)
                waiting, size_bytes, rows = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)


def _pieces(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Slices of a batch with about so many bytes, at least one row each."""
    size_bytes = payload_bytes(batch.column("payload"))
    count = max(1, -(-size_bytes // max(1, bytes_max)), -(-batch.num_rows // BLOCK_RECORDS_MAX))
    step = max(1, -(-batch.num_rows // count))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)
