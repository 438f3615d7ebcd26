"""The topic of a Kafka sink: the sink's options, and the checks that the topic accepts its output.

Invariant: what the cluster's metadata can tell is checked when the sink starts and before each vote, because a topic
that refuses an epoch after the vote stops the pipeline. Upstream: `connectors/kafka_sink`. Downstream: the brokers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import structlog

from procession.connectors.kafka_client import INSTANCE, KafkaClients, TopicFacts
from procession.connectors.kafka_messages import MessageEncoder
from procession.connectors.kafka_scheme import BROKEN_ORDERS, EPOCH_BYTES_MAX
from procession.connectors.kafka_token import CONTROL_TOPIC
from procession.errors import ConfigError, StorageError
from procession.log_format import note
from procession.sdk.record_blocks import RecordForm

PUBLISH_BYTES_PER_S_MIN = 1024 * 1024
"""The slowest cluster that is expected to take an epoch before its transaction expires."""
TRANSACTION_TIMEOUT_FIRST_S = 60
TRANSACTION_TIMEOUT_MAX_S = 900
"""The brokers' default maximum, used if the brokers do not report their setting."""
MESSAGE_BYTES_MAX = 1024 * 1024
"""The brokers' default maximum, used if the brokers do not report their setting."""
TOPIC_CHECK_S = 10.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class KafkaSinkOptions:
    """How a sink creates messages and publishes them."""

    records: RecordForm = RecordForm.MESSAGES
    encoder: MessageEncoder = field(default_factory=MessageEncoder)
    partition: int | None = None
    """Publish all messages to this partition, in total order. None: choose the partition by the key, as Java clients
    do."""
    control_topic: str = CONTROL_TOPIC
    epoch_bytes_max: int = EPOCH_BYTES_MAX
    compression: str = "none"
    order: str = ""
    """The order that the pipeline declares; empty if none."""
    has_lane_blocks: bool = False
    """Whether a message of a lane contains many records, which only mergers can read."""
    is_early: bool = True
    """Whether messages are sent before the epoch is committed."""

    @property
    def transaction_timeout_s(self) -> int:
        """The transaction time-out that the largest possible epoch needs."""
        return TRANSACTION_TIMEOUT_FIRST_S + self.epoch_bytes_max // PUBLISH_BYTES_PER_S_MIN


class TopicGuard:
    """Checks in advance, as far as the cluster's metadata allows, that the topic accepts the output."""

    def __init__(self, clients: KafkaClients, options: KafkaSinkOptions) -> None:
        self._clients = clients
        self._options = options
        self._checked_s = -TOPIC_CHECK_S
        self.facts = TopicFacts(clients.url.topic, "", (), 0)
        self.message_bytes_max = MESSAGE_BYTES_MAX

    def check_start(self) -> None:
        """Raise ConfigError if the cluster could not complete the transaction of the largest epoch."""
        broker_max = self._clients.broker_settings().get("transaction.max.timeout.ms")
        max_s = int(broker_max) / 1000 if broker_max else TRANSACTION_TIMEOUT_MAX_S
        wanted_s = self._options.transaction_timeout_s
        if wanted_s > max_s:
            raise ConfigError(
                f"Epochs of {self._options.epoch_bytes_max} bytes need Kafka transactions of up to {wanted_s} seconds,"
                f" but the brokers end them after {max_s:g} (transaction.max.timeout.ms).",
                next_step="Lower --transaction-bytes-max and epoch_bytes_max, or raise the brokers' limit.",
            )
        if INSTANCE not in self._clients.url.topic:
            self.check()

    def warn(self) -> None:
        """Warn about guarantees of the pipeline that the topic does not provide."""
        count = len(self.facts.partitions)
        if self._options.partition is None and count > 1 and self._options.order in BROKEN_ORDERS:
            note(
                f"The topic {self.facts.name} has {count} partitions, so its readers get the order of each key, and not"
                f" the order {self._options.order!r} that the pipeline keeps. To keep it, write ?partition=0."
            )
        if self.facts.replicas_min < 3:
            detail = "with fewer than 3 replicas a lost broker can lose what is committed"
            log.warning("sink.kafka_replicas", topic=self.facts.name, replicas=self.facts.replicas_min, detail=detail)

    def check(self, topic_id: str = "") -> None:
        """Raise an error if the topic is gone or was recreated, or if we may not write to it. Asks the cluster at
        most every `TOPIC_CHECK_S` seconds."""
        if time.monotonic() - self._checked_s < TOPIC_CHECK_S:
            return
        facts, wanted = self._clients.topic(self._clients.url.topic), self._options.partition
        if topic_id and facts.id != topic_id:
            raise StorageError(
                f"The topic {facts.name} was deleted and created again: what was committed to it is gone.",
                next_step="Give the output a new topic and a new directory, or restore the old topic.",
            )
        if not facts.may_write:
            raise ConfigError(
                f"No permission to write to the topic {facts.name}.",
                next_step="Let the Kafka administrator add an ACL for this user; docs/how-to/kafka.md lists them.",
            )
        if wanted is not None and wanted not in facts.partitions:
            raise ConfigError(
                f"The topic {facts.name} has no partition {wanted}, but {len(facts.partitions)} from 0 on.",
                next_step="Name one of these as --partition.",
            )
        self.facts = facts
        self.message_bytes_max = facts.number("max.message.bytes", MESSAGE_BYTES_MAX)
        self._checked_s = time.monotonic()
