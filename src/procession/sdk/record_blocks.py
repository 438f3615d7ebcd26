"""Record blocks for sinks: the records that arrive in messages, as Arrow record batches.

Invariant: a sink that writes records, not bytes, reads `record_batches(payloads, form)`, which hides how the records
arrived. A sink started by `procession run` gets blocks: one MESSAGE holds many records with key and event time. A sink
that a user starts gets one record per message, without key and event time, unless `--records blocks` is given at both
ends. Positions count the bytes of the messages in both forms.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from enum import StrEnum

import pyarrow as pa

from procession.sdk.payloads import Payloads
from procession.wire.block_codec import (
    BLOCK_BYTES_MAX,
    BLOCK_RECORDS_MAX,
    BLOCK_SCHEMA,
    block_batch,
    decode_block,
    encode_block,
    encode_blocks,
)

__all__ = [
    "BLOCK_BYTES_MAX",
    "BLOCK_RECORDS_MAX",
    "BLOCK_SCHEMA",
    "RecordForm",
    "block_batch",
    "decode_block",
    "encode_block",
    "encode_blocks",
    "record_batches",
]


class RecordForm(StrEnum):
    """How records arrive at a sink: the values of its option `--records`."""

    MESSAGES = "messages"
    """One record per message."""
    BLOCKS = "blocks"
    """One record block per message."""
    LANES = "lanes"
    """One lane block per message: records with their order keys, or a frontier (`wire/lane_blocks`)."""


def record_batches(payloads: Sequence[bytes], form: RecordForm) -> Iterator[pa.RecordBatch]:
    """Decode messages to Arrow batches with the columns of `BLOCK_SCHEMA`. The records keep their order.

    Args:
        payloads: The argument of `Output.append`.
        form: How the records arrive.

    Raises:
        RemoteProtocolError: A message is not a block.

    Example:
        >>> [batch] = record_batches([b"one", b"two"], RecordForm.MESSAGES)
        >>> batch.column("payload").to_pylist()
        [b'one', b'two']
    """
    if form is RecordForm.MESSAGES:
        yield block_batch(Payloads.of(payloads).array)
        return
    messages = Payloads.of(payloads)
    edges, joined = messages.edges.tolist(), messages.joined
    for start, end in itertools.pairwise(edges):
        yield decode_block(joined[start:end])
