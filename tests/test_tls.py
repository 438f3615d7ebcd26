"""TLS on real sockets: which clients are accepted, renewed certificates, missing handshakes, invalid files."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from procession.address import Address, address_of, listening_socket
from procession.errors import ConfigError
from procession.tls import ClientTls, ServerTls, TlsListener, client_tls, complaint, server_tls
from tests.certificates import Authority

TIMEOUT_S = 20.0
HANDSHAKES_MAX = 4


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def run_it(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(test, TIMEOUT_S))

    return run_it


Run = Callable[[Coroutine[Any, Any, None]], None]


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


@asynccontextmanager
async def echoing(tls: ServerTls, handshake_timeout_s: float = TIMEOUT_S) -> AsyncIterator[Address]:
    listening = listening_socket(Address("127.0.0.1", 0))
    address = address_of(listening)
    door = TlsListener(listening, tls, Echo, handshake_timeout_s=handshake_timeout_s, handshakes_max=HANDSHAKES_MAX)
    try:
        yield address
    finally:
        door.close()


async def said(address: Address, tls: ClientTls, host: str = "127.0.0.1") -> tuple[bytes, bytes]:
    """Send to a server, and return its answer and its certificate."""
    reader, writer = await asyncio.open_connection(*address, ssl=tls.context(), server_hostname=host)
    try:
        writer.write(b"hello")
        answer = await reader.readexactly(5)
        return answer, writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.close()


async def refused(address: Address, tls: ClientTls, host: str = "127.0.0.1") -> str | None:
    """Return the error that a user would get."""
    try:
        await said(address, tls, host)
    except (OSError, asyncio.IncompleteReadError) as error:
        return complaint(error) or "lost"
    return None


def test_both_sides_exchange_data_over_tls(authority: Authority, run: Run) -> None:
    async def test() -> None:
        async with echoing(authority.server()) as address:
            assert (await said(address, ClientTls(authority.ca)))[0] == b"hello"

    run(test())


def test_a_server_with_an_untrusted_certificate_is_refused(authority: Authority, run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with echoing(authority.server()) as address:
            stranger = ClientTls(Authority(tmp_path / "another").ca)
            assert "not trusted" in str(await refused(address, stranger))
            assert "not trusted" in str(await refused(address, ClientTls(authority.ca), "example.org"))

    run(test())


def test_a_client_must_present_a_certificate_of_the_authority_if_one_is_required(
    authority: Authority, run: Run, tmp_path: Path
) -> None:
    async def test() -> None:
        async with echoing(authority.server(client_ca=authority.ca)) as address:
            assert (await said(address, authority.client()))[0] == b"hello"
            assert await refused(address, ClientTls(authority.ca)) is not None
            other = Authority(tmp_path / "another").issue("client.example", name="client")
            assert await refused(address, ClientTls(authority.ca, *other)) is not None

    run(test())


def test_a_renewed_certificate_counts_from_the_next_connection_on(authority: Authority, run: Run) -> None:
    async def test() -> None:
        async with echoing(authority.server()) as address:
            reader, writer = await asyncio.open_connection(*address, ssl=ClientTls(authority.ca).context())
            first = (await said(address, ClientTls(authority.ca)))[1]
            authority.issue()
            second = (await said(address, ClientTls(authority.ca)))[1]
            assert first != second
            writer.write(b"still here")
            assert await reader.readexactly(10) == b"still here"
            writer.close()

    run(test())


def test_an_incomplete_renewal_of_a_certificate_has_no_effect(authority: Authority, run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        tls = authority.server()
        async with echoing(tls) as address:
            first = (await said(address, ClientTls(authority.ca)))[1]
            renewed = authority.issue(name="renewed")
            renewed.cert.replace(tls.cert)
            assert (await said(address, ClientTls(authority.ca)))[1] == first
            tls.key.unlink()
            assert (await said(address, ClientTls(authority.ca)))[1] == first
            renewed.key.replace(tls.key)
            assert (await said(address, ClientTls(authority.ca)))[1] != first

    run(test())


def test_clients_of_a_removed_authority_are_refused(authority: Authority, run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        trusted = tmp_path / "trusted.pem"
        trusted.write_bytes(authority.ca.read_bytes())
        async with echoing(authority.server(client_ca=trusted)) as address:
            assert await refused(address, authority.client()) is None
            trusted.write_bytes(Authority(tmp_path / "another").ca.read_bytes())
            assert await refused(address, authority.client()) is not None

    run(test())


def test_connections_without_a_handshake_do_not_block_others(authority: Authority, run: Run) -> None:
    async def test() -> None:
        async with echoing(authority.server()) as address, AsyncExitStack() as silent:
            readers = []
            for _ in range(3 * HANDSHAKES_MAX):
                reader, writer = await asyncio.open_connection(*address)
                silent.callback(writer.close)
                readers.append(reader)
            assert (await said(address, ClientTls(authority.ca)))[0] == b"hello"
            # The oldest have made room.
            assert await readers[0].read() == b""

    run(test())


def test_a_handshake_has_a_time_limit(authority: Authority, run: Run) -> None:
    async def test() -> None:
        async with echoing(authority.server(), handshake_timeout_s=0.2) as address:
            reader, writer = await asyncio.open_connection(*address)
            assert await reader.read() == b""
            writer.close()
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await reader.read()
            writer.close()
            while await refused(address, ClientTls(authority.ca)) is not None:
                pass  # on a busy machine its own handshake may time out; then it reconnects

    run(test())


def test_options_that_cannot_work_are_reported_at_once(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.issue(), authority.issue(name="other")
    for wrong in (
        lambda: server_tls(pair.cert, None, None),
        lambda: server_tls(None, None, authority.ca),
        lambda: server_tls(pair.cert, tmp_path / "none.key", None),
        lambda: server_tls(pair.cert, other.key, None),
        lambda: server_tls(pair.key, pair.key, None),
        lambda: server_tls(*pair, client_ca=pair.key),
        lambda: client_tls(None, *pair),
        lambda: client_tls(authority.ca, pair.cert, None),
        lambda: client_tls(pair.key, None, None),
    ):
        with pytest.raises(ConfigError) as caught:
            wrong()
        assert caught.value.next_step
    assert server_tls(None, None, None) is None
    assert client_tls(None, None, None) is None


def test_a_key_with_a_password_is_refused_and_never_asked_for(authority: Authority) -> None:
    pair = authority.issue()
    key = load_pem_private_key(pair.key.read_bytes(), None)
    locked = BestAvailableEncryption(b"sesame")
    pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        server_tls(*pair, client_ca=None)
    assert "without a password" in caught.value.next_step


def test_a_lost_connection_is_not_a_tls_error() -> None:
    assert complaint(ConnectionResetError()) is None
    assert complaint(ssl.SSLEOFError()) is None
