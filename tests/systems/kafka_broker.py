"""The Kafka broker of the tests: one for each process of pytest, with new topics for each test.

If it cannot be installed, the tests fail and say so, unless `PROCESSION_WITHOUT` names `kafka`.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from procession.chaos.kafka_server import KafkaServer
from procession.connectors.kafka_client import next_messages

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "kafka"
NOT_READY = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE)
READ_TIMEOUT_S = 60.0

is_left_out = "kafka" in os.environ.get("PROCESSION_WITHOUT", "").replace(" ", "").split(",")
needs_kafka = pytest.mark.skipif(is_left_out, reason="PROCESSION_WITHOUT names kafka")

_numbers = itertools.count()


@cache
def installed() -> None:
    """Install the broker's jars if they are missing, or fail the test with the script's message."""
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


class Kafka:
    """A broker with operations for tests."""

    def __init__(self, server: KafkaServer) -> None:
        self.server = server
        self.admin = AdminClient({"bootstrap.servers": server.address, "log_level": 0})

    def url(self, topic: str) -> str:
        return f"kafka://{self.server.address}/{topic}"

    def topic(self, name: str = "", partitions: int = 1, **settings: str) -> str:
        """Create a topic and return its name. In setting names `_` stands for a dot."""
        name = name or f"topic-{next(_numbers)}"
        config = {key.replace("_", "."): value for key, value in settings.items()}
        self.topics([name], partitions, config)
        return name

    def topics(self, names: Sequence[str], partitions: int = 1, config: dict[str, str] | None = None) -> None:
        made = self.admin.create_topics([NewTopic(name, partitions, 1, config=config or {}) for name in names])
        for future in made.values():
            future.result(READ_TIMEOUT_S)
        deadline = time.monotonic() + READ_TIMEOUT_S
        while not self._has_leaders(names):
            assert time.monotonic() < deadline, "the broker does not know its new topics"
            time.sleep(0.02)

    def _has_leaders(self, names: Sequence[str]) -> bool:
        found = self.admin.list_topics(timeout=READ_TIMEOUT_S).topics
        return all(
            name in found
            and found[name].partitions
            and all(partition.leader >= 0 for partition in found[name].partitions.values())
            for name in names
        )

    def recreate(self, topic: str) -> None:
        """Delete a topic and create it again, with the same name and another id."""
        self.admin.delete_topics([topic])[topic].result(READ_TIMEOUT_S)
        deadline = time.monotonic() + READ_TIMEOUT_S
        while True:
            try:
                return self.topics([topic])
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)  # the deletion is not done yet

    def publish(
        self, topic: str, values: Sequence[bytes | None], keys: Sequence[bytes | None] = (), **options: object
    ) -> None:
        refused: list[KafkaError] = []
        producer = Producer({"bootstrap.servers": self.server.address, "log_level": 0})
        for number, value in enumerate(values):
            producer.produce(
                topic,
                value,
                keys[number] if keys else None,
                on_delivery=lambda error, _: refused.append(error) if error else None,
                **options,
            )  # type: ignore[arg-type]
        assert not producer.flush(READ_TIMEOUT_S)
        assert not refused, refused[0]

    def committed(self, topic: str, *, is_settled: bool = True) -> list[Message]:
        """Return what a reader sees with read_committed, partition by partition.

        Waits for open transactions if the topic should be settled, because a broker answers a commit before readers see
        it.
        """
        consumer = Consumer(
            {
                "bootstrap.servers": self.server.address,
                "group.id": "test",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        places = [
            TopicPartition(topic, number, 0)
            for number in self.admin.list_topics(topic, timeout=READ_TIMEOUT_S).topics[topic].partitions
        ]
        ends = self._ends(places) if is_settled else dict.fromkeys((place.partition for place in places), 0)
        seen: dict[int, list[Message]] = {place.partition: [] for place in places}
        is_over: set[int] = set()
        deadline = time.monotonic() + READ_TIMEOUT_S
        try:
            consumer.assign(places)
            while len(is_over) < len(places):
                assert time.monotonic() < deadline, f"{topic} cannot be read to its end"
                for message in next_messages(consumer, 10_000):
                    error, partition = message.error(), message.partition() or 0
                    if error is None:
                        seen[partition].append(message)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        if (message.offset() or 0) >= ends[partition]:
                            is_over.add(partition)
                    else:
                        raise AssertionError(error.str())
        finally:
            consumer.close()
        return [message for number in sorted(seen) for message in seen[number]]

    def end(self, topic: str) -> int:
        """Return the offset after the last message of a topic with one partition, committed or not."""
        return self._ends([TopicPartition(topic, 0)])[0]

    def _ends(self, places: Sequence[TopicPartition]) -> dict[int, int]:
        """Return the offset after the last message of each partition, committed or not.

        A broker may list a new topic with its leader before the leader itself is ready.
        """
        deadline = time.monotonic() + READ_TIMEOUT_S
        while True:
            futures = self.admin.list_offsets(
                {place: OffsetSpec.latest() for place in places}, isolation_level=IsolationLevel.READ_UNCOMMITTED
            )
            try:
                return {place.partition: future.result(READ_TIMEOUT_S).offset for place, future in futures.items()}
            except KafkaException as error:
                if error.args[0].code() not in NOT_READY or time.monotonic() > deadline:
                    raise

    def values(self, topic: str, *, is_settled: bool = True) -> list[bytes | None]:
        return [message.value() for message in self.committed(topic, is_settled=is_settled)]


@contextmanager
def running(**settings: str) -> Iterator[Kafka]:
    """Start a separate broker. In setting names `__` stands for a dot."""
    installed()
    with KafkaServer({name.replace("__", "."): value for name, value in settings.items()}) as server:
        yield Kafka(server)
