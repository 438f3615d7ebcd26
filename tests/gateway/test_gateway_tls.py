"""A gateway with TLS, as a process: which clients it accepts, renewed certificates, last frames, bad peers."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import uvloop

from procession.address import parse_address
from procession.cli.streams_table import ask
from procession.errors import ConfigError, RoundError
from procession.gateway.control_client import ControlClient
from procession.sdk.doubles import ListSource
from procession.sdk.source_client import SourceClient
from procession.sdk.source_options import SourceOptions
from procession.sdk.source_records import Stream
from procession.tls import ClientTls
from procession.wire.messages import Error, Hello, Message, Restart
from tests import hostile
from tests.certificates import Authority
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.gateways import Gateways
from tests.gateway.producer import Producer
from tests.walk.cluster import wait_for

Make = Callable[..., GatewayProcess]

EVENT_LOOP_DESCRIPTORS = 1
"""The event loop opens /dev/null with its first connection, to close it when no descriptor is left."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def test_records_are_taken_and_acknowledged_over_tls(gateway_process: Make, authority: Authority) -> None:
    gateway = gateway_process(
        tls=authority.server(), control_tls=ClientTls(authority.ca), frame_bytes_max=1 << 20
    ).start()
    with Producer(gateway.listen, ClientTls(authority.ca)) as producer, gateway.client() as driver:
        producer.hello()
        producer.notify(7)
        producer.messages(7, range(1000))
        producer.send(Message(7, 1000, 0, b"", bytes(500_000)))
        while (end := driver.offer(1, 0, 1 << 30, 1 << 30).end) < 1001:
            pass
        driver.commit(1, 0, end, {7: 1000})
        producer.wait_committed(7, 1000)


def test_streams_reports_a_failed_handshake_and_the_gateway_logs_it(
    gateway_process: Make, authority: Authority, tmp_path: Path
) -> None:
    gateway = gateway_process(
        tls=authority.server(), control_tls=ClientTls(authority.ca), control_cookie=b"secret"
    ).start()
    other = ClientTls(Authority(tmp_path / "another").ca)
    for cookie, tls, sentence in (
        (b"secret", None, "closes the connection"),
        (b"secret", other, "its certificate is not trusted"),
        (b"wrong", ClientTls(authority.ca), "wrong secret"),
    ):
        with pytest.raises(ConfigError, match=sentence) as caught:
            ask(gateway.directory, cookie=cookie, timeout_s=3.0, tls=tls)
        assert caught.value.next_step

    def logged() -> str:
        lines = gateway.log.read_text().splitlines()
        return "\n".join(line for line in lines if "tls.handshake_failed" in line and "peer=" in line)

    # Without TLS, and with a certificate that the peer does not trust. The second peer notices it before the gateway.
    for reason in ("reason='no TLS with it: wrong version number'", "unknown ca"):
        wait_for(lambda reason=reason: reason in logged(), reason, gateway.log.read_text)  # type: ignore[misc]


def test_the_control_port_requires_tls_too(gateway_process: Make, authority: Authority, tmp_path: Path) -> None:
    gateway = gateway_process(tls=authority.server(client_ca=authority.ca), control_tls=authority.client()).start()
    with gateway.client() as driver:
        assert driver.status()["next_sequence"] == 0
    other = ClientTls(Authority(tmp_path / "another").ca)
    for stranger, why in (
        (None, None),
        (other, "its certificate is not trusted"),
        (ClientTls(authority.ca), None),
    ):
        # Time for more than one handshake: on a busy machine a single one may take as long as half a second.
        timeout_s = 0.5 if why is None else 3.0
        with (
            ControlClient(gateway.directory, timeout_s=timeout_s, tls=stranger) as client,
            pytest.raises(RoundError, match=why),
        ):
            client.status()
    with gateway.client() as driver:
        assert driver.status()["next_sequence"] == 0, "the gateway still runs"


def test_gateways_speak_tls_to_each_other(tmp_path: Path, authority: Authority) -> None:
    tls, client = authority.server(client_ca=authority.ca), authority.client()
    settings = {"tls": tls, "control_tls": client, "link_interval_s": 0.05, "link_tls": client}
    with Gateways(tmp_path, 2, **settings) as gateways:
        assert sorted(gateways.connected()) == ["gateway-0", "gateway-1"]
        with Producer(gateways[1].listen, client) as producer:
            producer.hello()
            assert producer.notify(7).success, "the leader has granted it"
        stranger = gateways.make(2, link_tls=None, link_timeout_s=0.5)
        gateways.all.append(stranger)
        stranger.start()
        gateways.until(lambda: "not found" in stranger.log.read_text(), "it to be sent away")
        assert sorted(gateways.connected()) == ["gateway-0", "gateway-1"]


def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    gateway_process: Make, authority: Authority, tmp_path: Path
) -> None:
    gateway = gateway_process(tls=authority.server(client_ca=authority.ca)).start()
    with Producer(gateway.listen, authority.client()) as producer:
        producer.hello()
    other = Authority(tmp_path / "another").issue("client.example", name="client")
    for stranger in ClientTls(authority.ca), ClientTls(authority.ca, *other), None:
        # Either step may notice it.
        with pytest.raises(OSError, match=r"certificate|unknown|reset|closed"), ExitStack() as door:
            door.enter_context(Producer(gateway.listen, stranger)).hello()


def test_a_renewed_certificate_is_shown_to_the_next_producer_and_the_others_stay(
    gateway_process: Make, authority: Authority
) -> None:
    gateway = gateway_process(tls=authority.server(), control_tls=ClientTls(authority.ca), ack_interval_s=0.05).start()
    with Producer(gateway.listen, ClientTls(authority.ca)) as early:
        early.hello()
        authority.issue()
        with Producer(gateway.listen, ClientTls(authority.ca)) as late:
            late.hello()
            assert isinstance(early.socket, ssl.SSLSocket)
            assert isinstance(late.socket, ssl.SSLSocket)
            assert early.socket.getpeercert(binary_form=True) != late.socket.getpeercert(binary_form=True)
            early.notify(7)


def test_the_last_frame_arrives_before_the_end_of_the_connection(gateway_process: Make, authority: Authority) -> None:
    gateway = gateway_process(tls=authority.server(), control_tls=ClientTls(authority.ca), linger_s=0.2).start()
    with Producer(gateway.listen, ClientTls(authority.ca)) as wrong:
        wrong.send(Hello("9", b"", "p", "i"))
        assert "unknown version" in wrong.expect(Error).reason
        with pytest.raises(OSError, match=r"closed|EOF|reset"):
            wrong.expect(Error)
    with Producer(gateway.listen, ClientTls(authority.ca)) as producer:
        producer.hello()
        gateway.process.terminate()
        producer.expect(Restart)
    assert gateway.wait()[0] == 0


@pytest.mark.parametrize("name", ["slow loris", "strangers", "half open", "dropped"])
def test_an_honest_producer_is_served_during_an_attack_on_the_handshake(
    gateway_process: Make, authority: Authority, name: str
) -> None:
    attacks: dict[str, hostile.Attack] = {
        "slow loris": hostile.slow_loris,
        "strangers": hostile.strangers,
        "half open": hostile.half_open,
        "dropped": hostile.opened_and_dropped(500),
    }
    gateway = gateway_process(
        tls=authority.server(), control_tls=ClientTls(authority.ca), handshake_timeout_s=2.0
    ).start()
    held = hostile.sockets(gateway.process.pid) + EVENT_LOOP_DESCRIPTORS

    async def at_height() -> None:
        assert await asyncio.to_thread(lambda: any(newcomer() for _ in range(10))), "the producer was not served"

    def newcomer() -> bool:
        # On a busy machine its own handshake may time out; then it reconnects, as producers do.
        with suppress(OSError), Producer(gateway.listen, ClientTls(authority.ca)) as one:
            one.hello()
            return one.notify(7).success
        return False

    client_hello = hostile.SCANS["a TLS client"]
    asyncio.run(attacks[name](parse_address(gateway.listen), client_hello, at_height))
    assert hostile.until(lambda: hostile.sockets(gateway.process.pid) <= held), "descriptors were left open"


def test_a_producer_that_never_reads_is_dropped(gateway_process: Make, authority: Authority) -> None:
    gateway = gateway_process(
        tls=authority.server(), control_tls=ClientTls(authority.ca), write_bytes_max=100_000, ack_interval_s=0.01
    ).start()
    with gateway.client() as control, Producer(gateway.listen, ClientTls(authority.ca)) as deaf:
        deaf.hello()
        assert control.status()["sessions"] == 1
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.socket.settimeout(1)
        with pytest.raises(OSError, match=r"reset|Broken|timed out|EOF|closed"):
            deaf.socket.sendall(hostile.NOTIFY * 5_000_000)
        deaf.socket.close()
        assert hostile.until(lambda: control.status()["sessions"] == 0)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_source_sends_everything_over_tls_and_ends_when_it_is_committed(
    gateway_process: Make, authority: Authority, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    gateway = gateway_process(
        tls=authority.server(client_ca=authority.ca), control_tls=authority.client(), ack_interval_s=0.05
    ).start()
    records = [b"%d" % number for number in range(5000)]
    source = ListSource({Stream(1, "numbers"): records}, batch_records=500)
    client = SourceClient(source, gateway.listen, SourceOptions("test", "test", tls=authority.client()))

    def drive() -> None:
        committed = 0
        with gateway.client() as driver:
            while committed < len(records) + 1:  # and the end of the stream
                end = driver.offer(1, committed, 1 << 30, 1 << 30).end
                if end > committed:
                    driver.commit(1, committed, end, {1: min(end, len(records)) - 1})
                committed = end

    async def send() -> None:
        await asyncio.gather(client.run(), asyncio.to_thread(drive))

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(send(), hostile.DEADLINE_S))
    assert client.committed == {1: len(records) - 1}


def test_an_untrusted_certificate_of_the_gateway_ends_a_source_with_a_sentence(
    gateway_process: Make, authority: Authority, tmp_path: Path
) -> None:
    gateway = gateway_process(tls=authority.server()).start()
    options = SourceOptions("test", "test", tls=ClientTls(Authority(tmp_path / "another").ca), backoff_limit_s=0.1)
    client = SourceClient(ListSource({Stream(1, "one"): [b"x"]}), gateway.listen, options)
    with pytest.raises(ConfigError, match="its certificate is not trusted") as caught:
        asyncio.run(asyncio.wait_for(client.run(), hostile.DEADLINE_S))
    assert "certificates" in caught.value.next_step
