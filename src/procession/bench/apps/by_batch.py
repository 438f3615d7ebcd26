"""The work of `procession bench loop` on columns: the same bytes come out."""

import pyarrow as pa
import pyarrow.compute as pc

from procession import Pipeline


def wanted(batch: pa.RecordBatch) -> pa.RecordBatch:
    numbers = pc.binary_slice(batch.column("payload"), 0, 10).cast(pa.string()).cast(pa.int64()).to_numpy()
    return batch.filter(pa.array(numbers % 7 != 0))


def parted(batch: pa.RecordBatch) -> pa.Array:
    return pc.replace_substring(batch.column("payload"), b" ", b",")


def marked(batch: pa.RecordBatch) -> pa.Array:
    return pc.binary_join_element_wise(
        batch.column("payload"), pa.scalar(b",seen", pa.binary()), pa.scalar(b"", pa.binary())
    )


pipeline = Pipeline("by-batch", parallelism=2)
(
    pipeline.source("lines")
    .map_batches(wanted)
    .map_batches(parted)
    .rebalance()
    .map_batches(marked)
    .sink("output", to="file:output")
)
