"""Kafka over TLS: a broker with a certificate of its own, and each certificate that does not fit as one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from procession.address import Address, address_of, listening_socket
from procession.chaos.kafka_server import KafkaServer
from procession.connectors.kafka_client import KafkaClients, KafkaUrl, read_client_config
from procession.connectors.kafka_sink import KafkaOutput
from procession.connectors.kafka_source import KafkaSource, KafkaSourceOptions
from procession.connectors.kafka_topic import KafkaSinkOptions
from procession.errors import ConfigError, DiskError
from procession.sdk.transaction_log import Transaction
from tests.certificates import EXPIRED, Authority, Pair
from tests.systems import kafka_broker
from tests.systems.kafka_broker import Kafka, needs_kafka

pytestmark = [needs_kafka, pytest.mark.slow]


class TlsBroker:
    """A broker with three more listeners: `address` has a certificate for its host, `other` one for another host, and
    `old` an expired one. All require a client certificate."""

    def __init__(self, directory: Path) -> None:
        kafka_broker.installed()
        self.authority = Authority(directory / "authority")
        self.stranger = Authority(directory / "stranger")
        with (
            listening_socket(Address("127.0.0.1", 0)) as first,
            listening_socket(Address("127.0.0.1", 0)) as second,
            listening_socket(Address("127.0.0.1", 0)) as third,
        ):
            self.address, self.other, self.old = (str(address_of(socket)) for socket in (first, second, third))
        here = _store(self.authority.issue(name="here"))
        elsewhere = _store(self.authority.issue("broker.example", name="elsewhere"))
        expired = _store(self.authority.issue(name="expired", not_after=EXPIRED))
        trust = str(self.authority.ca)
        protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,HERE:SSL,ELSEWHERE:SSL,EXPIRED:SSL"
        self.server = KafkaServer(
            {
                "listener.security.protocol.map": protocols,
                **_tls("here", here, trust),
                **_tls("elsewhere", elsewhere, trust),
                **_tls("expired", expired, trust),
            },
            listeners=[f"HERE://{self.address}", f"ELSEWHERE://{self.other}", f"EXPIRED://{self.old}"],
        )
        self._config = directory / "client.properties"

    def clients(
        self, address: str = "", *, ca: Path | None = None, shown: Pair | None = None, more: str = ""
    ) -> KafkaClients:
        """Return clients that present this certificate of ours and trust this authority."""
        lines = ["security.protocol=SSL", f"ssl.ca.location={ca or self.authority.ca}", more]
        if shown is not None:
            lines += [f"ssl.certificate.location={shown.cert}", f"ssl.key.location={shown.key}"]
        self._config.write_text("\n".join(lines))
        self._config.chmod(0o600)
        url = KafkaUrl.parse(f"kafka://{address or self.address}/sealed")
        return KafkaClients(url, read_client_config(self._config), patience_s=5.0)

    @property
    def client(self) -> Pair:
        return self.authority.issue("client.example", name="client")


def _store(pair: Pair) -> Path:
    """Return a key store as Kafka reads it: the key in PKCS #8 and the certificates, in one file."""
    path = pair.cert.with_suffix(".store.pem")
    key = load_pem_private_key(pair.key.read_bytes(), password=None)
    body = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(body + pair.cert.read_bytes())
    return path


def _tls(listener: str, store: Path, trust: str) -> dict[str, str]:
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": trust,
        "ssl.client.auth": "required",
    }
    return {f"listener.name.{listener}.{name}": value for name, value in settings.items()}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    broker = TlsBroker(tmp_path_factory.mktemp("tls"))
    with broker.server as server:
        Kafka(server).topic("sealed")
        yield broker


def test_a_sink_and_a_source_work_with_certificates_on_both_sides(broker: TlsBroker, tmp_path: Path) -> None:
    output = KafkaOutput(tmp_path / "out", broker.clients(shown=broker.client), KafkaSinkOptions())
    output.recover(0, None)
    output.append(0, [b"sealed"])
    transaction = Transaction("id", 0, 6)
    output.prepare(transaction)
    output.commit(transaction)
    output.close()
    Kafka(broker.server).committed("sealed")  # waits until readers see it
    source = KafkaSource(broker.clients(shown=broker.client), KafkaSourceOptions(is_ending=True))
    [stream] = source.streams()  # type: ignore[misc]
    assert [row for batch in source.read(stream, None) for row in batch.payloads.to_pylist()] == [b"sealed"]


def test_a_broker_with_an_untrusted_certificate_is_refused(broker: TlsBroker) -> None:
    clients = broker.clients(ca=broker.stranger.ca, shown=broker.client)
    with pytest.raises(
        ConfigError, match=r"do not accept this client, or it does not accept them: .*certificate verify failed"
    ) as raised:
        clients.topic("sealed")
    assert "compare the clocks" in raised.value.next_step


def test_a_broker_with_the_certificate_of_another_host_is_refused(broker: TlsBroker) -> None:
    clients = broker.clients(broker.other, shown=broker.client)
    with pytest.raises(
        ConfigError, match=r"do not accept this client, or it does not accept them: .*certificate verify failed"
    ):
        clients.topic("sealed")


def test_a_broker_whose_certificate_has_expired_is_refused_and_the_clock_is_named(broker: TlsBroker) -> None:
    clients = broker.clients(broker.old, shown=broker.client)
    with pytest.raises(
        ConfigError, match=r"do not accept this client, or it does not accept them: .*certificate verify failed"
    ) as raised:
        clients.topic("sealed")
    assert "expired" in raised.value.explain()
    assert "compare the clocks" in raised.value.next_step


def test_a_broker_that_requires_a_client_certificate_is_reported(broker: TlsBroker) -> None:
    with pytest.raises(ConfigError, match="do not accept this client, or it does not accept them"):
        broker.clients().topic("sealed")


def test_a_client_certificate_that_the_broker_does_not_trust_is_reported(broker: TlsBroker) -> None:
    shown = broker.stranger.issue("client.example", name="client")
    with pytest.raises(ConfigError, match="do not accept this client, or it does not accept them"):
        broker.clients(shown=shown).topic("sealed")


def test_a_missing_file_of_certificates_is_reported(broker: TlsBroker, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"names .*none\.pem as ssl\.ca\.location, which cannot be read"):
        broker.clients(ca=tmp_path / "none.pem").topic("sealed")


def test_tls_to_a_listener_without_it_and_the_reverse_are_reported_with_the_setting_to_correct(
    broker: TlsBroker,
) -> None:
    plain = KafkaClients(KafkaUrl.parse(f"kafka://{broker.address}/sealed"), {}, patience_s=5.0)
    for clients in (broker.clients(broker.server.address, shown=broker.client), plain):
        with pytest.raises(DiskError) as raised:
            clients.topic("sealed")
        assert "security.protocol" in raised.value.next_step
