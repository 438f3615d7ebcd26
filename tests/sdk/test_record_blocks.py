"""Record blocks as a sink reads them."""

from __future__ import annotations

import pytest

from procession.errors import RemoteProtocolError
from procession.sdk.payloads import Payloads
from procession.sdk.record_blocks import RecordForm, block_batch, encode_block, record_batches


def test_messages_are_one_record_each_without_key_and_time() -> None:
    [batch] = record_batches([b"one", b"", b"three"], RecordForm.MESSAGES)
    assert batch.to_pydict() == {
        "payload": [b"one", b"", b"three"],
        "key": [None] * 3,
        "event_time_ns": [None] * 3,
    }


def test_blocks_are_batches_in_the_order_of_their_messages() -> None:
    first = block_batch([b"a", b"b"], keys=[b"k", None], event_times_ns=[1, None])
    second = block_batch([b"c"])
    payloads = Payloads.of([b"skipped", encode_block(first), encode_block(second)])[1:]
    assert list(record_batches(payloads, RecordForm.BLOCKS)) == [first, second]


def test_a_message_that_is_not_a_block_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="cannot be read"):
        list(record_batches([b"one"], RecordForm.BLOCKS))
