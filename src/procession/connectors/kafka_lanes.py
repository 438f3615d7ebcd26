"""Reads lanes from a Kafka topic: each partition is a lane, read with `read_committed`.

Invariant: an epoch of a lane is one Kafka transaction, so it is visible as a whole. One consumer reads all partitions.
A lane is readable when its frontier has arrived; a lane is paused if it has a whole epoch and more than its share of
the buffer. So memory is bounded by the buffer and the largest epoch. Positions are offsets and belong to the merger:
no consumer group is used. Upstream: the topic; downstream: `sdk/lane_merge`.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message, TopicPartition

from procession.connectors.kafka_client import KafkaClients, KafkaUrl, next_messages, read_client_config
from procession.connectors.kafka_lane_messages import BLOCK_HEADER, LANE_HEADERS, content_of, with_contents
from procession.errors import RemoteProtocolError, StorageError
from procession.merge.lane_order import NOTHING
from procession.planner.connector_url import ConnectorUrl
from procession.sdk.lane_files import BUFFER_BYTES, LaneReader, OpenLanes
from procession.wire.lane_blocks import Frontier, LaneIdentity

POLL_MESSAGES = 50_000
POLL_S = 0.1

# Functions to map over whole lists, which takes a third of the time of a loop.
_ERROR: Callable[[Message], KafkaError | None] = Message.error
_KEY: Callable[[Message], bytes | None] = Message.key
_PARTITION: Callable[[Message], Any] = Message.partition
_VALUE: Callable[[Message], bytes | None] = Message.value


class KafkaLane:
    """One partition, read epoch by epoch."""

    def __init__(self, topic: TopicLanes, partition: int, position: int | None) -> None:
        self.name = f"{topic.name}-{partition}"
        self.partition = partition
        self.frontier: Frontier | None = None
        self.merged = NOTHING
        self.is_at_end = False
        """Whether the last read reached the end of the committed messages."""
        self.size_bytes = 0
        self._topic = topic
        self._position = OFFSET_BEGINNING if position is None else position
        self._parts: deque[tuple[Frontier, list[pa.RecordBatch], int, int]] = deque()
        self._batches: list[pa.RecordBatch] = []
        self._orders: pa.RecordBatch | None = None
        """The order keys of the next records."""
        self._payloads: list[bytes | None] = []
        self._keys: list[bytes | None] = []
        self._next_offset = 0
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

    def take(self, messages: Sequence[Message]) -> None:
        """Add the next messages of the partition."""
        self.is_at_end = False
        place = 0
        try:
            while place < len(messages):
                if self._orders is None:
                    self._take_marked(messages[place])
                    place += 1
                else:
                    chunk = messages[place : place + self._orders.num_rows - len(self._payloads)]
                    self._take_records(chunk, self._orders)
                    place += len(chunk)
        except RemoteProtocolError as error:
            offset = messages[min(place, len(messages) - 1)].offset()
            raise StorageError(
                f"The message at offset {offset} of {self.name} is not one of a lane: {error.sentence}.",
                next_step="Give the lanes a topic of their own that is not compacted and that nobody else writes to.",
            ) from error

    def _take_marked(self, message: Message) -> None:
        """Take a message with a header of a lane."""
        headers = dict(message.headers() or ()).keys() & LANE_HEADERS
        if not headers:
            raise RemoteProtocolError("it has no header of a lane")
        content, value = content_of(message.value()), message.value() or b""
        if self._open_epoch not in (None, content.epoch):
            raise RemoteProtocolError(f"epoch {content.epoch} begins before the end of epoch {self._open_epoch}")
        self._next_offset = (message.offset() or 0) + 1
        if isinstance(content, Frontier):
            self._parts.append((content, self._batches, self._next_offset, self._open_bytes))
            self._batches, self._open_bytes, self._open_epoch = [], 0, None
        elif content.batch.num_rows:
            self._open_epoch = content.epoch
            self._add_bytes(len(value))
            if BLOCK_HEADER in headers:
                self._batches.append(content.batch)
            else:
                self._orders = content.batch

    def _take_records(self, messages: Sequence[Message], orders: pa.RecordBatch) -> None:
        """Take messages that have records. Their offsets follow each other, because one producer has written them."""
        first, last = messages[0].offset(), messages[-1].offset()
        if (first, last) != (self._next_offset, self._next_offset + len(messages) - 1):
            found = (message.offset() for message in messages)
            missing = next(offset for offset, at in enumerate(found, self._next_offset) if offset != at)
            raise RemoteProtocolError(f"the message at offset {missing} is missing")
        self._next_offset += len(messages)
        self._payloads += map(_VALUE, messages)
        self._keys += map(_KEY, messages)
        if len(self._payloads) == orders.num_rows:
            batch = with_contents(orders, self._payloads, self._keys)
            self._batches.append(batch)
            self._add_bytes(batch.column(0).nbytes + batch.column(1).nbytes)
            self._orders, self._payloads, self._keys = None, [], []

    def _add_bytes(self, size_bytes: int) -> None:
        self._open_bytes += size_bytes
        self.size_bytes += size_bytes


class TopicLanes:
    """The lanes of a topic, and their common consumer.

    Args:
        clients: The topic's cluster.
        at: Offsets of lanes, by name. A lane without an offset is read from its beginning.
        buffer_bytes: Bytes in memory above which lanes are paused.
    """

    def __init__(self, clients: KafkaClients, at: Mapping[str, int], *, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.name = clients.url.topic
        self.is_closed = False
        self._clients = clients
        partitions = clients.topic(self.name).partitions
        lanes = (KafkaLane(self, number, at.get(f"{self.name}-{number}")) for number in sorted(partitions))
        self.lanes: list[KafkaLane] = list(lanes)
        self._by_partition = {lane.partition: lane for lane in self.lanes}
        self._share_bytes = max(1, buffer_bytes // max(1, len(self.lanes)))
        self._paused: set[int] = set()
        self._consumer = clients.consumer({"enable.partition.eof": True, "fetch.wait.max.ms": 50})
        self._consumer.assign([TopicPartition(self.name, lane.partition, lane.position) for lane in self.lanes])

    def read(self, lane: KafkaLane) -> None:
        """Read until the lane has an epoch, or has no further committed messages."""
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
        """Record that an epoch of the lane was emitted."""
        if lane.partition in self._paused and not lane.has_epoch:
            self._paused.discard(lane.partition)
            self._consumer.resume([TopicPartition(self.name, lane.partition)])

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._consumer.close()

    def _take(self, messages: Sequence[Message]) -> None:
        errors = list(map(_ERROR, messages))
        has_errors = any(errors)
        # The client returns runs of messages of the same partition.
        partitions = np.fromiter(map(_PARTITION, messages), np.int64, len(messages))
        edges = np.flatnonzero(np.diff(partitions)) + 1
        for start, end in itertools.pairwise((0, *edges.tolist(), len(messages))):
            lane = self._by_partition.get(int(partitions[start])) if len(messages) else None
            if not has_errors and lane is not None:
                lane.take(messages[start:end])
                continue
            for message, error in zip(messages[start:end], errors[start:end], strict=True):
                if error is not None:
                    self._on_error(error, lane)
                elif lane is not None:
                    lane.take([message])
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
    """Return the lanes of a topic, `kafka://HOST:PORT/TOPIC`."""
    config = url.options.get("client_config") or os.environ.get("PROCESSION_KAFKA_CONFIG")
    settings = read_client_config(Path(config) if config else None)
    clients = KafkaClients(KafkaUrl.parse(url.text.partition("?")[0]), settings)
    return open_topic(clients, buffer_bytes=buffer_bytes)


def open_topic(clients: KafkaClients, *, buffer_bytes: int = BUFFER_BYTES) -> OpenLanes:
    """Return a function that opens the lanes of a topic. While they are open, it returns the same lanes."""
    open_now: list[TopicLanes] = []

    def opened(at: Mapping[str, int]) -> list[LaneReader]:
        if not open_now or open_now[0].is_closed:
            open_now[:] = [TopicLanes(clients, at, buffer_bytes=buffer_bytes)]
        return list(open_now[0].lanes)

    return opened
