"""Reads and writes the token of a Kafka sink: a record with the committed end of an output, published with the
output.

Invariant: the token of an output has one key in a compacted control topic, and is written in the same Kafka transaction
as the messages that it counts. A sink first fences all earlier producers, then reads the control topic to its end.
The token then shows what is committed, whatever the outcome of a transaction was. Upstream: `connectors/kafka_sink`;
downstream: the cluster.
"""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import dataclass

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import ClusterMetadata, NewTopic, OffsetSpec

from procession.connectors.kafka_client import KafkaClients, next_messages
from procession.errors import DiskError, StorageError
from procession.sdk.transaction_log import Transaction

CONTROL_TOPIC = "procession-tokens"
PARTITIONS = 16
"""Number of partitions. During recovery, outputs in the same partition wait for each other's open transactions."""
REPLICAS = 3
FORMAT = 1
CONTROL_SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": str(24 * 3600 * 1000),
}
READ_MESSAGES = 1000


@dataclass(frozen=True, slots=True)
class Token:
    """The last published transaction."""

    txn_id: str
    start: int
    end: int

    @classmethod
    def of(cls, transaction: Transaction) -> Token:
        return cls(*transaction)

    def encode(self) -> bytes:
        return json.dumps({"format": FORMAT, "txn": self.txn_id, "start": self.start, "end": self.end}).encode()

    @classmethod
    def decode(cls, value: bytes, where: str) -> Token:
        try:
            match json.loads(value):
                case {"format": 1, "txn": str(txn_id), "start": int(start), "end": int(end)}:
                    return cls(txn_id, start, end)
        except ValueError:
            pass
        raise StorageError(
            f"The record at {where} is no token of format {FORMAT}: {value[:80]!r}.",
            next_step="Start the version of Procession that wrote it, or find out what else writes to that topic.",
        )


class ControlTopic:
    """The topic with the tokens of all outputs. `prepare` must be called first."""

    def __init__(self, clients: KafkaClients, name: str = CONTROL_TOPIC) -> None:
        self.name = name
        self._clients = clients

    def prepare(self) -> int:
        """Create the topic if it is missing. Return the number of its partitions."""
        clients = self._clients
        metadata = self._metadata()
        if self.name not in metadata.topics or metadata.topics[self.name].error is not None:
            replicas = min(REPLICAS, len(metadata.brokers))
            facts = clients.new_topic(NewTopic(self.name, PARTITIONS, replicas, config=CONTROL_SETTINGS))
        else:
            facts = clients.topic(self.name)
        policy = facts.settings.get("cleanup.policy", "compact")
        if policy != "compact":
            raise StorageError(
                f"The control topic {self.name} has cleanup.policy={policy}, which deletes tokens in time.",
                next_step=f"Set cleanup.policy=compact on {self.name}, or name another topic as --control-topic.",
            )
        return len(facts.partitions)

    def _metadata(self) -> ClusterMetadata:
        try:
            return self._clients.admin.list_topics(timeout=self._clients.patience_s)
        except KafkaException as error:
            self._clients.refused(error, "list the topics")

    def partition_of(self, key: str, partitions: int) -> int:
        return zlib.crc32(key.encode()) % partitions

    def read(self, key: str, partition: int, timeout_s: float) -> Token | None:
        """Return the current token of an output. Every earlier producer of the output must be fenced off before.

        Other outputs may have open transactions in the partition. A `read_committed` consumer cannot read beyond them,
        so this waits until it has read up to the end offset at its start.
        """
        end = self._end(partition)
        if end == 0:
            return None
        consumer = self._clients.consumer(
            {"enable.partition.eof": True, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 20}
        )
        try:
            consumer.assign([TopicPartition(self.name, partition, 0)])
            return self._last(consumer, key.encode(), end, time.monotonic() + timeout_s)
        finally:
            consumer.close()

    def _end(self, partition: int) -> int:
        """Return the position after the last record, committed or not."""
        return self._clients.offset(self.name, partition, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)

    def _last(self, consumer: Consumer, key: bytes, end: int, deadline: float) -> Token | None:
        found: Message | None = None
        while time.monotonic() < deadline:
            for message in next_messages(consumer, READ_MESSAGES):
                error = message.error()
                if error is None:
                    if message.key() == key:
                        found = message
                elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    continue  # the client asks for the coordinator of a group that it does not use
                elif error.code() != KafkaError._PARTITION_EOF:
                    if error.fatal() or not error.retriable():
                        raise self._clients.sentence(error, f"read the token in {self.name}")
                elif (message.offset() or 0) >= end:
                    if found is None:
                        return None
                    where = f"{self.name}[{found.partition()}] offset {found.offset()}"
                    return Token.decode(found.value() or b"", where)
        raise DiskError(
            f"The control topic {self.name} could not be read to its end in time.",
            next_step="Look for brokers that are down, or for transactions that never end (kafka-transactions.sh).",
        )
