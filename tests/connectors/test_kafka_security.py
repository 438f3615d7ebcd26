"""Kafka with passwords and permissions: settings come from a file, and each refusal is one sentence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from procession.address import Address, address_of, listening_socket
from procession.chaos.kafka_server import KafkaServer
from procession.connectors import kafka_sink
from procession.connectors.kafka_client import KafkaClients, KafkaUrl, read_client_config
from procession.connectors.kafka_sink import KafkaOutput
from procession.connectors.kafka_source import KafkaSource, KafkaSourceOptions
from procession.connectors.kafka_topic import KafkaSinkOptions, TopicGuard
from procession.errors import ConfigError
from procession.sdk.transaction_log import Transaction
from tests.systems import kafka_broker
from tests.systems.kafka_broker import Kafka, needs_kafka

Result = TypeVar("Result")

pytestmark = [needs_kafka, pytest.mark.slow]

JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' username="admin" password="admin-word" user_admin="admin-word" user_ann="ann-word";'
)

EVERYTHING = (AclOperation.CREATE, AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE)


class SecuredBroker:
    """A broker with a second listener that requires a password, and an authorizer that refuses by default."""

    def __init__(self, directory: Path) -> None:
        kafka_broker.installed()
        with listening_socket(Address("127.0.0.1", 0)) as listener:
            self.address = str(address_of(listener))
        self.directory = directory
        self.server = KafkaServer(
            {
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:admin;User:ANONYMOUS",
            },
            listeners=[f"SASL_PLAINTEXT://{self.address}"],
        )

    def clients(self, password: str = "ann-word", patience_s: float = 20.0) -> KafkaClients:
        path = self.directory / "client.properties"
        path.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=ann\nsasl.password={password}\n"
        )
        url = KafkaUrl.parse(f"kafka://{self.address}/guarded")
        return KafkaClients(url, read_client_config(path), patience_s=patience_s)

    def allow(self, kind: ResourceType, name: str, pattern: ResourcePatternType, *operations: AclOperation) -> None:
        admin = AdminClient({"bootstrap.servers": self.server.address, "log_level": 0})
        made = admin.create_acls(
            [
                AclBinding(kind, name, pattern, "User:ann", "*", operation, AclPermissionType.ALLOW)
                for operation in operations
            ]
        )
        for future in made.values():
            future.result(30)

    def deny_writing(self, topic: str) -> None:
        """Revoke the permission to write, and wait until the broker refuses writes."""
        admin = AdminClient({"bootstrap.servers": self.server.address, "log_level": 0})
        taken = AclBindingFilter(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            "User:ann",
            "*",
            AclOperation.WRITE,
            AclPermissionType.ALLOW,
        )
        for future in admin.delete_acls([taken]).values():
            future.result(30)
        deadline = time.monotonic() + 30
        while self.clients().topic(topic).may_write:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def eventually(try_it: Callable[[], Result]) -> Result:
    """Retry until the broker has applied a permission."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return try_it()
        except ConfigError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def values(broker: SecuredBroker) -> list[bytes]:
    """Return what our source reads after the last transaction is visible."""
    Kafka(broker.server).committed("guarded")
    source = KafkaSource(broker.clients(), KafkaSourceOptions(is_ending=True))
    [stream] = source.streams()  # type: ignore[misc]
    return [row for batch in source.read(stream, None) for row in batch.payloads.to_pylist()]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    broker = SecuredBroker(tmp_path_factory.mktemp("secured"))
    with broker.server as server:
        admin = AdminClient({"bootstrap.servers": server.address, "log_level": 0})
        admin.create_topics([NewTopic("guarded", 1, 1)])["guarded"].result(30)
        yield broker


def test_a_wrong_password_is_reported_as_one(broker: SecuredBroker) -> None:
    with pytest.raises(ConfigError, match="do not accept this client"):
        broker.clients("wrong").topic("guarded")


def test_each_missing_permission_is_reported_until_none_is_missing(broker: SecuredBroker, tmp_path: Path) -> None:
    literal, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    with pytest.raises(ConfigError, match=r"cannot describe the topic guarded|No permission to describe"):
        broker.clients().topic("guarded")
    broker.allow(ResourceType.TOPIC, "guarded", literal, AclOperation.DESCRIBE)
    eventually(lambda: broker.clients().topic("guarded"))
    with pytest.raises(ConfigError, match="No permission to write to the topic guarded"):
        TopicGuard(broker.clients(), KafkaSinkOptions()).check_start()
    with pytest.raises(ConfigError, match="No permission to read the topic guarded"):
        KafkaSource(broker.clients(), KafkaSourceOptions())
    broker.allow(ResourceType.TOPIC, "guarded", literal, AclOperation.WRITE, AclOperation.READ)
    eventually(lambda: KafkaSource(broker.clients(), KafkaSourceOptions()))
    with pytest.raises(ConfigError, match="No permission to create the topic procession-tokens"):
        KafkaOutput(tmp_path / "out", broker.clients(), KafkaSinkOptions())
    broker.allow(ResourceType.TOPIC, "procession-tokens", literal, *EVERYTHING)
    output = eventually(lambda: KafkaOutput(tmp_path / "out", broker.clients(), KafkaSinkOptions()))
    with pytest.raises(ConfigError, match="No permission to become the producer procession-out"):
        output.recover(0, None)
    broker.allow(ResourceType.TRANSACTIONAL_ID, "procession-", prefixed, *EVERYTHING[2:])
    eventually(lambda: output.recover(0, None))
    output.append(0, [b"allowed"])
    transaction = Transaction("id", 0, 7)
    output.prepare(transaction)
    output.commit(transaction)
    output.close()
    assert values(broker)[-1:] == [b"allowed"]


def test_a_permission_that_is_taken_after_the_vote_delays_the_epoch_and_loses_nothing(
    broker: SecuredBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink retries with growing pauses and then ends with the sentence. The next sink publishes the epoch."""
    pauses: list[float] = []
    monkeypatch.setattr(kafka_sink, "pause", lambda wait_s: (pauses.append(wait_s), time.sleep(wait_s)))
    for kind, name in (ResourceType.TOPIC, "guarded"), (ResourceType.TOPIC, "procession-tokens"):
        broker.allow(kind, name, ResourcePatternType.LITERAL, *EVERYTHING)
    broker.allow(ResourceType.TRANSACTIONAL_ID, "procession-", ResourcePatternType.PREFIXED, *EVERYTHING[2:])
    output = eventually(lambda: KafkaOutput(tmp_path / "late", broker.clients(patience_s=3.0), KafkaSinkOptions()))
    eventually(lambda: output.recover(0, None))
    output.append(0, [b"voted for"])
    transaction = Transaction("late", 0, 9)
    output.prepare(transaction)
    broker.deny_writing("guarded")
    with pytest.raises(ConfigError, match="No permission to publish an epoch in guarded"):
        output.commit(transaction)
    assert 3 <= len(pauses) < 20
    assert pauses[-1] > 4 * pauses[0]
    output.close()
    broker.allow(ResourceType.TOPIC, "guarded", ResourcePatternType.LITERAL, AclOperation.WRITE)
    again = eventually(lambda: KafkaOutput(tmp_path / "late", broker.clients(), KafkaSinkOptions()))
    again.recover(0, transaction)
    again.commit(transaction)
    again.close()
    assert values(broker)[-1:] == [b"voted for"]
