"""A Kafka broker of our own, for chaos scenarios, benchmarks and tests: one process in a temporary directory.

Invariant: it listens on free loopback ports only, keeps its data over a kill and a restart, and leaves nothing behind
when it is closed. Broker and controller are one process (KRaft). Upstream: the scenarios, benchmarks and tests;
downstream: `scripts/kafka`, which fetches the broker's jars.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from procession.address import Address, address_of, listening_socket
from procession.errors import ConfigError

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
LAST_WORDS_BYTES = 2000
JAVA_OPTIONS = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
LOG_OPTIONS = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
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
    """The directory of the broker's jars: what `scripts/kafka` made in this checkout. Raises ConfigError."""
    jars = Path(__file__).resolve().parents[3] / ".make" / "kafka" / "libs"
    if not (jars.parent / "pom.xml").is_file():
        raise ConfigError(
            "There is no Kafka broker in .make/kafka of this checkout.",
            next_step="Run scripts/kafka; it needs Java and Maven.",
        )
    return jars


class KafkaServer:
    """A broker that is started, killed and started again on the same data. Use it as a context manager.

    Args:
        settings: The broker's settings, in addition to `SETTINGS`.
        listeners: Further listeners, such as SASL_PLAINTEXT://127.0.0.1:9093.
        jars: The directory of the broker's jars.
    """

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        listeners: Sequence[str] = (),
        jars: Path | None = None,
    ) -> None:
        self._jars = jars or find_jars()
        self._settings = SETTINGS | dict(settings or {})
        self.directory = Path(tempfile.mkdtemp(prefix="procession-kafka-"))
        self.log_path = self.directory / "server.log"
        with (
            listening_socket(Address("127.0.0.1", 0)) as listener,
            listening_socket(Address("127.0.0.1", 0)) as controller,
        ):
            self.port, controller_port = address_of(listener).port, address_of(controller).port
        more = "".join(f",{listener}" for listener in listeners)
        self._settings |= {
            "log.dirs": str(self.directory / "data"),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller_port}{more}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}{more}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        }
        self._properties = self.directory / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._write_properties()
            self._run("kafka.tools.StorageTool", "format", "-t", uuid4().hex[:22], "-c", str(self._properties))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, **settings: str) -> None:
        """Start it, and wait until it answers. `settings` hold from now on, with dots written as `__`."""
        if settings:
            self._settings |= {name.replace("__", "."): value for name, value in settings.items()}
            self._write_properties()
        with self.log_path.open("ab") as log:
            # The broker is killed if the process that started it dies.
            command = ["setpriv", "--pdeathsig", "KILL", *self._java("kafka.Kafka", str(self._properties))]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._until_ready()

    def stop(self) -> None:
        """An orderly shutdown."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process = None

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _until_ready(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        assert self._process
        client = AdminClient({"bootstrap.servers": self.address, "reconnect.backoff.max.ms": 200, "log_level": 0})
        for _ in range(int(START_TIMEOUT_S)):
            try:
                if client.list_topics(timeout=1).brokers:
                    return
            except KafkaException:
                if self._process.poll() is not None:
                    break
        words = self.log_path.read_bytes()[-LAST_WORDS_BYTES:].decode(errors="replace").strip()
        self.kill()
        raise ConfigError(f"The Kafka broker did not start: {words}", next_step="Look at the words of its log.")

    def _write_properties(self) -> None:
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))

    def _java(self, name: str, *words: str) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home) / "bin" / "java") if home else "java"
        return [java, *JAVA_OPTIONS, *LOG_OPTIONS, "-cp", f"{self._jars}/*", name, *words]

    def _run(self, *words: str) -> None:
        done = subprocess.run(self._java(*words), capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConfigError(
                f"Kafka's storage cannot be made: {(done.stderr or done.stdout).strip()}",
                next_step="Run scripts/kafka again; check the Java version.",
            )
