"""The Kafka client of the source and the sink: the URL, the client's settings, and facts about topics.

Invariant: a URL contains no secret. Secrets come from a file that only its owner can read. Each error of a broker
becomes one sentence (`connectors/kafka_errors`). Upstream: `connectors/kafka_source` and `connectors/kafka_sink`;
downstream: librdkafka, through the package confluent-kafka.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import unquote, urlsplit

import structlog

from procession.address import parse_address
from procession.errors import ConfigError, ProcessionError, UsageError
from procession.log_format import note

try:
    from confluent_kafka import (
        Consumer,
        IsolationLevel,
        KafkaError,
        KafkaException,
        Message,
        Producer,
        TopicCollection,
        TopicPartition,
    )
    from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType
except ImportError as error:  # pragma: no cover
    raise ConfigError(
        "Kafka connectors need the package confluent-kafka, which is not installed.",
        next_step="Install it: pip install 'procession[kafka]'.",
    ) from error

from procession.connectors.kafka_errors import ELECTING, FORBIDDEN, is_untrusted, sentence_of

PATIENCE_S = 60.0
"""How long to wait for a broker that does not answer, before the connector ends."""
NOTE_S = 3.0
"""Time without an answer after which the connector tells the user that it waits."""
ANSWER_TIMEOUT_S = 10.0
POLL_INTERVAL_S = 0.05
WAIT_S = 1.0
CONFIG_BYTES_MAX = 64 * 1024
BROKERS_MAX = 64
PORT = 9092
SEARCHED = "probe"
"""Value of `ssl.ca.location` with which librdkafka looks for the system's certificates."""
INSTANCE = "{instance}"
"""Placeholder in a topic's name for the name of an output."""

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SETTING = re.compile(
    r"(security\.protocol|sasl\..+|ssl\..+|enable\.ssl\..+|https\..+|client\.(id|rack|dns\.lookup)|socket\..+"
    r"|schema\.registry\.(basic\.auth\.user\.info|ssl\.ca\.location)|broker\.address\..+|metadata\..+|reconnect\..+|connections\..+)"
)
"""Settings of librdkafka that a client file may contain: how to reach brokers, but nothing about delivery."""

Result = TypeVar("Result")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class KafkaUrl:
    """A parsed URL `kafka://HOST:PORT,HOST:PORT/TOPIC`."""

    brokers: str
    topic: str

    @classmethod
    def parse(cls, text: str) -> KafkaUrl:
        """Parse a URL. Raises UsageError, without any text that may be a secret."""
        scheme, _, rest = text.partition("://")
        if scheme != "kafka" or not rest:
            raise UsageError("The URL does not begin with kafka://.", next_step="Write kafka://HOST:PORT/TOPIC.")
        if "@" in rest.partition("/")[0]:
            raise UsageError(
                "The URL has a user name or password in it, which other users of the machine could read.",
                next_step="Take it out, put the sasl settings into a file, and give it as --client-config.",
            )
        parts = urlsplit(f"kafka://{rest}")
        if parts.query or parts.fragment:
            raise UsageError(
                "The URL has options after a ?, which only the URL of an app can have.",
                next_step="Write them as options of the command: ?partition=0 as --partition 0.",
            )
        topic = unquote(parts.path.removeprefix("/"))
        _check_topic(topic.replace(INSTANCE, ""))
        brokers = [name if re.search(r":[0-9]+$", name) else f"{name}:{PORT}" for name in parts.netloc.split(",")]
        if len(brokers) > BROKERS_MAX:
            raise UsageError(
                f"The URL names more than {BROKERS_MAX} brokers.", next_step="Name a few: they name the others."
            )
        for broker in brokers:
            parse_address(broker)
        return cls(",".join(brokers), topic)

    def of_instance(self, instance: str) -> KafkaUrl:
        """Return the URL with the name of an output instead of `{instance}`."""
        topic = self.topic.replace(INSTANCE, instance)
        _check_topic(topic)
        return replace(self, topic=topic)

    def __str__(self) -> str:
        return f"kafka://{self.brokers}/{self.topic}"


def _check_topic(topic: str) -> None:
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise UsageError(f"{topic!r} cannot be the name of a Kafka topic.", next_step="Write kafka://HOST:PORT/TOPIC.")


def read_client_config(path: Path | None) -> dict[str, str]:
    """Return the settings in a file of `name=value` lines, as Kafka's own tools read them. Raises ConfigError."""
    if path is None:
        return {}
    try:
        text = path.read_bytes()[: CONFIG_BYTES_MAX + 1].decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read {path}: {error}.", next_step="Give a file of name=value lines.") from error
    if len(text) > CONFIG_BYTES_MAX:
        raise ConfigError(f"{path} is longer than {CONFIG_BYTES_MAX} bytes.", next_step="Give a file of settings.")
    if path.stat().st_mode & 0o077:
        log.warning("kafka.config_readable", path=str(path), detail="other users may read this file: chmod 600")
    settings: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not line.strip() or name.startswith("#"):
            continue
        if not equals:
            raise ConfigError(f"Line {number} of {path} is not name=value.", next_step="Correct the line.")
        if not _SETTING.fullmatch(name):
            raise ConfigError(
                f"Line {number} of {path} sets {name}, which this file cannot set.",
                next_step="Keep to security.protocol, sasl.*, ssl.*, client.* and how to connect.",
            )
        if name.endswith(".location") and value != SEARCHED:
            _check_readable(Path(value), f"Line {number} of {path}", name)
        settings[name] = value
    return settings


def _check_readable(file: Path, where: str, setting: str) -> None:
    """Raise ConfigError if the file cannot be read. An error of librdkafka would not name the file or the reason."""
    try:
        if file.is_dir():
            os.listdir(file)
        else:
            file.open("rb").close()
    except OSError as error:
        raise ConfigError(
            f"{where} names {file} as {setting}, which cannot be read: {error.strerror}.",
            next_step="Correct the path, or let this user read the file.",
        ) from error


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A cluster's facts about a topic."""

    name: str
    id: str
    partitions: tuple[int, ...]
    replicas_min: int
    settings: Mapping[str, str] = field(default_factory=dict)
    """The topic's settings; empty if we have no permission to read them."""
    may_write: bool = True
    may_read: bool = True

    def number(self, setting: str, default: int) -> int:
        return int(self.settings.get(setting, default))


class KafkaClients:
    """Creates clients of one cluster, and keeps the last reason why the cluster was unreachable."""

    def __init__(self, url: KafkaUrl, config: Mapping[str, str], *, patience_s: float = PATIENCE_S) -> None:
        self.url = url
        self.patience_s = patience_s
        self._given = dict(config)
        self._reason: KafkaError | None = None
        self._config: dict[str, Any] = {
            "client.id": "procession",
            "reconnect.backoff.max.ms": 1000,
            **{name: value for name, value in config.items() if not name.startswith("schema.registry.")},
            "bootstrap.servers": url.brokers,
            "error_cb": self._on_error,
            "logger": _client_logger(),
        }
        self._admin: AdminClient | None = None

    def of_instance(self, instance: str) -> KafkaClients:
        """Return clients for the topic of one output."""
        if INSTANCE not in self.url.topic:
            return self
        return KafkaClients(self.url.of_instance(instance), self._given, patience_s=self.patience_s)

    def _on_error(self, error: KafkaError) -> None:
        """Handle an error of the client. Only this callback gets the reason why a broker is unreachable; the call
        itself fails with a time-out."""
        is_vague = error.code() == KafkaError._ALL_BROKERS_DOWN  # this error follows the errors of the single brokers
        if self._reason is None or is_untrusted(error) or not (is_untrusted(self._reason) or is_vague):
            self._reason = error

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = self._make(AdminClient, {})
        return self._admin

    def producer(self, settings: Mapping[str, Any]) -> Producer:
        return self._make(Producer, settings)

    def consumer(self, settings: Mapping[str, Any]) -> Consumer:
        """Create a consumer whose positions this source sets: it joins no group, commits nothing and never chooses a
        position."""
        ours = {
            "group.id": "procession",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
        }
        return self._make(Consumer, ours | dict(settings))

    def _make(self, kind: Callable[[dict[str, Any]], Result], settings: Mapping[str, Any]) -> Result:
        try:
            return kind(self._config | dict(settings))
        except KafkaException as error:
            raise ConfigError(
                f"The Kafka client refuses its settings: {error.args[0].str()}.", next_step="Correct --client-config."
            ) from error

    def new_topic(self, topic: NewTopic) -> TopicFacts:
        """Create a topic unless it exists, and wait until the brokers know it."""
        futures = self.admin.create_topics([topic], request_timeout=self.patience_s)
        try:
            futures[topic.topic].result(self.patience_s + ANSWER_TIMEOUT_S)
            log.info("kafka.topic_created", topic=topic.topic)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                self.refused(error, f"create the topic {topic.topic}")
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            try:
                return self.topic(topic.topic)
            except ConfigError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_INTERVAL_S)

    def topic(self, name: str) -> TopicFacts:
        """Return the facts of a topic. Raises ConfigError if it does not exist, DiskError if no broker answers in
        time."""
        futures = self.admin.describe_topics(
            TopicCollection([name]), include_authorized_operations=True, request_timeout=self.patience_s
        )
        found = self.wait(futures[name], f"describe the topic {name}")
        allowed = set(found.authorized_operations or AclOperation)
        return TopicFacts(
            name,
            str(found.topic_id),
            tuple(sorted(partition.id for partition in found.partitions)),
            min((len(partition.replicas) for partition in found.partitions), default=0),
            self.settings(ResourceType.TOPIC, name),
            may_write=AclOperation.WRITE in allowed,
            may_read=AclOperation.READ in allowed,
        )

    def broker_settings(self) -> Mapping[str, str]:
        """Return the settings of any broker; empty if we have no permission to read them."""
        found = self.wait(self.admin.describe_cluster(request_timeout=self.patience_s), "describe the cluster")
        return self.settings(ResourceType.BROKER, str(min(node.id for node in found.nodes)))

    def settings(self, kind: ResourceType, name: str) -> Mapping[str, str]:
        resource = ConfigResource(kind, name)
        futures = self.admin.describe_configs([resource], request_timeout=self.patience_s)
        try:
            found = futures[resource].result(self.patience_s)
        except KafkaException as error:
            if error.args[0].code() in FORBIDDEN:
                log.warning(
                    "kafka.settings_hidden", of=name, detail="no permission DESCRIBE_CONFIGS: limits are assumed"
                )
                return {}
            self.refused(error, f"describe the settings of {name}")
        return {entry.name: entry.value for entry in found.values() if entry.value is not None}

    def wait(self, future: Future[Result], what: str) -> Result:
        """Wait for the answer and return it. If a broker refuses us, raise an error instead of repeating the
        request."""
        began, is_noted = time.monotonic(), False
        while True:
            try:
                answer = future.result(WAIT_S)
                self._reason = None
                return answer
            except KafkaException as error:
                self.refused(error, what)
            except TimeoutError:
                self.admin.poll(0)  # calls `_on_error`
                waited_s = time.monotonic() - began
                if is_untrusted(self._reason) or waited_s > self.patience_s + ANSWER_TIMEOUT_S:
                    raise self.sentence(KafkaError(KafkaError._TIMED_OUT), what) from None
                if waited_s > NOTE_S and not is_noted:
                    why = f" ({self._reason.str()})" if self._reason is not None else ""
                    note(f"No Kafka broker at {self.url.brokers} answers so far{why}. The connector waits.")
                    is_noted = True

    def offset(self, topic: str, partition: int, spec: OffsetSpec, isolation: IsolationLevel) -> int:
        """Return an offset of a partition. Wait while a leader is being elected."""
        deadline = time.monotonic() + self.patience_s
        place = TopicPartition(topic, partition)
        while True:
            futures = self.admin.list_offsets({place: spec}, isolation_level=isolation, request_timeout=self.patience_s)
            try:
                return int(futures[place].result(self.patience_s + ANSWER_TIMEOUT_S).offset)
            except KafkaException as error:
                if error.args[0].code() not in ELECTING or time.monotonic() > deadline:
                    self.refused(error, f"find offsets of {topic}[{partition}]")
                time.sleep(POLL_INTERVAL_S)

    def refused(self, error: KafkaException, what: str) -> NoReturn:
        raise self.sentence(error.args[0], what) from error

    def sentence(self, error: KafkaError, what: str) -> ProcessionError:
        """Return the error as a sentence that says who must act."""
        self.admin.poll(0)  # calls `_on_error`
        return sentence_of(error, self._reason, self.url.brokers, what)


def next_messages(consumer: Consumer, count_max: int, timeout_s: float = WAIT_S) -> list[Message]:
    """Return the available messages, as soon as there are any. (`consume` alone waits for the maximum number of
    messages.)"""
    first = consumer.poll(timeout_s)
    return [] if first is None else [first, *consumer.consume(count_max, timeout=0)]


def _client_logger() -> logging.Logger:
    """Return a logger that drops the messages of librdkafka, which logs every lost connection. Errors are returned by
    calls."""
    logger = logging.getLogger("procession.librdkafka")
    logger.setLevel(logging.CRITICAL)
    return logger
