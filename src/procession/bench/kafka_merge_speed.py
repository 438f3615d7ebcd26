"""Compares a merger that reads lanes from Kafka with a plain consumer of the same partitions.

Both read the same committed messages from the same broker in this process, in turn. The plain consumer reads the
value of each message and ignores it. The merger yields all records in order. Adjacent records are in random lanes.
The result is the median over the rounds of the ratio of the two, by time and by processor time; the latter includes
the threads of the client.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition
from confluent_kafka.admin import NewTopic

from procession.bench.lane_merge_speed import MemoryLane, lanes_of
from procession.chaos.kafka_server import KafkaServer
from procession.connectors.kafka_client import KafkaClients, KafkaUrl, next_messages
from procession.connectors.kafka_lanes import POLL_MESSAGES, POLL_S, open_topic
from procession.connectors.kafka_sink import KafkaOutput
from procession.connectors.kafka_topic import KafkaSinkOptions
from procession.errors import StorageError
from procession.sdk.lane_merge import LaneMerge, MergeOptions
from procession.sdk.output import Output, refuse_to_wait
from procession.sdk.record_blocks import RecordForm
from procession.sdk.sink_directory import SinkDirectory
from procession.wire.lane_blocks import Frontier, encode_frontier, encode_records
from procession.wire.messages import DATA_STREAM

TOPIC = "lanes"
READERS = ("plain", "merged")


def measure(records: int, lanes: int, rounds: int) -> dict[str, float]:
    with (
        tempfile.TemporaryDirectory(prefix="procession-bench-", ignore_cleanup_errors=True) as work,
        KafkaServer() as server,
    ):
        clients = KafkaClients(KafkaUrl.parse(f"kafka://{server.address}/{TOPIC}"), {})
        clients.new_topic(NewTopic(TOPIC, lanes, 1))
        memory_lanes = lanes_of(records, lanes)
        publish(clients, memory_lanes, Path(work))
        return compare(clients, sum(total for _, total in memory_lanes[0].epochs), lanes, rounds)


def compare(clients: KafkaClients, records: int, lanes: int, rounds: int) -> dict[str, float]:
    """Run both readers alternately, after a first run to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in READERS}
    cpu_s: dict[str, list[float]] = {name: [] for name in READERS}
    for number in range(rounds + 1):
        for name in READERS if number % 2 else READERS[::-1]:
            began_s, used_s = time.perf_counter(), time.process_time()
            count = merge(clients) if name == "merged" else read_plain(clients, lanes)
            if number:
                seconds[name].append(time.perf_counter() - began_s)
                cpu_s[name].append(time.process_time() - used_s)
            # The plain consumer also sees messages that are not records.
            if count < records or (name == "merged" and count > records):
                raise StorageError(f"{name}: {count:,} records were read, not {records:,}")
    return {
        "plain_records_per_second": records / statistics.median(seconds["plain"]),
        "merged_records_per_second": records / statistics.median(seconds["merged"]),
        "ratio": _ratio(seconds),
        "plain_cpu_us": statistics.median(cpu_s["plain"]) / records * 1e6,
        "merged_cpu_us": statistics.median(cpu_s["merged"]) / records * 1e6,
        "cpu_ratio": _ratio(cpu_s),
    }


def _ratio(times: Mapping[str, list[float]]) -> float:
    return statistics.median(plain / merged for plain, merged in zip(times["plain"], times["merged"], strict=True))


def report_lines(figures: Mapping[str, float], lanes: int) -> Iterator[str]:
    yield (
        f"{lanes} lanes in Kafka: merged {figures['merged_records_per_second']:,.0f} records/s, read without a merge"
        f" {figures['plain_records_per_second']:,.0f}: {figures['ratio']:.2f}; processor time"
        f" {figures['merged_cpu_us']:.2f} and {figures['plain_cpu_us']:.2f} µs/record: {figures['cpu_ratio']:.2f}"
    )


def publish(clients: KafkaClients, memory_lanes: list[MemoryLane], work: Path) -> None:
    """Write the lanes to the topic as the sink does, a transaction for each epoch of a lane."""

    def opened(instance: str) -> Output:
        partition = int(instance.rpartition("-")[2])
        return KafkaOutput(work / instance, clients, KafkaSinkOptions(RecordForm.LANES, partition=partition))

    sink = SinkDirectory(work, opened)
    for number, lane in enumerate(memory_lanes):
        participant = sink.open_participant(f"bench-bench-{number}", refuse_to_wait)
        participant.begin()
        for epoch, (batches, total) in enumerate(lane.epochs):
            frontier = Frontier(epoch, lane.identity, sum(batch.num_rows for batch in batches), total)
            start = position = participant.committed_end
            for message in [*(encode_records(epoch, batch) for batch in batches), encode_frontier(frontier)]:
                participant.append([position], [message])
                position += len(message)
            txn = f"bench-w-bench-id-{number}.e{epoch}.f1:c_id={epoch}"
            if not participant.phase1(txn, [(DATA_STREAM, start, position)]):
                raise StorageError("the sink voted abort")
            participant.phase2(txn, commit=True)
        participant.close()
    sink.close()


def read_plain(clients: KafkaClients, lanes: int) -> int:
    """Read the value of every message. Return the number of messages, including those that are not records."""
    consumer = clients.consumer({"enable.partition.eof": True, "fetch.wait.max.ms": 50})
    consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(lanes)])
    count = ended = 0
    while ended < lanes:
        for message in next_messages(consumer, POLL_MESSAGES, POLL_S):
            if (error := message.error()) is None:
                message.value()
                count += 1
            elif error.code() == KafkaError._PARTITION_EOF:
                ended += 1
            else:
                raise StorageError(f"the topic cannot be read: {error.str()}")
    consumer.close()
    return count


def merge(clients: KafkaClients) -> int:
    """Merge the records in order. Return their number."""
    merging = LaneMerge(open_topic(clients), MergeOptions())
    count = sum(int(batch.rows.num_rows) for turn in merging.turns() for batch in turn)
    merging.close()
    return count
