"""How the connectors handle a broker's own limits: expired transactions, time-outs, compaction, smaller messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from structlog.testing import capture_logs

from procession import faults
from procession.connectors import kafka_sink
from procession.connectors.kafka_client import KafkaClients, KafkaUrl
from procession.connectors.kafka_sink import KafkaOutput
from procession.connectors.kafka_source import KafkaSource, KafkaSourceOptions
from procession.connectors.kafka_topic import KafkaSinkOptions, TopicGuard
from procession.errors import ConfigError, StorageError
from procession.sdk.transaction_log import Transaction
from tests.systems.kafka_broker import Kafka, needs_kafka, running

pytestmark = [needs_kafka, pytest.mark.slow]

MIB = 1024 * 1024
LIMIT_S = 65
"""The longest transaction that the broker allows: enough for epochs of 5 MiB."""
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def strict() -> Iterator[Kafka]:
    with running(
        transaction__max__timeout__ms=str(LIMIT_S * 1000),
        transaction__abort__timed__out__transaction__cleanup__interval__ms="200",
        log__cleaner__backoff__ms="200",
    ) as kafka:
        yield kafka


def clients(kafka: Kafka, topic: str, patience_s: float = 30.0) -> KafkaClients:
    return KafkaClients(KafkaUrl.parse(kafka.url(topic)), {}, patience_s=patience_s)


def prepared(output: KafkaOutput, *payloads: bytes) -> Transaction:
    output.append(0, payloads)
    transaction = Transaction("id", 0, sum(map(len, payloads)))
    output.prepare(transaction)
    return transaction


def test_the_time_out_of_a_transaction_follows_from_the_largest_epoch_and_the_brokers_limit(
    strict: Kafka, tmp_path: Path
) -> None:
    topic = strict.topic()
    fits, does_not = KafkaSinkOptions(epoch_bytes_max=5 * MIB), KafkaSinkOptions(epoch_bytes_max=6 * MIB)
    TopicGuard(clients(strict, topic), fits).check_start()
    with pytest.raises(ConfigError, match=r"transactions of up to 66 seconds, but the brokers end them after 65 "):
        TopicGuard(clients(strict, topic), does_not).check_start()
    # A sink that may not read the broker's settings is told by the broker, so the time-out is really set.
    refused = KafkaOutput(tmp_path / "large", clients(strict, topic), does_not)
    with pytest.raises(ConfigError, match=r"transaction\.max\.timeout\.ms is too short"):
        refused.recover(0, None)
    output = KafkaOutput(tmp_path / "small", clients(strict, topic), fits)
    output.recover(0, None)
    output.commit(prepared(output, b"in time"))
    assert strict.values(topic) == [b"in time"]
    output.close()
    refused.close()


def test_a_transaction_that_expires_before_its_commit_is_published_once(
    strict: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = strict.topic()
    monkeypatch.setattr(kafka_sink, "TRANSACTION_TIMEOUT_FIRST_S", 2)
    expired: list[str] = []

    def dawdle(point: str) -> None:
        if point == "sink:kafka-sent" and not expired:
            expired.append(point)
            until_ended(strict, topic)

    output = KafkaOutput(tmp_path / "out", clients(strict, topic), KafkaSinkOptions(epoch_bytes_max=MIB))
    output.recover(0, None)
    transaction = prepared(output, b"one", b"two")
    monkeypatch.setattr(faults, "point", dawdle)
    output.commit(transaction)
    assert expired
    assert strict.values(topic) == [b"one", b"two"]
    output.close()


def until_ended(kafka: Kafka, topic: str) -> None:
    """Wait until messages have arrived and the broker has ended their transaction."""
    deadline = time.monotonic() + TIMEOUT_S
    while not kafka.end(topic):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert kafka.committed(topic) == []


def test_a_limit_that_is_lowered_after_the_vote_is_reported_and_the_epoch_is_published_when_it_is_raised(
    strict: Kafka, tmp_path: Path
) -> None:
    topic = strict.topic()
    output = KafkaOutput(tmp_path / "out", clients(strict, topic, 2.0), KafkaSinkOptions(epoch_bytes_max=MIB))
    output.recover(0, None)
    transaction = prepared(output, b"x" * 5000)
    set_limit(strict, topic, 1000)
    with pytest.raises(StorageError, match="refuses a record as too large"):
        output.commit(transaction)
    set_limit(strict, topic, MIB)
    output.commit(transaction)
    assert strict.values(topic) == [b"x" * 5000]
    output.close()


def set_limit(kafka: Kafka, topic: str, bytes_max: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(bytes_max), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    kafka.admin.incremental_alter_configs([resource])[resource].result(30)


def test_a_compacted_topic_causes_a_warning_and_its_remaining_messages_are_read_in_order(strict: Kafka) -> None:
    topic = strict.topic(cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", segment_bytes=str(MIB))
    body = bytes(100_000)
    deadline = time.monotonic() + TIMEOUT_S
    while not (left := offsets(strict, topic)) or left[-1] - left[0] + 1 == len(left):
        assert time.monotonic() < deadline, "the broker does not compact"
        strict.publish(topic, [b"%d" % number + body for number in range(12)], [b"key"] * 12)
    with capture_logs() as logs:
        source = KafkaSource(clients(strict, topic), KafkaSourceOptions(is_ending=True))
    assert "source.kafka_compacted" in [event["event"] for event in logs]
    [stream] = source.streams()  # type: ignore[misc]
    found = [int(number) for batch in source.read(stream, None) for number in batch.message_ids]
    assert found == sorted(set(found))
    assert found[-1] >= left[-1]
    after = left[0]  # a position whose next message is compacted away
    rest = [int(number) for batch in source.read(stream, after) for number in batch.message_ids]
    # The broker may have compacted again between the two reads, but never the last message.
    assert rest == sorted(set(rest) & {number for number in found if number > after})
    assert rest[-1] == found[-1]


def offsets(kafka: Kafka, topic: str) -> list[int]:
    return [message.offset() or 0 for message in kafka.committed(topic)]
