"""A Kafka topic as a source: each partition is a stream, each message a record.

Invariant: a message's id is its offset, and a stream belongs to the topic's id, not to its name; so a restart needs
only the gateway's position. The source stops if messages are missing or replaced: by retention, a recreated topic or
an unclean election. Upstream: the topic, read with `read_committed` and without a consumer group. Downstream: the
gateway.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from procession.connectors.kafka_client import KafkaClients, KafkaUrl, TopicFacts, next_messages, read_client_config
from procession.connectors.kafka_messages import Header, SchemaCodec, envelope_of, json_of
from procession.connectors.kafka_positions import GroupPositions, StartPosition, TopicMemory, recreated, watermarks
from procession.connectors.kafka_scheme import named_stream, partition_numbers
from procession.errors import ConfigError, DiskError, RecordError, StorageError
from procession.planner.connector_url import ConnectorUrl
from procession.record import stream_id
from procession.sdk.source_records import Batch, Stream, Streams
from procession.times import TIME_MAX, UNITS

PARTITIONS_MAX = 256
"""Maximum number of partitions. Each partition has its own client with threads."""
BUFFER_BYTES = 64 * 1024 * 1024
"""Maximum bytes that all clients together have fetched and not yet passed on."""
BATCH_MESSAGES_MAX = 8192
FULL_BACKOFF_MS = 10
"""Pause of a client whose buffer is full. Its default, a second, empties the buffer of a fast reader."""
POLL_INTERVAL_S = 5.0
"""Seconds between two checks for new partitions and for a recreated topic."""
GONE_S = 5.0
"""A topic counts as deleted if the cluster does not know it for this time. A broker that just started may not know it
yet."""

_EMPTY = Batch(np.empty(0, np.uint64), np.empty(0, np.int64), pa.array([], pa.binary()))
"""Yielded when there are no messages, so that the reader can stop."""
_LOST_POSITION = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION}
_NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_NO_TOPIC |= {KafkaError.UNKNOWN_TOPIC_ID, KafkaError.INCONSISTENT_TOPIC_ID}

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class KafkaSourceOptions:
    """Which parts of a topic and of each message are read."""

    partitions: frozenset[int] | None = None
    """The partitions to read. None: all partitions, including those that are added later."""
    start: StartPosition = field(default_factory=StartPosition)
    is_ending: bool = False
    """Whether the source ends at the offsets where the partitions ended when it started."""
    is_skipping_deleted: bool = False
    has_event_times: bool = True
    is_envelope: bool = False
    codec: SchemaCodec | None = None
    group: str = ""
    is_by_name: bool = False
    """Streams belong to the topic's name, so that an event-time order can declare them. The stored id of the topic
    then shows whether it is still the same one."""


class KafkaSource:
    """The streams of one topic. `directory` stores start offsets and leader epochs."""

    def __init__(self, clients: KafkaClients, options: KafkaSourceOptions, directory: Path | None = None) -> None:
        self._clients = clients
        self._options = options
        self._topic = clients.topic(clients.url.topic)
        if not self._topic.may_read:
            raise ConfigError(
                f"No permission to read the topic {self._topic.name}.",
                next_step="Let the Kafka administrator add an ACL for this user; docs/how-to/kafka.md lists them.",
            )
        if missing := sorted((options.partitions or frozenset()) - set(self._topic.partitions)):
            raise ConfigError(
                f"The topic {self._topic.name} has no partition {missing[0]}, but {len(self._topic.partitions)} from 0"
                " on.",
                next_step="Name some of these as --partitions.",
            )
        if "compact" in self._topic.settings.get("cleanup.policy", ""):
            detail = "older messages of a key are deleted, possibly before they are read"
            log.warning("source.kafka_compacted", topic=self._topic.name, detail=detail)
        self._memory = TopicMemory(directory, self._topic)
        self._group = GroupPositions(clients, options.group) if options.group else None
        self._partitions: dict[int, int] = {}
        """The partition of each stream id."""
        self._begun: set[int] = set()
        """The partitions that this process has begun to read."""
        self._lost_positions: dict[int, KafkaError] = {}
        """Partition errors that arrived with messages. The client reports each error once, and then stops reading."""
        self._left_out: set[int] = set()
        self._warn_left_out(self._topic.partitions)
        self._add(self._wanted(self._topic.partitions), is_first=self._memory.is_new)

    @property
    def stream_ids(self) -> frozenset[int]:
        """The streams found so far."""
        return frozenset(self._partitions)

    def streams(self) -> Streams:
        found = [self._stream(partition) for partition in self._partitions.values()]
        return found if self._options.is_ending else self._appearing(found)

    def read(self, stream: Stream, after: int | None) -> Iterator[Batch]:
        partition = self._partitions[stream.id]
        if self._options.is_by_name and self._memory.is_new and after is not None and partition not in self._begun:
            raise StorageError(
                f"{stream.name} is committed up to offset {after}, but the directory has no entry for the topic,"
                " which may be another one.",
                next_step="Restore the directory of the source; or start the pipeline anew with another directory.",
            )
        self._begun.add(partition)
        consumer = self._consumer()
        try:
            yield from self._read(consumer, partition, after)
        finally:
            consumer.close()

    def forget(self, stream: Stream, message_id: int) -> None:
        """Forget the messages up to this offset, which are committed."""
        if self._group is not None:
            self._group.committed(self._partitions[stream.id], message_id)

    def close(self) -> None:
        if self._group is not None:
            self._group.close()

    # Streams

    def _stream(self, partition: int) -> Stream:
        topic, name = self._topic, f"kafka:{self._topic.name}/{partition}"
        if self._options.is_by_name:
            return Stream(named_stream(topic.name, partition), name)
        return Stream(stream_id(f"kafka:{topic.id}:{partition}".encode()), name)

    def _wanted(self, partitions: Sequence[int]) -> list[int]:
        known = set(self._partitions.values())
        wanted = self._options.partitions
        return [number for number in partitions if number not in known and (wanted is None or number in wanted)]

    def _add(self, partitions: Sequence[int], *, is_first: bool) -> list[Stream]:
        """Add new partitions. A partition that appears after the start is read from its first message."""
        if len(self._partitions) + len(partitions) > PARTITIONS_MAX:
            raise ConfigError(
                f"The topic {self._topic.name} has more than {PARTITIONS_MAX} partitions, the limit of a source.",
                next_step="Start several sources, each with some of the --partitions.",
            )
        start = self._options.start if is_first else StartPosition()
        starts = {
            partition: start.resolve(self._clients, self._topic.name, partition)
            for partition in partitions
            if self._memory.start(partition) is None
        }
        if starts:
            self._memory.begin(starts)
        streams = [self._stream(partition) for partition in partitions]
        self._partitions |= {stream.id: partition for stream, partition in zip(streams, partitions, strict=True)}
        return streams

    async def _appearing(self, found: Sequence[Stream]) -> AsyncIterator[Stream]:
        for stream in found:
            yield stream
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            for stream in await asyncio.to_thread(self._list_streams):
                log.info("source.partition_found", stream=stream.name)
                yield stream

    def _list_streams(self) -> list[Stream]:
        if self._group is not None:
            self._group.flush(is_waiting=False)
        try:
            topic = self._same_topic()
        except DiskError as error:
            log.warning("source.kafka_unreachable", reason=error.sentence)
            return []
        self._warn_left_out(topic.partitions)
        wanted = self._wanted(topic.partitions)
        return self._add(wanted, is_first=False) if wanted else []

    def _warn_left_out(self, partitions: Sequence[int]) -> None:
        """Warn about partitions that are not read in event-time order, because the app does not name them."""
        if self._options.is_by_name and (
            new := sorted({*partitions} - (self._options.partitions or set()) - self._left_out)
        ):
            self._left_out.update(new)
            detail = "the app does not name them, so they are not read"
            log.warning("source.partitions_left_out", topic=self._topic.name, partitions=new, detail=detail)

    def _same_topic(self) -> TopicFacts:
        """Return the topic's current facts. Raises StorageError if the topic was deleted or recreated."""
        deadline = time.monotonic() + GONE_S
        while True:
            try:
                found = self._clients.topic(self._topic.name)
                break
            except ConfigError as error:
                if time.monotonic() > deadline:
                    raise StorageError(
                        f"The topic {self._topic.name} was deleted while it was read.",
                        next_step="Stop the source; what was read before is committed.",
                    ) from error
                time.sleep(GONE_S / 10)
        if found.id != self._topic.id:
            raise recreated(self._topic.name, "Start the source again to read the new topic from its beginning.")
        return found

    # Messages

    def _consumer(self) -> Consumer:
        count = max(1, len(self._partitions))
        return self._clients.consumer(
            {
                "enable.partition.eof": self._options.is_ending,
                "queued.max.messages.kbytes": max(1024, BUFFER_BYTES // 1024 // count),
                "queued.min.messages": BATCH_MESSAGES_MAX * 4,
                "fetch.wait.max.ms": 100,
                "fetch.queue.backoff.ms": FULL_BACKOFF_MS,
            }
        )

    def _read(self, consumer: Consumer, partition: int, after: int | None) -> Iterator[Batch]:
        position = self._memory.start(partition) if after is None else after + 1
        assert position is not None
        low, high = watermarks(self._clients, self._topic.name, partition)
        position = self._checked(partition, position, low, high)
        epoch = None if after is None else self._memory.epoch_at(partition, after)
        place = TopicPartition(self._topic.name, partition, position)
        if epoch is not None:
            # The cluster compares the leader epochs. That needs a client that has not asked about the partition
            # before.
            place = TopicPartition(self._topic.name, partition, position, leader_epoch=epoch)
        consumer.assign([place])
        self._lost_positions.pop(partition, None)
        while not self._options.is_ending or position < high:
            if error := self._lost_positions.pop(partition, None):
                self._lost(consumer, partition, error)
            messages, is_end = self._sorted_out(consumer, partition, next_messages(consumer, BATCH_MESSAGES_MAX))
            if messages:
                is_one_epoch = messages[0].leader_epoch() == messages[-1].leader_epoch()
                for message in messages[:1] if is_one_epoch else messages:
                    self._memory.read(partition, message.offset() or 0, message.leader_epoch())
                position = (messages[-1].offset() or 0) + 1
                yield self._batch(messages, partition)
            elif is_end:
                return
            else:
                yield _EMPTY

    def _checked(self, partition: int, position: int, low: int, high: int) -> int:
        if position > high:
            raise self._truncated(partition, position)
        if position < low:
            sentence = f"{self._topic.name}[{partition}] begins at offset {low}, but {position} is to be read next"
            if not self._options.is_skipping_deleted:
                raise StorageError(
                    f"The topic {sentence}: its retention has deleted messages that were not read.",
                    next_step="Raise retention.ms of the topic; to go on without these, start with --skip-deleted.",
                )
            log.warning("source.messages_skipped", topic=self._topic.name, partition=partition, after=position, to=low)
            return low
        return position

    def _sorted_out(
        self, consumer: Consumer, partition: int, messages: Sequence[Message]
    ) -> tuple[list[Message], bool]:
        """Return the messages, and whether the end was reached. Raises errors that are not transient."""
        if not any(map(Message.error, messages)):
            return list(messages), False
        records = [message for message in messages if message.error() is None]
        is_end = False
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                is_end = True
            elif not records:
                self._failed(consumer, partition, error)
            elif error.code() in _LOST_POSITION:  # messages before the error are passed on first
                self._lost_positions[partition] = error
        return records, is_end

    def _failed(self, consumer: Consumer, partition: int, error: KafkaError) -> None:
        if error.code() in _LOST_POSITION:
            self._lost(consumer, partition, error)
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return  # the client asks for the coordinator of a group that it does not use
        if error.code() in _NO_TOPIC:
            self._same_topic()
        elif not error.retriable():
            raise self._clients.sentence(error, f"read {self._topic.name}[{partition}]")
        log.warning("source.kafka_error", partition=partition, reason=error.str())

    def _lost(self, consumer: Consumer, partition: int, error: KafkaError) -> NoReturn:
        self._same_topic()
        low, high = watermarks(self._clients, self._topic.name, partition)
        [here] = consumer.position([TopicPartition(self._topic.name, partition)])
        if error.code() != KafkaError._LOG_TRUNCATION and here.offset >= 0:
            self._checked(partition, here.offset, low, high)
        raise self._truncated(partition, here.offset)

    def _truncated(self, partition: int, position: int) -> StorageError:
        return StorageError(
            f"{self._topic.name}[{partition}] was cut off: messages before offset {position} were read that the cluster"
            " does not have any more.",
            next_step="An unclean leader election has lost them. Disable unclean.leader.election.enable; start the"
            " pipeline anew with another directory to read what is there now.",
        )

    def _batch(self, messages: Sequence[Message], partition: int) -> Batch:
        # `map` over the methods: a comprehension takes twice the time.
        offsets = np.fromiter(cast("Iterator[int]", map(Message.offset, messages)), np.uint64, len(messages))
        keys = list(map(Message.key, messages))
        return Batch(
            offsets,
            self._times(messages, partition),
            _bytes_column(self._payloads(messages, partition)),
            _bytes_column(keys) if any(keys) else None,
        )

    def _times(self, messages: Sequence[Message], partition: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if not self._options.has_event_times:
            return np.zeros(len(messages), np.int64)
        times_ms = np.fromiter(
            (timestamp[1] for timestamp in map(Message.timestamp, messages)), np.int64, len(messages)
        )
        if int(times_ms.max()) > TIME_MAX // UNITS["ms"]:
            row = int(times_ms.argmax())
            raise RecordError(
                f"The message at offset {messages[row].offset()} of {self._topic.name}[{partition}] has the timestamp"
                f" {times_ms[row]} ms, which is not a valid time.",
                next_step="Correct the clock or the unit of its producer; --no-event-times reads without timestamps.",
            )
        return np.maximum(times_ms, 0) * UNITS["ms"]

    def _payloads(self, messages: Sequence[Message], partition: int) -> Sequence[bytes | None]:
        codec, topic = self._options.codec, self._topic.name
        if codec is None and not self._options.is_envelope:
            return list(map(Message.value, messages))
        values: list[object] = [
            message.value() if codec is None else self._decoded(codec, message) for message in messages
        ]
        if not self._options.is_envelope:
            return [b"" if value is None else json_of(value) for value in values]
        return [
            envelope_of(
                {"topic": topic, "partition": partition, "offset": message.offset()},
                message.key(),
                value,
                message.timestamp()[1],
                cast("list[Header]", message.headers() or []),
            )
            for message, value in zip(messages, values, strict=True)
        ]

    def _decoded(self, codec: SchemaCodec, message: Message) -> object:
        value = message.value()
        try:
            return None if value is None else codec.decode(value)
        except ValueError as error:
            raise RecordError(
                f"The message at offset {message.offset()} of {self._topic.name}[{message.partition()}] cannot be"
                f" decoded: {error}.",
                next_step="Correct its producer; or read without --schema-registry, and decode in the app.",
            ) from error


def _bytes_column(values: Sequence[bytes | None]) -> pa.Array:
    """Return an Arrow array without nulls: a null in Kafka becomes an empty value."""
    return pc.fill_null(pa.array(values, pa.binary()), b"")


def parse_partitions(text: str | None) -> frozenset[int] | None:
    """Parse partitions such as `0,1,5`; None means all."""
    return None if text is None else partition_numbers(text)


def url_streams(url: ConnectorUrl) -> frozenset[int]:
    """Return the stream ids of a source of an app that ends."""
    config = url.options.get("client_config") or os.environ.get("PROCESSION_KAFKA_CONFIG")
    place, settings = KafkaUrl.parse(url.text.partition("?")[0]), read_client_config(Path(config) if config else None)
    clients = KafkaClients(place, settings)
    options = KafkaSourceOptions(parse_partitions(url.options.get("partitions")))
    return KafkaSource(clients, options).stream_ids
