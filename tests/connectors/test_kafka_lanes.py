"""Lanes in the partitions of a topic, with a real broker: a merger emits the sequence once, in order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from procession.connectors.kafka_client import KafkaClients, KafkaUrl
from procession.connectors.kafka_lane_messages import FRONTIER_HEADER, ORDER_HEADER
from procession.connectors.kafka_lanes import open_topic
from procession.connectors.kafka_sink import KafkaOutput
from procession.connectors.kafka_topic import KafkaSinkOptions
from procession.connectors.merge_target import open_target
from procession.errors import ConfigError, StorageError
from procession.sdk.lane_merge import LaneMerge, MergeOptions
from procession.sdk.merge_output import merge_into
from procession.sdk.merged_records import merged
from procession.sdk.output import OpenOutput
from procession.sdk.record_blocks import RecordForm
from procession.sdk.transaction_log import Transaction
from procession.wire.lane_blocks import Frontier, LaneIdentity, encode_frontier, encode_records
from tests.sdk.lanes import LaneWriter, batch_of, dealt
from tests.systems.kafka_broker import Kafka, needs_kafka

pytestmark = needs_kafka


def clients(kafka: Kafka, topic: str) -> KafkaClients:
    return KafkaClients(KafkaUrl.parse(kafka.url(topic)), {}, patience_s=30.0)


def opener(kafka: Kafka, directory: Path, topic: str, *, in_blocks: bool = False) -> OpenOutput:
    def opened(instance: str) -> KafkaOutput:
        partition = int(instance.rpartition("-")[2])
        options = KafkaSinkOptions(RecordForm.LANES, partition=partition, has_lane_blocks=in_blocks)
        return KafkaOutput(directory / instance, clients(kafka, topic), options)

    return opened


def written(
    kafka: Kafka, directory: Path, topic: str, lanes: int, epochs: int, *, in_blocks: bool = False
) -> LaneWriter:
    writer = LaneWriter(directory, lanes, open_output=opener(kafka, directory, topic, in_blocks=in_blocks))
    for epoch in range(epochs):
        writer.epoch(dealt(range(epoch * 100, epoch * 100 + 100), lanes, epoch, empty=(1,)))
    return writer


@pytest.mark.parametrize("in_blocks", [False, True])
def test_partitions_are_merged_into_the_sequence_and_a_restarted_merger_continues(
    kafka: Kafka, tmp_path: Path, in_blocks: bool
) -> None:
    topic = kafka.topic(partitions=4)  # one more than lanes
    writer = written(kafka, tmp_path / "sink", topic, 3, 2, in_blocks=in_blocks)
    first = merged(kafka.url(topic), verify=True)
    records = list(first)
    assert [int(record.payload) for record in records] == list(range(200))
    assert (records[7].key, records[7].event_time_ns) == (b"7", 7), "event times keep their nanoseconds"
    position = json.loads(json.dumps(first.position))
    first.close()
    writer.epoch(dealt(range(200, 300), 3, 7))
    second = merged(kafka.url(topic), position=position)
    assert [int(record.payload) for record in second] == list(range(200, 300))
    second.close()
    writer.close()


def test_plain_consumers_skip_frontiers_by_their_header(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic(partitions=2)
    written(kafka, tmp_path / "sink", topic, 2, 1).close()
    names = [dict(message.headers() or ()).keys() for message in kafka.committed(topic)]
    assert sum(FRONTIER_HEADER in headers for headers in names) == 2
    assert sum(ORDER_HEADER in headers for headers in names) < 20, "fewer messages than records"
    assert sum(not headers for headers in names) == 100


def test_a_lane_with_a_vote_is_published_by_the_next_sink(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic()
    identity = LaneIdentity("g", "shop", "trades", (0,), 1, "total")
    blocks = [encode_records(0, batch_of(range(start, start + 50))) for start in (0, 50)]
    blocks.append(encode_frontier(Frontier(0, identity, 100, 100)))
    transaction = Transaction("t", 0, sum(map(len, blocks)))
    first = opener(kafka, tmp_path, topic)("shop-trades-0")
    first.recover(0, None)
    first.append(0, blocks)
    first.prepare(transaction)
    first.close()
    second = opener(kafka, tmp_path, topic)("shop-trades-0")
    second.recover(0, transaction)
    second.commit(transaction)
    second.close()
    merging = merged(kafka.url(topic), verify=True)
    assert [int(record.payload) for record in merging] == list(range(100))
    merging.close()


def test_the_merger_waits_for_a_silent_partition_and_names_it(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic(partitions=2)
    writer = written(kafka, tmp_path / "sink", topic, 2, 1)
    writer.epoch([[100, 102], [101]], only=[0])
    merging = merged(kafka.url(topic))
    assert len(list(merging)) == 100
    assert merging.report.waiting_for == (f"{topic}-1",)
    merging.close()
    writer.close()


@pytest.mark.parametrize("in_blocks", [False, True])
def test_a_small_buffer_pauses_lanes_and_loses_nothing(kafka: Kafka, tmp_path: Path, in_blocks: bool) -> None:
    topic = kafka.topic(partitions=3)
    written(kafka, tmp_path / "sink", topic, 3, 6, in_blocks=in_blocks).close()
    open_lanes = open_topic(clients(kafka, topic), buffer_bytes=300)
    merging = LaneMerge(open_lanes, MergeOptions(is_verifying=True))
    given = [int(value) for turn in merging.turns() for batch in turn for value in batch.rows.column(0).to_pylist()]
    assert given == list(range(600))
    merging.close()


def test_a_merger_from_kafka_to_kafka_is_exactly_once(kafka: Kafka, tmp_path: Path) -> None:
    lanes, out = kafka.topic(partitions=2), kafka.topic()
    writer = written(kafka, tmp_path / "sink", lanes, 2, 2)
    for _ in range(2):
        output = open_target(kafka.url(out), tmp_path / "state")
        merging = LaneMerge(open_topic(clients(kafka, lanes)), MergeOptions(), output.position)
        merge_into(merging, output)
        merging.close()
        output.close()
    assert kafka.values(out) == [b"%d" % number for number in range(200)]
    writer.close()


def test_a_topic_that_has_no_lanes_is_refused(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic()
    output = KafkaOutput(tmp_path / "out", clients(kafka, topic), KafkaSinkOptions())
    output.recover(0, None)
    output.append(0, [b"plain"])
    output.prepare(Transaction("t", 0, 5))
    output.commit(Transaction("t", 0, 5))
    output.close()
    with pytest.raises(StorageError, match="is not one of a lane"):
        list(merged(kafka.url(topic)))


def test_a_lane_without_a_partition_is_refused_before_the_first_record(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic(partitions=2)
    with pytest.raises(ConfigError, match="has no partition 2, but 2 from 0 on"):
        written(kafka, tmp_path / "sink", topic, 3, 1)
