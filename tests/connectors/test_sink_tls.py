"""Every sink that we ship, over TLS: only clients with a certificate of the right authority can commit."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from pathlib import Path

import pytest

from procession.address import parse_address
from procession.sdk.doubles import Worker
from procession.storage.secret import Secret, find_secret
from procession.tls import ClientTls, connect
from procession.wire.connection import Connection
from procession.wire.lifecycle import ConnectionSide, Role
from tests.certificates import Authority
from tests.sdk.loops import on_a_loop


async def worker_at(place: str, tls: ClientTls | None) -> Worker:
    return Worker(Connection(ConnectionSide.INITIATOR, Role.SINK), *await connect(parse_address(place), tls))


async def listening(directory: Path, process: asyncio.subprocess.Process) -> str:
    while True:
        try:
            document = json.loads((directory / "sink.json").read_bytes())
        except FileNotFoundError:
            assert process.returncode is None
            await asyncio.sleep(0.01)  # the file is the only sign of the start
        else:
            return str(document["listen"])


@on_a_loop
@pytest.mark.parametrize("kind", ["file", "epochs", "stdout"])
async def test_a_sink_uses_tls_and_accepts_only_clients_with_a_certificate(kind: str, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    pair, directory = authority.issue(), tmp_path / "sink"
    arguments = ["--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--tls-client-ca", str(authority.ca)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "procession", "sink", kind, str(directory), "--listen", "127.0.0.1:0", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=dict(os.environ),
    )
    try:
        place = await listening(directory, process)
        shown = stranger.issue("client.example", name="client")
        for tls in (None, ClientTls(stranger.ca), ClientTls(authority.ca), ClientTls(authority.ca, *shown)):
            with pytest.raises((OSError, ssl.SSLError, AssertionError, EOFError)):
                async with await worker_at(place, tls) as refused:
                    await refused.hello()
        async with await worker_at(place, authority.client()) as worker:
            assert (await worker.hello(cookie=find_secret(directory, Secret.SINKS)))[1] == ()
            worker.data(0, b"one\n")
            assert await worker.phase1("t:c_id=0", 0, 4)
            await worker.phase2("t:c_id=0", True)
        if kind == "stdout":
            assert process.stdout is not None
            assert await process.stdout.readline() == b"one\n"
    finally:
        process.terminate()
        await process.wait()
    assert process.returncode == 0
