"""Checks whether a Kafka topic still has the messages that a rollback must read again.

Invariant: as in `connectors/source_rewind`, only offsets and settings are read. A message's id is its offset. So the
topic has all records of a stream if retention has not deleted any, and the topic is not compacted.
"""

from __future__ import annotations

import os

from procession.connectors.kafka_client import KafkaClients, KafkaUrl, read_client_config
from procession.connectors.kafka_positions import TopicMemory, watermarks
from procession.connectors.kafka_scheme import partition_numbers
from procession.connectors.source_rewind import SourcePlace
from procession.errors import StorageError
from procession.planner.connector_url import ConnectorUrl
from procession.record import stream_id

PATIENCE_S = 15.0
"""Maximum time to wait for brokers."""
NEXT_STEP = "Upgrade to a corrected program instead."


class KafkaRewind:
    """The partitions of a topic that a source reads."""

    def __init__(self, place: SourcePlace, url: ConnectorUrl) -> None:
        options = url.options
        config = options.get("client_config") or os.environ.get("PROCESSION_KAFKA_CONFIG")
        settings = read_client_config(place.base / config if config else None)
        self._clients = KafkaClients(KafkaUrl.parse(url.text.partition("?")[0]), settings, patience_s=PATIENCE_S)
        self._topic = self._clients.topic(self._clients.url.topic)
        wanted = partition_numbers(options["partitions"]) if "partitions" in options else None
        self._partitions = {
            stream_id(f"kafka:{self._topic.id}:{number}".encode()): number
            for number in self._topic.partitions
            if wanted is None or number in wanted
        }
        self._memory = TopicMemory(place.directory if place.directory.is_dir() else None, self._topic)

    @property
    def stream_ids(self) -> frozenset[int]:
        return frozenset(self._partitions)

    def check(self, stream_id: int, after: int | None, last: int | None) -> None:
        partition = self._partitions[stream_id]
        where = f"The topic {self._topic.name}[{partition}]"
        if "compact" in self._topic.settings.get("cleanup.policy", ""):
            raise StorageError(f"{where} is compacted: older messages of a key disappear.", next_step=NEXT_STEP)
        first = self._memory.start(partition) if after is None else after + 1
        if first is None:
            raise StorageError(f"{where} was begun at an offset that is not known any more.", next_step=NEXT_STEP)
        low, high = watermarks(self._clients, self._topic.name, partition)
        if first < low:
            raise StorageError(
                f"{where} begins at offset {low}, but {first} is to be read next: its retention has deleted messages.",
                next_step=NEXT_STEP,
            )
        if (end := first if last is None else last + 1) > high:
            raise StorageError(
                f"{where} ends at offset {high}, but {end} messages of it were read: it was truncated.",
                next_step=NEXT_STEP,
            )
