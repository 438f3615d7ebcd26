"""The Kafka source with a real broker: offsets are ids, and lost or changed data stops it with a sentence."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from procession.connectors import kafka_source
from procession.connectors.kafka_client import KafkaClients, KafkaUrl
from procession.connectors.kafka_positions import StartPosition
from procession.connectors.kafka_source import KafkaSource, KafkaSourceOptions, parse_partitions
from procession.errors import ConfigError, RecordError, StorageError, UsageError
from procession.record import stream_id
from procession.sdk.source_records import Stream
from tests.systems.kafka_broker import Kafka, needs_kafka

pytestmark = needs_kafka


def opened(kafka: Kafka, topic: str, directory: Path | None = None, **options: object) -> KafkaSource:
    given = KafkaSourceOptions(**({"is_ending": True} | options))  # type: ignore[arg-type]
    return KafkaSource(KafkaClients(KafkaUrl.parse(kafka.url(topic)), {}, patience_s=30.0), given, directory)


def streams(source: KafkaSource) -> list[Stream]:
    found = source.streams()
    assert isinstance(found, list)
    return found


def records(source: KafkaSource, stream: Stream, after: int | None = None) -> list[tuple[int, bytes]]:
    return [
        (int(number), payload)
        for batch in source.read(stream, after)
        for number, payload in zip(batch.message_ids, batch.payloads.to_pylist(), strict=True)
    ]


def payloads(source: KafkaSource, after: int | None = None) -> list[bytes]:
    return [payload for stream in streams(source) for _, payload in records(source, stream, after)]


def test_each_partition_is_a_stream_and_each_message_a_record_with_key_and_time(kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    kafka.publish(topic, [b"a", b"b"], [b"k", None], partition=0, timestamp=1_700_000_000_123)
    kafka.publish(topic, [b"c"], partition=1)
    source = opened(kafka, topic)
    first, second = streams(source)
    assert first.name == f"kafka:{topic}/0"
    [batch] = [batch for batch in source.read(first, None) if len(batch)]
    assert batch.message_ids.tolist() == [0, 1]
    assert batch.event_times.tolist() == [1_700_000_000_123_000_000] * 2
    assert batch.keys is not None
    assert batch.keys.to_pylist() == [b"k", b""]
    assert records(source, second) == [(0, b"c")]
    assert records(source, first, after=0) == [(1, b"b")]
    assert records(source, first, after=1) == []


def test_only_committed_messages_are_read_and_the_end_may_be_a_transaction_marker(kafka: Kafka) -> None:
    topic = kafka.topic()
    producer = Producer({"bootstrap.servers": kafka.server.address, "transactional.id": topic})
    producer.init_transactions(30)
    for value, is_committed in ((b"one", True), (b"aborted", False), (b"two", True), (b"aborted", False)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(30)
        (producer.commit_transaction if is_committed else producer.abort_transaction)(30)
    assert records(opened(kafka, topic), streams(opened(kafka, topic))[0]) == [(0, b"one"), (4, b"two")]


def test_the_source_starts_at_the_requested_position(kafka: Kafka) -> None:
    topic = kafka.topic()
    for second in range(4):
        kafka.publish(topic, [b"%d" % second], timestamp=(1_700_000_000 + second) * 1000)
    moment = datetime.fromtimestamp(1_700_000_002, UTC).isoformat()
    for text, expected in (
        ("earliest", [b"0", b"1", b"2", b"3"]),
        ("latest", []),
        (moment, [b"2", b"3"]),
        ("2096-01-01T00:00:00Z", []),
        ("0:1", [b"1", b"2", b"3"]),
    ):
        assert payloads(opened(kafka, topic, start=StartPosition.parse(text))) == expected, text
    with pytest.raises(ConfigError, match="offsets from 0 to 4"):
        opened(kafka, topic, start=StartPosition.parse("0:9"))
    with pytest.raises(UsageError, match="no start"):
        StartPosition.parse("yesterday")


def test_a_start_is_resolved_once_so_a_restart_before_the_first_commit_skips_nothing(
    kafka: Kafka, tmp_path: Path
) -> None:
    topic = kafka.topic()
    kafka.publish(topic, [b"before"])
    latest = StartPosition.parse("latest")
    opened(kafka, topic, tmp_path, start=latest)
    kafka.publish(topic, [b"after"])
    assert payloads(opened(kafka, topic, tmp_path, start=latest)) == [b"after"]


def test_selected_partitions_can_be_read(kafka: Kafka) -> None:
    topic = kafka.topic(partitions=3)
    for partition in range(3):
        kafka.publish(topic, [b"%d" % partition], partition=partition)
    assert payloads(opened(kafka, topic, partitions=parse_partitions("0,2"))) == [b"0", b"2"]
    with pytest.raises(ConfigError, match="no partition 7, but 3 from 0 on"):
        opened(kafka, topic, partitions=frozenset({7}))


def test_a_new_partition_is_noticed_and_read_from_its_first_message(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_source, "POLL_INTERVAL_S", 0.05)
    topic = kafka.topic()
    source = opened(kafka, topic, is_ending=False, start=StartPosition.parse("latest"))

    async def second() -> Stream:
        found = source.streams()
        assert not isinstance(found, list)
        iterator = aiter(found)
        await anext(iterator)
        kafka.admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
        kafka.publish(topic, [b"early"], partition=1)
        return await asyncio.wait_for(anext(iterator), 30)

    stream = asyncio.run(second())
    assert stream.name == f"kafka:{topic}/1"
    for batch in source.read(stream, None):
        if len(batch):
            assert batch.payloads.to_pylist() == [b"early"]
            break


def test_messages_that_retention_deleted_stop_the_source_and_are_skipped_only_if_asked(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.publish(topic, [b"%d" % number for number in range(10)])
    kafka.admin.delete_records([TopicPartition(topic, 0, 5)])[TopicPartition(topic, 0)].result(30)
    [stream] = streams(opened(kafka, topic))
    with pytest.raises(StorageError, match="begins at offset 5, but 3 is to be read next"):
        records(opened(kafka, topic), stream, after=2)
    assert records(opened(kafka, topic), stream, after=4)[0] == (5, b"5")
    assert records(opened(kafka, topic, is_skipping_deleted=True), stream, after=2)[0] == (5, b"5")


def test_a_lost_position_that_is_reported_together_with_messages_stops_the_source_after_them(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.topic()
    kafka.publish(topic, [b"0", b"1"])
    source = opened(kafka, topic)
    lost = KafkaError(KafkaError._AUTO_OFFSET_RESET)  # the client reports it once
    responses = [
        [Message(topic=topic, partition=0, offset=0, value=b"0", timestamp=(1, 1)), Message(topic=topic, error=lost)]
    ]
    monkeypatch.setattr(kafka_source, "next_messages", lambda *_: responses.pop() if responses else [])
    batches = source.read(streams(source)[0], None)
    assert next(batches).payloads.to_pylist() == [b"0"]
    with pytest.raises(StorageError, match="was cut off"):
        next(batches)


def test_a_position_after_the_end_means_a_truncated_log(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.publish(topic, [b"one"])
    source = opened(kafka, topic)
    with pytest.raises(StorageError, match="was cut off"):
        records(source, streams(source)[0], after=7)


def test_a_leader_epoch_that_the_log_no_longer_has_means_a_truncated_log(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic()
    kafka.publish(topic, [b"one", b"two", b"three"])
    source = opened(kafka, topic, tmp_path)
    [stream] = streams(source)
    assert len(records(source, stream)) == 3
    path = tmp_path / f"{topic}.kafka"
    document = json.loads(path.read_bytes())
    assert document["epochs"] == {"0": [[0, 0]]}
    assert records(opened(kafka, topic, tmp_path), stream, after=0) == [(1, b"two"), (2, b"three")]
    # As if a leader had been elected after these, had added messages, and had lost them to an unclean election.
    path.write_text(json.dumps(document | {"epochs": {"0": [[0, 5]]}}))
    follower = opened(kafka, topic, tmp_path, is_ending=False)
    with pytest.raises(StorageError, match="was cut off"):
        for _ in takewhile(lambda batch: not len(batch), follower.read(stream, 0)):
            pass


def test_a_topic_that_was_created_again_is_noticed_while_it_is_read_and_after_a_restart(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_source, "POLL_INTERVAL_S", 0.05)
    topic = kafka.topic()
    source = opened(kafka, topic, tmp_path, is_ending=False)
    before = source.stream_ids
    kafka.recreate(topic)

    async def observe() -> None:
        async for _ in source.streams():  # type: ignore[union-attr]
            pass

    with pytest.raises(StorageError, match="deleted and created again"):
        asyncio.run(asyncio.wait_for(observe(), 30))
    with pytest.raises(StorageError, match="deleted and created again"):
        opened(kafka, topic, tmp_path)
    assert opened(kafka, topic).stream_ids.isdisjoint(before), "another topic is another stream"


def test_in_event_time_order_streams_have_the_topics_name_and_its_remembered_id_is_compared(
    kafka: Kafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = kafka.topic(partitions=3)
    kafka.publish(topic, [b"a", b"b"], partition=2)
    by_name = {"partitions": frozenset({0, 2}), "is_by_name": True}
    source = opened(kafka, topic, tmp_path / "state", **by_name)
    assert source.stream_ids == {stream_id(f"kafka:{topic}/{number}".encode()) for number in (0, 2)}
    assert "partitions_left_out" in capsys.readouterr().out, "partition 1 must not appear to be read"
    second = streams(source)[1]
    assert records(source, second) == [(0, b"a"), (1, b"b")]
    assert records(source, second, after=0) == [(1, b"b")], "the restarted gateway continues"
    assert records(opened(kafka, topic, tmp_path / "state", **by_name), second, after=0) == [(1, b"b")]
    with pytest.raises(StorageError, match="directory has no entry for the topic"):
        records(opened(kafka, topic, tmp_path / "lost", **by_name), second, after=0)
    kafka.recreate(topic)
    with pytest.raises(StorageError, match="deleted and created again"):
        opened(kafka, topic, tmp_path / "state", partitions=frozenset({0}), is_by_name=True)


def test_a_deleted_topic_is_reported(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_source, "POLL_INTERVAL_S", 0.05)
    monkeypatch.setattr(kafka_source, "GONE_S", 0.5)
    topic = kafka.topic()
    source = opened(kafka, topic, is_ending=False)
    kafka.admin.delete_topics([topic])[topic].result(30)

    async def observe() -> None:
        async for _ in source.streams():  # type: ignore[union-attr]
            pass

    with pytest.raises(StorageError, match="was deleted"):
        asyncio.run(asyncio.wait_for(observe(), 30))


def test_an_envelope_has_all_of_a_message(kafka: Kafka) -> None:
    topic = kafka.topic()
    headers = [("h", b"v"), ("raw", b"\xff"), ("none", None)]
    kafka.publish(topic, [b"text", None, b"\xff\xfe"], [b"k", b"k", None], headers=headers, timestamp=1_700_000_000_000)
    first, second, third = [json.loads(payload) for payload in payloads(opened(kafka, topic, is_envelope=True))]
    assert first == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp_ms": 1_700_000_000_000,
        "key": "k",
        "value": "text",
        "headers": [["h", "v"], ["raw", None, "/w=="], ["none", None]],
    }
    assert second["value"] is None
    assert third["value_base64"] == "//4="


def test_a_timestamp_out_of_range_is_reported_with_its_offset(kafka: Kafka) -> None:
    topic = kafka.topic(message_timestamp_after_max_ms=str(2**63 - 1))
    kafka.publish(topic, [b"x"], timestamp=1_700_000_000_000_000)
    with pytest.raises(RecordError, match="at offset 0"):
        payloads(opened(kafka, topic))
    assert payloads(opened(kafka, topic, has_event_times=False)) == [b"x"]


def test_positions_are_committed_to_a_group_for_other_tools_to_see(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.publish(topic, [b"one", b"two"])
    source = opened(kafka, topic, group="seen-by-tools")
    [stream] = streams(source)
    source.forget(stream, 0)
    source.forget(stream, 1)
    source.close()
    consumer = Consumer({"bootstrap.servers": kafka.server.address, "group.id": "seen-by-tools"})
    assert [place.offset for place in consumer.committed([TopicPartition(topic, 0)], timeout=30)] == [2]
    consumer.close()


def test_a_full_buffer_does_not_make_the_reader_wait(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client pauses when its buffer is full. With its default settings, the reader would wait a second for each
    buffer."""
    monkeypatch.setattr(kafka_source, "BATCH_MESSAGES_MAX", 1000)  # buffers of 4,000 messages
    topic = kafka.topic()
    kafka.publish(topic, [bytes(200)] * 60_000)
    source = opened(kafka, topic)
    began = time.monotonic()
    assert len(payloads(source)) == 60_000
    assert time.monotonic() - began < 5.0


def test_reading_an_idle_partition_can_be_stopped(kafka: Kafka) -> None:
    source = opened(kafka, kafka.topic(), is_ending=False)
    found = source.read(source._stream(0), None)
    assert isinstance(found, Iterator)
    assert len(next(found)) == 0, "the reader can stop here"
    found.close()  # type: ignore[attr-defined]
