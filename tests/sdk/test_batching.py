"""Records are combined into batches as by a slow reference, at every limit; invalid items of an author are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.errors import RecordError
from procession.sdk.batching import GatherLimits, StreamBatcher
from procession.sdk.source_records import PAYLOAD_BYTES_MAX, Batch, Item, Stream

ONE = Stream(1, "one")
RECORDS = [(number * 3, number, b"k" * (number % 3), b"p" * number) for number in range(20)]


def batch_of(records: list[tuple[int, int, bytes, bytes]]) -> Batch:
    return Batch.gathered(*map(list, zip(*records, strict=True)))


def arrow_of(records: list[tuple[int, int, bytes, bytes]]) -> pa.RecordBatch:
    names = ["message_id", "event_time", "key", "payload"]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in zip(*records, strict=True)], names)


def rows(batch: Batch) -> list[tuple[int, int, bytes, bytes]]:
    keys = [b""] * len(batch) if batch.keys is None else batch.keys.to_pylist()
    columns = batch.message_ids.tolist(), batch.event_times.tolist(), keys, batch.payloads.to_pylist()
    return list(zip(*columns, strict=True))


def gathered(items: list[Item], limits: GatherLimits, after: int | None = None) -> list[Batch]:
    """Return all batches, as a reader that takes each one when it is complete."""
    gather, batches = StreamBatcher(ONE, after, limits), []
    for item in items:
        assert gather.has_room
        gather.add(item)
        while gather.is_due:
            batches.append(gather.take())
    while not gather.is_empty:
        batches.append(gather.take())
    assert gather.take() is None
    return [batch for batch in batches if batch is not None]


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from("rba"))), st.integers(1, 6), st.integers(1, 60))
def test_batches_keep_all_records_in_order_and_exceed_a_limit_by_at_most_one_record(
    pieces: list[tuple[int, str]], records_max: int, bytes_max: int
) -> None:
    items: list[Any] = []
    expected: list[tuple[int, int, bytes, bytes]] = []
    for count, kind in pieces:
        some = RECORDS[len(expected) : len(expected) + count]
        expected += some
        if some:
            items += some if kind == "r" else [batch_of(some)] if kind == "b" else [arrow_of(some)]
    batches = gathered(items, GatherLimits(records_max, bytes_max))
    assert [row for batch in batches for row in rows(batch)] == expected
    for batch in gathered(list(expected), GatherLimits(records_max, bytes_max)):
        assert len(batch) <= records_max
        assert int(batch.sizes()[:-1].sum()) < bytes_max


def test_a_batch_is_complete_at_either_limit() -> None:
    for limits, count in ((GatherLimits(3, 1000), 3), (GatherLimits(1000, 10), 5)):
        gather = StreamBatcher(ONE, None, limits)
        for number in range(count):
            assert gather.has_room
            assert not gather.is_due
            gather.add((number, 0, b"", b"xx"))
        assert gather.is_due
        assert not gather.has_room


@pytest.mark.parametrize(
    ("items", "after", "sentence"),
    [
        ([(1, 0, b"", b""), (1, 0, b"", b"")], None, "message id 1 comes after 1"),
        ([(2, 0, b"", b""), (1, 0, b"", b"")], None, "message id 1 comes after 2"),
        ([(5, 0, b"", b"")], 5, "message id 5 comes after 5"),
        ([batch_of([(4, 0, b"", b"")]), (3, 0, b"", b"")], None, "message id 3 comes after 4"),
        ([(2**64 - 1, 0, b"", b"")], None, "2^64-1 is reserved"),
        ([(-1, 0, b"", b"")], None, "message id is not a whole number of 64 bits"),
        ([(2**64, 0, b"", b"")], None, "message id is not a whole number of 64 bits"),
        ([(1, 1.5, b"", b"")], None, "event time is not a whole number of 64 bits"),
        ([("1", 0, b"", b"")], None, "message id is not a whole number of 64 bits"),
        ([(1, None, b"", b"")], None, "event time is not a whole number of 64 bits"),
        ([(1, 2**63, b"", b"")], None, "event time is not a whole number of 64 bits"),
        ([(1, 0, b"", b""), (2, "now", b"", b"")], None, "event time is not a whole number of 64 bits"),
        ([(1, 0, b"", [7])], None, "payload is neither bytes nor text"),
        ([(1, 0, b"", None)], None, "yielded tuple on stream 'one', which is not a record"),
        ([(1, b"")], None, "yielded tuple on stream 'one', which is not a record"),
        ([b"text"], None, "yielded bytes on stream 'one', which is not a record"),
        ([(1, 0, b"k" * 65536, b"")], None, "a key has 65536 bytes"),
        ([(7, 0, b"", b"x" * (PAYLOAD_BYTES_MAX + 1))], None, f"message 7 has {PAYLOAD_BYTES_MAX + 1} bytes"),
        ([pa.RecordBatch.from_pydict({"message_id": [1]})], None, "no column 'payload'"),
        ([pa.RecordBatch.from_pydict({"message_id": [1], "payload": [b""], "kye": [b""]})], None, "column 'kye'"),
        ([pa.RecordBatch.from_pydict({"message_id": [1], "payload": [None]})], None, "null"),
        ([pa.RecordBatch.from_pydict({"message_id": [None], "payload": [b""]})], None, "message id is missing"),
        ([Batch(np.array([1, 2], np.uint64), np.zeros(1, np.int64), pa.array([b"", b""]))], None, "different lengths"),
    ],
)
def test_an_item_that_cannot_be_sent_is_the_authors_error_with_a_next_step(
    items: list[Any], after: int | None, sentence: str
) -> None:
    with pytest.raises(RecordError) as caught:
        gathered(items, GatherLimits(), after)
    assert sentence in caught.value.sentence
    assert caught.value.next_step


def test_text_dictionaries_and_fixed_sizes_are_bytes_too() -> None:
    texts = pa.array(["a", "é", "a"])
    for column in (texts, texts.dictionary_encode(), texts.cast(pa.binary()), texts.cast(pa.large_string())):
        batch = Batch.of(pa.RecordBatch.from_arrays([pa.array([1, 2, 3]), column], ["message_id", "payload"]))
        assert rows(batch) == [(1, 0, b"", b"a"), (2, 0, b"", "é".encode()), (3, 0, b"", b"a")]
    fixed = pa.array([b"ab", b"cd"], pa.binary(2))
    batch = Batch.of(pa.RecordBatch.from_arrays([pa.array([1, 2]), fixed, fixed], ["message_id", "payload", "key"]))
    assert rows(batch) == [(1, 0, b"ab", b"ab"), (2, 0, b"cd", b"cd")]


def test_the_id_of_a_stream_name_never_changes() -> None:
    assert Stream.named("orders") == Stream(0xD5ACEBE867B47F4D, "orders")


def test_times_of_arrow_are_nanoseconds() -> None:
    times = pa.array([1, 2], pa.timestamp("ms"))
    columns = [pa.array([1, 2]), times, pa.array([b"", b""])]
    batch = Batch.of(pa.RecordBatch.from_arrays(columns, ["message_id", "event_time", "payload"]))
    assert batch.event_times.tolist() == [1_000_000, 2_000_000]
