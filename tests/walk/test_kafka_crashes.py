"""Kafka to Kafka with every part killed, the broker too: each message is published once, in order.

One living pipeline reads a topic and publishes to another. A reader with `read_committed` follows the output all the
time, so it also notices what is taken back or repeated while something is down.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from procession.supervisor.local_pipeline import COMMAND, DRIVER
from procession.supervisor.part import Part
from procession.supervisor.settings import Settings
from tests.systems.kafka_broker import Kafka, needs_kafka, running
from tests.walk.cluster import Cluster

pytestmark = [needs_kafka, pytest.mark.slow]

APP = """
from procession import Pipeline

pipeline = Pipeline("kafka", parallelism=2)
pipeline.source("messages").map(bytes.upper).sink("output", to={url!r})
"""
SETTINGS = Settings(epoch_interval_s=0.05, epoch_records_max=100)
SOURCE, SINK = "source", "sink-0"
RECORDS = 300


class Walk:
    """The pipeline, its topics, and what a reader has seen."""

    def __init__(self, kafka: Kafka, cluster: Cluster, source: str, target: str) -> None:
        self.kafka, self.cluster = kafka, cluster
        self._source = source
        self._sent: list[bytes] = []
        self._seen: list[bytes | None] = []
        self._reader = Consumer(
            {
                "bootstrap.servers": kafka.server.address,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        self._reader.assign([TopicPartition(target, 0, 0)])

    def publish(self) -> None:
        values = [b"message %d" % number for number in range(len(self._sent), len(self._sent) + RECORDS)]
        self._sent += values
        self.kafka.publish(self._source, values)

    def check(self) -> None:
        """Until all is there; it is there once, and in order."""
        self.cluster.until(self._has_all, "all messages to be published")
        assert self._seen == [value.upper() for value in self._sent]

    def _has_all(self) -> bool:
        for message in self._reader.consume(1000, timeout=0.05):
            if message.error() is None:
                self._seen.append(message.value())
        return len(self._seen) >= len(self._sent)

    def close(self) -> None:
        self._reader.close()


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    with running() as kafka:
        source, target = kafka.topic(), kafka.topic()
        directory = tmp_path_factory.mktemp("kafka")
        app = APP.format(url=kafka.url(target))
        with Cluster(directory, app, SETTINGS) as cluster:
            assert cluster.local.start()
            to = ["--to", cluster.local.address, *cluster.local.producer_arguments]
            arguments = [*COMMAND, "source", "kafka", kafka.url(source), str(directory / "state"), *to]
            cluster.supervisor.start(Part(SOURCE, tuple(arguments)))
            walk = Walk(kafka, cluster, source, target)
            walk.publish()
            walk.check()
            yield walk
            walk.check()
            walk.close()


@pytest.mark.parametrize(
    "point",
    [
        "sink:before-vote",
        "sink:after-vote-before-reply",
        "sink:kafka-begun",
        "sink:kafka-sent",
        "sink:kafka-committed",
        "sink:after-output-commit",
        "sink:before-recover",
    ],
)
def test_a_sink_that_is_killed_here_publishes_each_message_once(walk: Walk, point: str) -> None:
    if point == "sink:before-recover":
        os.kill(walk.cluster.supervisor.pid(SINK) or -1, signal.SIGKILL)
    walk.cluster.arm(point)
    walk.publish()
    walk.cluster.until(lambda: not walk.cluster.fault.exists(), f"the sink to die at {point}")
    walk.check()


@pytest.mark.parametrize("part", [SOURCE, "gateway", SINK, DRIVER])
def test_a_part_that_is_killed_loses_and_repeats_nothing(walk: Walk, part: str) -> None:
    walk.publish()
    os.kill(walk.cluster.supervisor.pid(part) or -1, signal.SIGKILL)
    walk.publish()
    walk.check()


def test_a_broker_that_is_killed_loses_and_repeats_nothing(walk: Walk) -> None:
    walk.publish()
    walk.kafka.server.kill()
    walk.kafka.server.start()
    walk.publish()
    walk.check()


def test_broker_and_sink_that_are_killed_together_lose_and_repeat_nothing(walk: Walk) -> None:
    walk.publish()
    os.kill(walk.cluster.supervisor.pid(SINK) or -1, signal.SIGKILL)
    walk.kafka.server.kill()
    walk.kafka.server.start()
    walk.publish()
    walk.check()
