"""Lanes in a Kafka topic: each partition is a lane, read with `read_committed`.

Invariant: an epoch of a lane is one Kafka transaction, so it is visible as a whole. One consumer reads all partitions.
A lane is readable when its frontier has arrived; a lane that has a whole epoch and more than its share of the buffer is
paused. So memory is bounded by the buffer and the largest epoch. Positions are offsets and belong to the merger: no
consumer group is used. Upstream: the topic; downstream: `sdk/lane_merge`.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message, TopicPartition

from procession.connectors.kafka_client import KafkaClients, KafkaUrl, next_messages, read_client_config
from procession.connectors.kafka_lane_messages import (
    FRONTIER_HEADER,
    ORDER_HEADER,
    epoch_of,
    frontier_of,
    records_of,
)
from procession.errors import RemoteProtocolError, StorageError
from procession.merge.lane_order import NOTHING
from procession.planner.connector_url import ConnectorUrl
from procession.sdk.lane_files import BUFFER_BYTES, LaneReader, OpenLanes
from procession.wire.lane_blocks import Frontier, LaneIdentity

BATCH_ROWS = 16_384
"""Messages that become one batch."""
POLL_MESSAGES = 50_000
POLL_S = 0.1


class KafkaLane:
    """A partition, epoch by epoch."""

    def __init__(self, topic: TopicLanes, partition: int, position: int | None) -> None:
        self.name = f"{topic.name}-{partition}"
        self.partition = partition
        self.frontier: Frontier | None = None
        self.merged = NOTHING
        self.is_at_end = False
        """Whether all that was committed when it was read last is here."""
        self.size_bytes = 0
        self._topic = topic
        self._position = OFFSET_BEGINNING if position is None else position
        self._parts: deque[tuple[Frontier, list[pa.RecordBatch], int, int]] = deque()
        self._batches: list[pa.RecordBatch] = []
        self._rows: tuple[list[bytes], list[bytes | None], list[bytes]] = ([], [], [])
        self._open_bytes = 0
        self._open_epoch: int | None = None
        self._identity: LaneIdentity | None = None

    @property
    def has_epoch(self) -> bool:
        return bool(self._parts)

    @property
    def identity(self) -> LaneIdentity | None:
        return self._parts[0][0].identity if self._parts else self._identity

    @property
    def position(self) -> int:
        return self._position

    def poll(self) -> int | None:
        if not self._parts:
            self._topic.read(self)
        return self._parts[0][0].epoch if self._parts else None

    def batches(self) -> Iterator[pa.RecordBatch]:
        frontier, batches, end, size_bytes = self._parts[0]
        yield from batches
        self._parts.popleft()
        self.size_bytes -= size_bytes
        self.frontier, self._position, self._identity = frontier, end, frontier.identity
        self._topic.drained(self)

    def close(self) -> None:
        self._topic.close()

    def take(self, message: Message) -> None:
        """Add the next message of the partition."""
        self.is_at_end = False
        headers = dict(message.headers() or ())
        value = message.value()
        try:
            if FRONTIER_HEADER in headers:
                self._end(frontier_of(value), (message.offset() or 0) + 1)
            elif isinstance(order := headers.get(ORDER_HEADER), bytes):
                self._add(value or b"", message.key(), order)
            else:
                raise RemoteProtocolError("it has no header of a lane")
        except RemoteProtocolError as error:
            raise StorageError(
                f"The message at offset {message.offset()} of {self.name} is not one of a lane: {error.sentence}.",
                next_step="Give the lanes a topic of their own, which nobody else writes to.",
            ) from error

    def _add(self, payload: bytes, key: bytes | None, order: bytes) -> None:
        if self._open_epoch is None:
            self._open_epoch = epoch_of(order)
        payloads, keys, orders = self._rows
        payloads.append(payload)
        keys.append(key)
        orders.append(order)
        size = len(payload) + len(key or b"") + len(order)
        self._open_bytes += size
        self.size_bytes += size
        if len(self._rows[0]) >= BATCH_ROWS:
            self._pack()

    def _pack(self) -> None:
        if self._rows[0]:
            self._batches.append(records_of(*self._rows))
            self._rows = ([], [], [])

    def _end(self, frontier: Frontier, end: int) -> None:
        if self._open_epoch not in (None, frontier.epoch):
            raise RemoteProtocolError(f"records of epoch {self._open_epoch} have the frontier of {frontier.epoch}")
        self._pack()
        self._parts.append((frontier, self._batches, end, self._open_bytes))
        self._batches, self._open_bytes, self._open_epoch = [], 0, None


class TopicLanes:
    """The lanes of a topic, with the consumer that they share.

    Args:
        clients: The topic's cluster.
        at: Offsets of lanes, by name. A lane without one begins at its start.
        buffer_bytes: Bytes in memory above which lanes are paused.
    """

    def __init__(self, clients: KafkaClients, at: Mapping[str, int], *, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.name = clients.url.topic
        self.is_closed = False
        self._clients = clients
        partitions = clients.topic(self.name).partitions
        lanes = (KafkaLane(self, number, at.get(f"{self.name}-{number}")) for number in sorted(partitions))
        self.lanes: list[KafkaLane] = list(lanes)
        self._share_bytes = max(1, buffer_bytes // max(1, len(self.lanes)))
        self._paused: set[int] = set()
        self._consumer = clients.consumer({"enable.partition.eof": True, "fetch.wait.max.ms": 50})
        self._consumer.assign([TopicPartition(self.name, lane.partition, lane.position) for lane in self.lanes])

    def read(self, lane: KafkaLane) -> None:
        """Read until the lane has an epoch, or there is no more so far."""
        self._take(next_messages(self._consumer, POLL_MESSAGES, 0))
        deadline_s = time.monotonic() + self._clients.patience_s
        while not lane.has_epoch and not lane.is_at_end:
            self._take(next_messages(self._consumer, POLL_MESSAGES, POLL_S))
            if time.monotonic() > deadline_s:
                raise StorageError(
                    f"The lane {lane.name} could not be read to its end in {self._clients.patience_s:g} s.",
                    next_step="Look for brokers that are down, or for transactions that never end, and start again.",
                )

    def drained(self, lane: KafkaLane) -> None:
        """An epoch of the lane was emitted."""
        if lane.partition in self._paused and not lane.has_epoch:
            self._paused.discard(lane.partition)
            self._consumer.resume([TopicPartition(self.name, lane.partition)])

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._consumer.close()

    def _take(self, messages: Sequence[Message]) -> None:
        by_partition = {lane.partition: lane for lane in self.lanes}
        for message in messages:
            error = message.error()
            if error is None:
                by_partition[message.partition()].take(message)  # type: ignore[index]
            else:
                self._on_error(error, by_partition.get(message.partition()))  # type: ignore[arg-type]
        full = [
            lane
            for lane in self.lanes
            if lane.partition not in self._paused and lane.has_epoch and lane.size_bytes > self._share_bytes
        ]
        if full:
            self._paused.update(lane.partition for lane in full)
            self._consumer.pause([TopicPartition(self.name, lane.partition) for lane in full])

    def _on_error(self, error: KafkaError, lane: KafkaLane | None) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF and lane is not None:
            lane.is_at_end = True
        elif code == KafkaError._AUTO_OFFSET_RESET:
            name = self.name if lane is None else lane.name
            raise StorageError(
                f"The position of the merger in {name} is no longer there: retention has deleted it, or the topic was"
                " created again.",
                next_step="Merge from the beginning into another output, and keep lanes longer than mergers are down.",
            )
        elif code != KafkaError.GROUP_AUTHORIZATION_FAILED and (error.fatal() or not error.retriable()):
            raise self._clients.sentence(error, f"read the lanes in {self.name}")


def open_url(url: ConnectorUrl, _: str | None = None, *, buffer_bytes: int = BUFFER_BYTES) -> OpenLanes:
    """The lanes of a topic, `kafka://HOST:PORT/TOPIC`."""
    config = url.options.get("client_config") or os.environ.get("PROCESSION_KAFKA_CONFIG")
    settings = read_client_config(Path(config) if config else None)
    clients = KafkaClients(KafkaUrl.parse(url.text.partition("?")[0]), settings)
    return open_topic(clients, buffer_bytes=buffer_bytes)


def open_topic(clients: KafkaClients, *, buffer_bytes: int = BUFFER_BYTES) -> OpenLanes:
    """Opens the lanes of a topic. As long as they are open, a second call gives the same ones."""
    open_now: list[TopicLanes] = []

    def opened(at: Mapping[str, int]) -> list[LaneReader]:
        if not open_now or open_now[0].is_closed:
            open_now[:] = [TopicLanes(clients, at, buffer_bytes=buffer_bytes)]
        return list(open_now[0].lanes)

    return opened
