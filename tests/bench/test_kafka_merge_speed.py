"""The benchmark of a merger from Kafka compares two readers of the same messages, with a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession.bench.kafka_merge_speed import TOPIC, compare, publish, report_lines
from procession.bench.lane_merge_speed import lanes_of
from procession.connectors.kafka_client import KafkaClients, KafkaUrl
from procession.errors import StorageError
from tests.systems.kafka_broker import Kafka, needs_kafka


@needs_kafka
def test_both_readers_get_all_records(kafka: Kafka, tmp_path: Path) -> None:
    from confluent_kafka.admin import NewTopic

    clients = KafkaClients(KafkaUrl.parse(kafka.url(TOPIC)), {}, patience_s=30.0)
    clients.new_topic(NewTopic(TOPIC, 3, 1))
    publish(clients, lanes_of(4000, 3), tmp_path)
    figures = compare(clients, 4000, 3, 1)
    assert min(figures.values()) > 0
    assert "3 lanes in Kafka" in "".join(report_lines(figures, 3))
    with pytest.raises(StorageError, match="4,000 records were read, not 3,999"):
        compare(clients, 3999, 3, 1)
