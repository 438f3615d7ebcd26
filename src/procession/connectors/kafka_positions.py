"""Determines the start offsets of a Kafka source, and stores what the source must remember about a topic.

Invariant: a start such as *latest* is resolved once; a restart before the first commit starts at the same offsets. The
leader epoch of read messages is stored, because after an unclean election other messages can have the same offsets.
Upstream: `connectors/kafka_source`; downstream: DIR/<topic>.kafka, and a consumer group that shows positions to other
tools.
"""

from __future__ import annotations

import json
import re
import threading
import time
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import structlog
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from procession.connectors.kafka_client import KafkaClients, TopicFacts
from procession.errors import ConfigError, StorageError, UsageError
from procession.storage.durable import make_directory, storage_error, write_durably

FORMAT = 1
EPOCHS_KEPT = 32
GROUP_COMMIT_S = 1.0

EARLIEST, LATEST = "earliest", "latest"

_OFFSETS = re.compile(r"(\d{1,9}:\d{1,19})(,\d{1,9}:\d{1,19})*")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where a partition is read from if none of its messages are committed."""

    name: str = EARLIEST
    timestamp_ms: int | None = None
    offsets: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> StartPosition:
        """Parse `earliest`, `latest`, a time in ISO 8601, or `PARTITION:OFFSET,…`. Raises UsageError."""
        if text in (EARLIEST, LATEST):
            return cls(text)
        if _OFFSETS.fullmatch(text):
            pairs = [pair.split(":") for pair in text.split(",")]
            return cls(text, offsets={int(partition): int(offset) for partition, offset in pairs})
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise UsageError(
                f"{text!r} is no start.",
                next_step="Give earliest, latest, a time such as 2026-11-17T09:00:00Z, or 0:1200,1:1150.",
            ) from None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return cls(text, timestamp_ms=int(moment.timestamp() * 1000))

    def resolve(self, clients: KafkaClients, topic: str, partition: int) -> int:
        """Return the offset of the first message to read. Partitions without an explicit offset begin at their first
        message."""
        low, high = watermarks(clients, topic, partition)
        if self.timestamp_ms is not None:
            found = _offset(clients, topic, partition, OffsetSpec.for_timestamp(self.timestamp_ms))
            return found if found >= 0 else high
        if self.offsets:
            offset = self.offsets.get(partition, low)
            if not low <= offset <= high:
                raise ConfigError(
                    f"The topic {topic}[{partition}] has offsets from {low} to {high}; {offset} is outside of this"
                    " range.",
                    next_step="Give another --start.",
                )
            return offset
        return low if self.name == EARLIEST else high


def watermarks(clients: KafkaClients, topic: str, partition: int) -> tuple[int, int]:
    """Return the first available offset, and the end of the committed messages."""
    low = _offset(clients, topic, partition, OffsetSpec.earliest())
    return low, _offset(clients, topic, partition, OffsetSpec.latest())


def _offset(clients: KafkaClients, topic: str, partition: int, spec: OffsetSpec) -> int:
    return clients.offset(topic, partition, spec, IsolationLevel.READ_COMMITTED)


class TopicMemory:
    """The stored state of one topic. Without a directory it exists only in memory."""

    def __init__(self, directory: Path | None, topic: TopicFacts) -> None:
        self._path = directory / f"{topic.name}.kafka" if directory else None
        self._topic = topic
        self._lock = threading.Lock()
        self._starts: dict[int, int] = {}
        self._epochs: dict[int, list[tuple[int, int]]] = {}
        """For each partition: pairs of the first offset that was read in a leader epoch, and that epoch."""
        self.is_new = True
        if self._path is not None:
            assert directory is not None
            make_directory(directory)
            self._load(self._path)

    def start(self, partition: int) -> int | None:
        return self._starts.get(partition)

    def begin(self, starts: Mapping[int, int]) -> None:
        """Store the start offsets of partitions before they are read."""
        with self._lock:
            self._starts |= starts
            self._write()

    def epoch_at(self, partition: int, offset: int) -> int | None:
        """Return the leader epoch of the message at this offset, if it was read."""
        epochs = self._epochs.get(partition, [])
        found = bisect_right(epochs, (offset, 2**31))
        return epochs[found - 1][1] if found else None

    def read(self, partition: int, offset: int, epoch: int | None) -> None:
        """Record the leader epoch of a message. A change, which is rare, is written to disk before the message is
        passed on."""
        epochs = self._epochs.setdefault(partition, [])
        if epoch is None or (epochs and epochs[-1][1] >= epoch):
            return
        with self._lock:
            epochs.append((offset, epoch))
            del epochs[:-EPOCHS_KEPT]
            self._write()

    def _load(self, path: Path) -> None:
        try:
            stored = json.loads(path.read_bytes())
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(path, "read", error) from error
        except ValueError:
            stored = None
        match stored:
            case {"format": 1, "topic_id": str(topic_id), "starts": dict(starts), "epochs": dict(epochs)}:
                if topic_id != self._topic.id:
                    raise recreated(
                        self._topic.name,
                        f"{path} has the id of the old one: remove it to read the new one. In event-time order,"
                        " start the pipeline with a new directory.",
                    )
                self._starts = {int(partition): int(offset) for partition, offset in starts.items()}
                self._epochs = {int(partition): [tuple(pair) for pair in pairs] for partition, pairs in epochs.items()}
                self.is_new = False
            case _:
                raise StorageError(
                    f"{path} is not what a Kafka source writes.",
                    next_step="Restore it from a copy, or remove it: partitions without commits then begin at --start.",
                    path=str(path),
                )

    def _write(self) -> None:
        if self._path is None:
            return
        document = {"format": FORMAT, "topic_id": self._topic.id, "starts": self._starts, "epochs": self._epochs}
        write_durably(self._path, json.dumps(document).encode())


def recreated(topic: str, next_step: str) -> StorageError:
    return StorageError(f"The topic {topic} was deleted and created again.", next_step=next_step)


class GroupPositions:
    """Commits positions to a consumer group, so that other tools show our lag. Procession does not read them."""

    def __init__(self, clients: KafkaClients, group: str) -> None:
        self._topic = clients.url.topic
        self._consumer = clients.consumer({"group.id": group})
        self._changed: dict[int, int] = {}
        self._committed_at_s = time.monotonic()

    def committed(self, partition: int, offset: int) -> None:
        self._changed[partition] = offset + 1
        if time.monotonic() - self._committed_at_s >= GROUP_COMMIT_S:
            self.flush(is_waiting=False)

    def flush(self, *, is_waiting: bool) -> None:
        if not self._changed:
            return
        places = [TopicPartition(self._topic, partition, offset) for partition, offset in self._changed.items()]
        self._changed, self._committed_at_s = {}, time.monotonic()
        try:
            if is_waiting:
                self._consumer.commit(offsets=places, asynchronous=False)
            else:
                self._consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            log.warning("source.group_commit_failed", reason=error.args[0].str())

    def close(self) -> None:
        self.flush(is_waiting=True)
        self._consumer.close()
