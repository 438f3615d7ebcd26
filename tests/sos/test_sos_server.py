"""The object service over sockets: its own client, unauthenticated clients, limits, TLS, and the command."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from procession.address import Address, address_of, listening_socket
from procession.errors import ConfigError, RemoteProtocolError
from procession.sos import sos_frames as sf
from procession.sos.sos_client import SosClient, SosUnreachable
from procession.sos.sos_server import SosConfig, SosServer, SosSession, check_sos_config, open_store
from procession.sos.volume_rules import RefusalCode, RequestRefused
from procession.tls import ClientTls
from tests.certificates import Authority
from tests.sos.volumes import FIRST, T1, T2, head

SECRET = b"secret"


@asynccontextmanager
async def served(directory: Path, **options: object) -> AsyncIterator[Address]:
    config = replace(SosConfig(directory, "127.0.0.1:0", SECRET), **options)  # type: ignore[arg-type]
    listener = listening_socket(Address("127.0.0.1", 0))
    serving = asyncio.ensure_future(SosServer(config, open_store(config)).serve(listener))
    address = address_of(listener)
    try:
        yield address
    finally:
        serving.cancel()
        await asyncio.wait([serving])


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(bounded())


async def claimed(client: SosClient, volume: str = "v") -> None:
    await client.format(volume)
    await client.claim(volume, 1, T1)
    await client.create(volume, 1, 1, FIRST)


def test_objects_are_kept_for_the_next_connection_and_the_next_process(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as address:
            client = await SosClient.open(address, SECRET)
            await claimed(client)
            checksum, offset, replies = 0, 0, []
            for number in range(600):  # more than there are credits
                data = b"%d," % number
                checksum = zlib.crc32(data, checksum)
                replies.append(
                    asyncio.ensure_future(
                        client.append("v", 1, 1, offset, checksum, data, is_barrier=number % 100 == 99)
                    )
                )
                offset += len(data)
            done = await asyncio.gather(*replies)
            assert done[-1].synced == done[-1].written == offset
            client.close()
        async with served(tmp_path) as address:
            client = await SosClient.open(address, SECRET)
            state = await client.describe("v")
            assert state is not None
            assert state.objects[1].checksum == checksum
            found = b"".join([data for data, _ in await client.read("v", 1, 0, 1 << 20)])
            assert found == b"".join(b"%d," % number for number in range(600))
            assert await client.names() == ["v"]
            client.close()

    run(work)


def test_a_later_claim_on_another_connection_fences_the_writer(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as address:
            old, new = await SosClient.open(address, SECRET), await SosClient.open(address, SECRET)
            await claimed(old)
            assert (await new.claim("v", 2, T2)).objects[1].written == 0
            with pytest.raises(RequestRefused) as refusal:
                await old.append("v", 1, 1, 0, zlib.crc32(b"x"), b"x", is_barrier=True)
            assert (refusal.value.code, refusal.value.promised) == (RefusalCode.FENCED, 2)
            await new.create("v", 2, 2, head(1))
            await new.retain("v", 2, 2)
            state = await new.describe("v")
            assert state is not None
            assert list(state.objects) == [2]
            old.close()
            new.close()

    run(work)


@pytest.mark.parametrize("cookie", [b"", b"other"])
def test_a_client_without_the_secret_is_refused(tmp_path: Path, cookie: bytes) -> None:
    async def work() -> None:
        async with served(tmp_path) as address:
            with pytest.raises(RemoteProtocolError, match="cookie"):
                await SosClient.open(address, cookie)

    run(work)


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", bytes(64), sf.encode(sf.ListVolumes(1, "")), sf.encode(sf.SosHello(2, SECRET, ""))],
)
def test_an_unauthenticated_client_gets_the_reason_and_the_server_continues(tmp_path: Path, data: bytes) -> None:
    async def work() -> None:
        async with served(tmp_path) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(data)
            assert isinstance(sf.decode((await reader.read())[4:]), sf.SosError)
            writer.close()
            client = await SosClient.open(address, SECRET)
            assert await client.names() == []
            client.close()

    run(work)


def test_a_silent_client_is_disconnected(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path, handshake_timeout_s=0.05) as address:
            reader, writer = await asyncio.open_connection(*address)
            assert sf.decode((await reader.read())[4:]) == sf.SosError("no HELLO in time")
            writer.close()

    run(work)


def test_the_number_of_connections_is_bounded(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path, connections_max=1) as address:
            client = await SosClient.open(address, SECRET)
            with pytest.raises((RemoteProtocolError, SosUnreachable)):
                await SosClient.open(address, SECRET)
            assert await client.names() == []
            client.close()

    run(work)


def test_a_server_that_is_gone_fails_the_open_requests(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as address:
            client = await SosClient.open(address, SECRET)
        with pytest.raises(SosUnreachable):
            await client.names()
        await client.closed()
        with pytest.raises(SosUnreachable):
            await SosClient.open(address, SECRET)

    run(work)


def test_a_disk_that_fails_ends_the_server_without_a_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        config = SosConfig(tmp_path, "", SECRET)
        listener = listening_socket(Address("127.0.0.1", 0))
        serving = asyncio.ensure_future(SosServer(config, open_store(config)).serve(listener))
        client = await SosClient.open(address_of(listener), SECRET)
        await claimed(client)

        def fail(*_: object, **__: object) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr("procession.runtime.host_files.sync", fail)
        with pytest.raises(SosUnreachable):
            await client.append("v", 1, 1, 0, zlib.crc32(b"x"), b"x", is_barrier=True)
        with pytest.raises(Exception, match="Cannot sync"):
            await serving

    run(work)


def test_tls_is_spoken_and_a_plain_client_is_not_understood(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")

    async def work() -> None:
        async with served(tmp_path / "s", tls=authority.server()) as address:
            client = await SosClient.open(address, SECRET, ClientTls(authority.ca))
            await claimed(client)
            assert await client.names() == ["v"]
            client.close()
            with pytest.raises((SosUnreachable, RemoteProtocolError)):
                await SosClient.open(address, SECRET)

    run(work)


def test_a_service_without_a_secret_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="secret"):
        check_sos_config(SosConfig(tmp_path, "127.0.0.1:0"))


def test_the_command_makes_a_secret_serves_and_stops(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "procession", "sos", "--dir", str(tmp_path / "s"), "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        port = int(line.strip().rpartition(":")[2])
        secret = (tmp_path / "s" / "secrets" / "sos").read_bytes().strip()
        assert os.stat(tmp_path / "s").st_mode & 0o077 == 0

        async def work() -> None:
            client = await SosClient.open(Address("127.0.0.1", port), secret)
            await claimed(client)
            client.close()

        run(work)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def test_a_small_reply_does_not_wait_for_the_acknowledgement_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, found = SosSession.run, []

    async def run_session(self: SosSession) -> None:
        connected = self._writer.get_extra_info("socket")
        found.append(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await before(self)

    monkeypatch.setattr(SosSession, "run", run_session)

    async def work() -> None:
        async with served(tmp_path) as address:
            (await SosClient.open(address, SECRET)).close()

    run(work)
    assert found == [1]
