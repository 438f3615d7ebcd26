"""The work of `by_fields` on columns, with the same output."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from procession import Pipeline

HALF = 2**31
CHECK_BYTES = 8
VALUE_BYTES_MAX = 10

NIBBLES = np.zeros(256, np.uint8)
NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
"""The value of each hexadecimal digit."""


def wanted_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    numbers = pc.binary_slice(batch.column("payload"), 0, 10).cast(pa.int64()).to_numpy()
    return batch.select(["payload", "row"]).filter(pa.array(numbers % 7 != 0))


def parted(batch: pa.RecordBatch) -> pa.Array:
    payload = batch.column("payload")
    digits = pc.binary_slice(payload, 11, 11 + CHECK_BYTES)
    nibbles = NIBBLES[np.frombuffer(digits.buffers()[2], np.uint8, CHECK_BYTES * len(digits))]
    checks = (nibbles[0::2] << 4 | nibbles[1::2]).view(">u4").astype(np.int64)
    return pc.binary_join_element_wise(
        pc.binary_slice(payload, 0, 10), pa.array(checks).cast(pa.string()).cast(pa.binary()), b","
    )


def marked(batch: pa.RecordBatch) -> pa.Array:
    payload = batch.column("payload")
    is_high = pc.greater_equal(pc.binary_slice(payload, 11, 11 + VALUE_BYTES_MAX).cast(pa.int64()), HALF)
    return pc.binary_join_element_wise(payload, pc.if_else(is_high, b",high", b",low"), b"")


pipeline = Pipeline("fields-by-batch", parallelism=2)
(
    pipeline.source("lines")
    .map_batches(wanted_rows)
    .map_batches(parted)
    .rebalance()
    .map_batches(marked)
    .sink("output", to="file:output")
)
