"""Runs the workload of scenarios with Kafka as source: publishes records to the partitions of a topic at a steady
rate.

Invariant: each partition is a stream, and its records are in an input file before they are published. The producer is
idempotent and does not use the proxies, so the topic has each record once, in order, even if the broker fails.
"""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from procession.chaos.chaos_records import RECORD_BYTES, key_of, record, tag
from procession.chaos.chaos_workload import Load
from procession.chaos.cluster_view import Cluster
from procession.chaos.history import UNJUDGED
from procession.chaos.monitor import Failed, Monitor
from procession.chaos.output_monitor import MonitoredStream
from procession.chaos.system_parts import KAFKA_SOURCE

MESSAGE_TIMEOUT_S = 300


class KafkaWorkload:
    """Publishes to the partitions of a topic. `stream_ids` has the stream of each partition."""

    def __init__(
        self, cluster: Cluster, monitor: Monitor, load: Load, *, brokers: str, topic: str, stream_ids: list[int]
    ) -> None:
        self._outputs = monitor.outputs
        self._load = load
        self._topic = topic
        self._streams = [
            MonitoredStream(tag(number), cluster.directory / f"{tag(number)}.txt", 0, stream_id, RECORD_BYTES + 1)
            for number, stream_id in enumerate(stream_ids)
        ]
        for stream in self._streams:
            stream.path.touch()
        # An earlier workload of the same cluster may have published the first records.
        self._published = [stream.path.stat().st_size // stream.id_bytes for stream in self._streams]
        self._error = ""
        self._fed_at: float | None = None
        settings: dict[str, Any] = {
            "bootstrap.servers": brokers,
            "enable.idempotence": True,
            "acks": "all",
            "message.timeout.ms": MESSAGE_TIMEOUT_S * 1000,
            "reconnect.backoff.max.ms": 500,
            "linger.ms": 5,
            "log_level": 0,
        }
        self._producer = Producer(settings)
        monitor.streams[KAFKA_SOURCE] = f"{topic}/0"
        for stream in self._streams:
            self._outputs.expect(stream)

    def feed(self) -> None:
        now = time.monotonic()
        if self._fed_at is None:
            self._fed_at = now
        count = int((now - self._fed_at) * self._load.rate)
        if count:
            self._fed_at += count / self._load.rate
            for partition in range(len(self._streams)):
                self._publish(partition, count)
        self._poll()

    def _publish(self, partition: int, count: int) -> None:
        stream, first = self._streams[partition], self._published[partition]
        lines = [record(stream.tag, first + number) for number in range(count)]
        with stream.path.open("ab") as file:
            file.write(b"".join(line + b"\n" for line in lines))
        self._published[partition] += count
        for line in lines:
            self._producer.produce(self._topic, line, key_of(line), partition, on_delivery=self._delivered)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._error = error.str()

    def _poll(self) -> None:
        self._producer.poll(0)
        if self._error:
            raise Failed(UNJUDGED, f"the input could not be published: {self._error}")

    def drain(self) -> None:
        self._fed_at = None
        for stream, count in zip(self._streams, self._published, strict=True):
            self._outputs.expect(MonitoredStream(stream.tag, stream.path, count, stream.id, stream.id_bytes))

    @property
    def is_over(self) -> bool:
        """Whether all records are in the topic and at every output. The source itself does not end."""
        self._poll()
        return not len(self._producer) and not self._outputs.missing()

    def forget(self) -> None:
        """Do nothing: the source continues."""

    def move(self, source: str, gateway: str) -> None:
        raise NotImplementedError

    def start_faulty_producer(self, fault: str) -> str:
        raise NotImplementedError
