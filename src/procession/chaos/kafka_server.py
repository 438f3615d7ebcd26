"""Runs a Kafka broker for chaos scenarios, benchmarks and tests: one process in a temporary directory.

Invariant: as in `chaos/system_server`. Broker and controller are one process (KRaft). Clients behind a proxy use a
separate listener, which advertises the proxy, because a Kafka client connects to the advertised address.
Upstream: the scenarios, benchmarks and tests; downstream: `scripts/kafka`, which fetches the broker's jars.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import uuid4

from procession.address import Address
from procession.chaos.system_server import HOST, SystemServer, free_port, is_listening
from procession.errors import ConfigError

ANSWER_TIMEOUT_S = 1.0
JAVA_OPTIONS = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
LOG_OPTIONS = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "8388608",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


def find_jars() -> Path:
    """Return the directory of the broker's jars, which `scripts/kafka` has created in this checkout. Raises
    ConfigError."""
    jars = Path(__file__).resolve().parents[3] / ".make" / "kafka" / "libs"
    if not (jars.parent / "pom.xml").is_file():
        raise ConfigError(
            "There is no Kafka broker in .make/kafka of this checkout.",
            next_step="Run scripts/kafka; it needs Java and Maven.",
        )
    return jars


class KafkaServer(SystemServer):
    """A broker that is started, killed and started again on the same data. Use it as a context manager.

    Args:
        settings: The broker's settings, in addition to `SETTINGS`. With `log.dirs` its messages are stored elsewhere.
        listeners: Further listeners, such as SASL_PLAINTEXT://127.0.0.1:9093.
        proxied: Further listeners without security, by name, each with the address of its proxy, which it advertises.
            `ports` has the port at which the broker listens for it.
        jars: The directory of the broker's jars.
    """

    title = "The Kafka broker"
    start_timeout_s = 60.0

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        listeners: Sequence[str] = (),
        proxied: Mapping[str, Address] | None = None,
        jars: Path | None = None,
    ) -> None:
        self._jars = jars or find_jars()
        self._listeners = listeners
        self._proxied = proxied or {}
        self.ports = {name: free_port() for name in self._proxied}
        super().__init__("kafka", SETTINGS | dict(settings or {}))

    def _make(self) -> None:
        controller = f"{HOST}:{free_port()}"
        plain = f"PLAINTEXT://{self.address}"
        behind = [f"{name}://{HOST}:{port}" for name, port in self.ports.items()]
        advertised = [f"{name}://{address}" for name, address in self._proxied.items()]
        names = ["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT", "SASL_PLAINTEXT:SASL_PLAINTEXT"]
        self._settings |= {
            "log.dirs": self._settings.get("log.dirs", str(self.directory / "data")),
            "metadata.log.dir": str(self.directory / "metadata"),
            "listeners": ",".join([plain, f"CONTROLLER://{controller}", *self._listeners, *behind]),
            "advertised.listeners": ",".join([plain, *self._listeners, *advertised]),
            "listener.security.protocol.map": self._settings.get(
                "listener.security.protocol.map",
                ",".join([*names, *(f"{name}:PLAINTEXT" for name in self.ports)]),
            ),
            "controller.quorum.voters": f"1@{controller}",
        }
        self._properties = self.directory / "server.properties"
        self._write_properties()
        command = self._java("kafka.tools.StorageTool", "format", "-t", uuid4().hex[:22], "-c", str(self._properties))
        self._run(command, "Kafka's storage cannot be made", "Run scripts/kafka again; check the Java version.")

    def change(self, settings: Mapping[str, str]) -> None:
        super().change(settings)
        self._write_properties()

    def _program(self) -> list[str]:
        return self._java("kafka.Kafka", str(self._properties))

    def is_ready(self, pid: int = 0) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        if not is_listening(self.port):
            return False
        client = AdminClient({"bootstrap.servers": self.address, "reconnect.backoff.max.ms": 200, "log_level": 0})
        try:
            return bool(client.list_topics(timeout=ANSWER_TIMEOUT_S).brokers)
        except KafkaException:
            return False

    def _write_properties(self) -> None:
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))

    def _java(self, name: str, *arguments: str) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home) / "bin" / "java") if home else "java"
        return [java, *JAVA_OPTIONS, *LOG_OPTIONS, "-cp", f"{self._jars}/*", name, *arguments]
