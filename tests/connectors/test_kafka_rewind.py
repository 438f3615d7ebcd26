"""A topic is read again for a rollback only if it still has every message from the position on."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from procession.connectors.kafka_client import KafkaClients, KafkaUrl
from procession.connectors.kafka_rewind import KafkaRewind
from procession.connectors.kafka_source import KafkaSource, KafkaSourceOptions
from procession.connectors.source_rewind import SourcePlace
from procession.errors import StorageError
from procession.planner.connector_registry import source_of
from tests.systems.kafka_broker import Kafka, needs_kafka

pytestmark = needs_kafka


def rewind(kafka: Kafka, topic: str, directory: Path, options: str = "") -> KafkaRewind:
    url = f"{kafka.url(topic)}{options}"
    return KafkaRewind(SourcePlace("numbers", url, directory, directory), source_of(url, "source 'numbers'")[1])


def test_a_topic_that_has_all_messages_from_there_on_can_be_read_again(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic(partitions=2)
    kafka.publish(topic, [b"%d" % number for number in range(8)], partition=0)
    clients = KafkaClients(KafkaUrl.parse(kafka.url(topic)), {}, patience_s=30.0)
    ids = KafkaSource(clients, KafkaSourceOptions(is_ending=True), tmp_path).stream_ids
    found = rewind(kafka, topic, tmp_path)
    assert found.stream_ids == ids
    (first,) = rewind(kafka, topic, tmp_path, "?partitions=0").stream_ids
    found.check(first, None, 7)  # from the start that the source has remembered
    found.check(first, 3, 7)
    with pytest.raises(StorageError, match=r"\[0\] ends at offset 8, but 10 messages of it were read"):
        found.check(first, 3, 9)
    with pytest.raises(StorageError, match="was begun at an offset that is not known any more"):
        rewind(kafka, topic, tmp_path / "another").check(first, None, 7)
    kafka.admin.delete_records([TopicPartition(topic, 0, 5)])[TopicPartition(topic, 0)].result(30)
    found.check(first, 4, 7)
    with pytest.raises(StorageError, match=r"\[0\] begins at offset 5, but 4 is to be read next"):
        found.check(first, 3, 7)


def test_a_compacted_topic_cannot_be_read_again(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic(**{"cleanup.policy": "compact"})
    kafka.publish(topic, [b"a"], [b"k"])
    found = rewind(kafka, topic, tmp_path)
    (stream,) = found.stream_ids
    with pytest.raises(StorageError, match="is compacted"):
        found.check(stream, None, 0)
