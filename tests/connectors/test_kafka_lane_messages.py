"""Lanes as Kafka messages, without a broker: they are read back however the messages arrive, and messages that are not
of a lane are refused."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Message

from procession.connectors import kafka_lane_messages
from procession.connectors.kafka_lane_messages import (
    BLOCK_BYTES_MAX,
    FRONTIER_HEADER,
    ORDER_HEADER,
    block_messages_of,
    content_of,
    messages_of,
)
from procession.connectors.kafka_lanes import TopicLanes
from procession.connectors.kafka_messages import MessageEncoder
from procession.errors import StorageError
from procession.sdk.lane_merge import LaneMerge, MergeOptions
from procession.wire.lane_blocks import Frontier, LaneIdentity, LaneRecords, encode_frontier, encode_records
from tests.sdk.lanes import batch_of, dealt

TOPIC = "lanes"


class Consumer:
    """Returns scripted messages, a few at a time, and then the end of each partition."""

    def __init__(self, messages: Sequence[Message], chance: random.Random) -> None:
        self._messages = list(messages)
        self._chance = chance
        self.paused: set[int] = set()

    def assign(self, places: Sequence[Any]) -> None:
        self._messages += [
            Message(topic=TOPIC, partition=place.partition, error=KafkaError(KafkaError._PARTITION_EOF))
            for place in places
        ]

    def poll(self, timeout: float) -> Message | None:
        found = self.consume(1, timeout)
        return found[0] if found else None

    def consume(self, count: int, timeout: float) -> list[Message]:
        count = min(count, self._chance.randint(1, 40))
        ready: list[Message] = []
        left: list[Message] = []
        for message in self._messages:
            is_taken = len(ready) < count and message.partition() not in self.paused
            (ready if is_taken else left).append(message)
        self._messages = left
        return ready

    def pause(self, places: Sequence[Any]) -> None:
        self.paused |= {place.partition for place in places}

    def resume(self, places: Sequence[Any]) -> None:
        self.paused -= {place.partition for place in places}

    def close(self) -> None:
        """Do nothing: a fake has nothing to close."""


class Clients:
    def __init__(self, messages: Sequence[Message], lanes: int, seed: int = 1) -> None:
        self.url = SimpleNamespace(topic=TOPIC)
        self.patience_s = 5.0
        self._lanes = lanes
        self.made = Consumer(messages, random.Random(seed))

    def topic(self, name: str) -> Any:
        return SimpleNamespace(partitions=range(self._lanes))

    def consumer(self, settings: Mapping[str, Any]) -> Any:
        return self.made


def lane_blocks(epoch: int, lane: int, shares: Sequence[Sequence[int]]) -> bytes:
    identity = LaneIdentity("g", "shop", "trades", (lane,), len(shares), "total")
    frontier = Frontier(epoch, identity, len(shares[lane]), sum(map(len, shares)))
    records = encode_records(epoch, batch_of(shares[lane])) if shares[lane] else b""
    return records + encode_frontier(frontier)


def published(epochs: Sequence[Sequence[Sequence[int]]]) -> list[list[Message]]:
    """Return the messages of each partition as a broker has them. A transaction ends with a marker, which has an
    offset."""
    partitions: list[list[Message]] = [[] for _ in epochs[0]]
    for epoch, shares in enumerate(epochs):
        for lane, partition in enumerate(partitions):
            first = partition[-1].offset() + 2 if partition else 0
            rows = [
                row
                for batch in messages_of(lane_blocks(epoch, lane, shares), MessageEncoder())
                for row in rows_of(batch)
            ]
            partition += [
                Message(topic=TOPIC, partition=lane, offset=first + place, key=key, value=value, headers=headers)
                for place, (key, value, headers) in enumerate(rows)
            ]
    return partitions


def rows_of(batch: pa.RecordBatch) -> Iterator[tuple[bytes | None, bytes | None, Any]]:
    for row in batch.to_pylist():
        headers = [(header["name"], header["value"]) for header in row["headers"] or ()] or None
        yield row["key"], row["value"], headers


def merged_numbers(clients: Clients, **options: Any) -> list[int]:
    lanes = TopicLanes(clients, {}, **options)  # type: ignore[arg-type]
    merging = LaneMerge(lambda _: lanes.lanes, MergeOptions(is_verifying=True))
    return [int(value) for turn in merging.turns() for batch in turn for value in batch.rows.column(0).to_pylist()]


def mixed(partitions: Sequence[Sequence[Message]], seed: int) -> list[Message]:
    """Return the messages of all partitions in a random order that keeps the order within each."""
    chance, left = random.Random(seed), [list(partition) for partition in partitions]
    found = []
    while any(left):
        source = chance.choice([partition for partition in left if partition])
        found += [source.pop(0) for _ in range(min(len(source), chance.randint(1, 9)))]
    return found


EPOCHS = [dealt(range(epoch * 100, epoch * 100 + 100), 3, epoch, empty=(1,) if epoch % 2 else ()) for epoch in range(5)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("order_bytes_max", [1, 200, 256 * 1024])
def test_messages_that_arrive_in_any_pieces_are_merged(
    monkeypatch: pytest.MonkeyPatch, seed: int, order_bytes_max: int
) -> None:
    monkeypatch.setattr(kafka_lane_messages, "ORDER_BYTES_MAX", order_bytes_max)
    clients = Clients(mixed(published(EPOCHS), seed), 3, seed)
    assert merged_numbers(clients) == list(range(500))


def test_lanes_that_are_ahead_are_paused_and_resumed_later() -> None:
    clients = Clients(mixed(published(EPOCHS), 3), 3)
    paused: list[int] = []
    pause = clients.made.pause
    clients.made.pause = lambda places: (paused.extend(place.partition for place in places), pause(places))[1]  # type: ignore[method-assign]
    assert merged_numbers(clients, buffer_bytes=300) == list(range(500))
    assert paused


def test_a_record_is_a_plain_message_and_keeps_key_and_time() -> None:
    (partition,) = published([[[7, 8]]])
    order, first, second, frontier = partition
    assert (first.key(), first.value(), first.headers()) == (b"7", b"7", None)
    assert second.value() == b"8"
    headers = [header for message in (order, frontier) for header in message.headers() or ()]
    assert [header[0] for header in headers] == [ORDER_HEADER, FRONTIER_HEADER]
    lanes = TopicLanes(Clients(partition, 1), {})  # type: ignore[arg-type]
    assert lanes.lanes[0].poll() == 0
    (batch,) = lanes.lanes[0].batches()
    assert batch.column("event_time").to_pylist() == [7, 8]
    assert batch.column("key").to_pylist() == [b"7", b"8"]


def refusal(messages: list[Message]) -> str:
    with pytest.raises(StorageError) as caught:
        merged_numbers(Clients(messages, 1))
    return caught.value.sentence


def test_a_missing_record_is_noticed_at_its_offset() -> None:
    (partition,) = published([[list(range(20))]])
    assert "the message at offset 5 is missing" in refusal(partition[:5] + partition[6:])


def test_a_foreign_message_is_refused() -> None:
    (partition,) = published([[list(range(5))]])
    last = partition[-1].offset()
    foreign = Message(topic=TOPIC, partition=0, offset=last + 1, value=b"foreign")
    assert "it has no header of a lane" in refusal([*partition, foreign])
    within = [
        Message(topic=TOPIC, partition=0, offset=place, value=message.value(), headers=message.headers())
        for place, message in enumerate([*partition[:3], foreign, *partition[3:]])
    ]
    assert "it has no header of a lane" in refusal(within), "the message was counted, so there is one record too many"


def test_an_epoch_that_begins_inside_another_one_is_refused() -> None:
    (one,) = published([[list(range(5))]])
    other = next(messages_of(lane_blocks(1, 0, [[9]]), MessageEncoder()))
    ((key, value, headers),) = rows_of(other)
    begun = Message(topic=TOPIC, partition=0, offset=one[-1].offset(), key=key, value=value, headers=headers)
    assert "epoch 1 begins before the end of epoch 0" in refusal([*one[:-1], begun])


def test_a_marked_message_without_a_block_is_refused() -> None:
    empty = Message(topic=TOPIC, partition=0, offset=0, value=b"", headers=[(ORDER_HEADER, b"\0" * 8)])
    assert "has 0 blocks" in refusal([empty])


def test_a_message_with_a_block_has_many_records_and_a_bounded_size() -> None:
    rows = batch_of(range(40_000))
    long = rows.slice(0, 3).set_column(0, rows.schema.field(0), pa.array([b"x" * BLOCK_BYTES_MAX] * 3, pa.binary()))
    messages = list(block_messages_of(encode_records(7, rows) + encode_records(7, long)))
    values = [batch.column("value")[0].as_py() for batch in messages]
    batches = [content.batch for content in map(content_of, values) if isinstance(content, LaneRecords)]
    assert pa.Table.from_batches(batches) == pa.Table.from_batches([rows, long])
    assert [batch.num_rows for batch in batches[-3:]] == [1, 1, 1], "a record is never divided"
    assert len(batches) - 3 <= 8
    assert all(len(value) < 1.1 * BLOCK_BYTES_MAX for value in values)
