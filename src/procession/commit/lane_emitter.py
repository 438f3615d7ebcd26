"""The lane emitter: converts the runs of an epoch for one lane to lane blocks, with a frontier after them.

Invariant: a lane gets its records sorted by the order key, in whole blocks, and one frontier per epoch, even without
records. The frontier names the group of lanes and the number of records that the epoch has in all of them. The emitter
needs only the lane's runs and the transaction, so an emitter process can send a lane as well as the driver.
`wire/lane_blocks` has the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
    """Yield the blocks of a lane, each as a message.

    Args:
        store: The store with the runs.
        epoch: The epoch.
        txn: Id of the transaction. It contains the checkpoint's id, which identifies the group of lanes.
        runs: The runs of this lane.
        total: Number of records of the epoch in all lanes of the sink.
        lane: The identity of the lane, without its group.
        bytes_max: Maximum payload bytes of a block. A block has at least one record.
    """
    expected, count = sum(run.count for run in runs), 0
    batches = merged(store.read_all(epoch, runs))
    pieces = (piece for batch in batches for piece in _pieces(lane_batch(batch), bytes_max))
    for batch in block_sized(pieces, bytes_max):
        count += batch.num_rows
        yield pa.array([encode_records(epoch, batch)], pa.binary())
    if count != expected:
        raise StorageError(f"the runs of epoch {epoch} hold {count} records, their manifests say {expected}")
    frontier = Frontier(epoch, replace(lane, group=_group(txn, lane)), count, total)
    yield pa.array([encode_frontier(frontier)], pa.binary())


def _group(txn: str, lane: LaneIdentity) -> str:
    found = TransactionId.parse(txn)
    return group_of("" if found is None else found.checkpoint, lane.pipeline, lane.sink, lane.lanes)


def block_sized(batches: Iterable[pa.RecordBatch], bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Concatenate batches until they are large enough for a block, because a merge may yield many small batches."""
    waiting: list[pa.RecordBatch] = []
    size_bytes = rows = 0
    for batch in batches:
        waiting.append(batch)
        size_bytes += payload_bytes(batch.column("payload"))
        rows += batch.num_rows
        if size_bytes >= bytes_max or rows >= BLOCK_RECORDS_MAX:
            yield pa.concat_batches(waiting)
            waiting, size_bytes, rows = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)


def _pieces(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of about `bytes_max` bytes of a batch, each with at least one row."""
    size_bytes = payload_bytes(batch.column("payload"))
    count = max(1, -(-size_bytes // max(1, bytes_max)), -(-batch.num_rows // BLOCK_RECORDS_MAX))
    step = max(1, -(-batch.num_rows // count))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)
