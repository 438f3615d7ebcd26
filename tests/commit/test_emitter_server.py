"""An emitter that listens: only drivers with the secret are served, a later one replaces an earlier one, and no input
ends the emitter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from procession.address import Address, listening_socket
from procession.commit.emitter_channel import ListeningEmitter
from procession.commit.emitter_frames import (
    FRAME_BYTES_MAX,
    GREETING_BYTES_MAX,
    RUNS_IDENTITY,
    Answer,
    DriverGreeting,
    FrameReader,
    LinkFailed,
    Notice,
    OpenConnections,
    Request,
    RunPlace,
    SendDecision,
    documents,
    read_answer,
    written_greeting,
    written_request,
)
from procession.commit.emitter_server import CHECKPOINTS_MAX, EmitterConfig, EmitterServer, serve_emitter
from procession.commit.epoch_link import LinkMaker, direct_links
from procession.commit.sink_link import SinkOptions
from procession.errors import ConfigError, FencedError, UsageError
from procession.storage.flight_reader import FlightAccess
from procession.storage.host_runs import HostRuns
from procession.storage.run_store import RunStore
from procession.tls import ClientTls, ServerTls
from tests.certificates import Authority
from tests.sdk.loops import on_a_loop

COOKIE = b"the control secret"
GREETING = DriverGreeting("0a1b", 3, COOKIE)
SINK = SinkOptions("a.0", "127.0.0.1", 1, "p", "p-a-0", sink="a", bucket=0)

Adapt = Callable[[EmitterConfig], EmitterConfig]


@asynccontextmanager
async def serving(tmp_path: Path, adapt: Adapt = lambda config: config) -> AsyncIterator[tuple[Address, EmitterServer]]:
    """Serve an emitter in this loop. At the end it must still serve."""
    server = EmitterServer(adapt(EmitterConfig(tmp_path / "emitter", "127.0.0.1:0", COOKIE)))
    listener = listening_socket(Address("127.0.0.1", 0))
    address = Address(*listener.getsockname())
    running = asyncio.ensure_future(server.serve(listener))
    try:
        yield address, server
        assert not running.done(), "the emitter has ended"
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


class Driver:
    """A driver that an emitter serves, and what the emitter answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._answers = documents(reader)
        self._reader = reader
        self.writer = writer

    @classmethod
    async def connected(
        cls, address: Address, greeting: DriverGreeting = GREETING, tls: ClientTls | None = None
    ) -> Driver:
        return cls(*await ListeningEmitter(address, greeting, tls).open())

    def order(self, request: Request) -> None:
        self.writer.write(written_request(request))

    async def answer(self) -> Answer | None:
        """Return the next answer. None if the emitter has closed the connection."""
        async with asyncio.timeout(30):
            async for document in self._answers:
                return read_answer(document)
        return None

    async def until_closed(self) -> None:
        while await self.answer() is not None:
            pass


def identified(tmp_path: Path) -> RunPlace:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / RUNS_IDENTITY).write_text("here")
    return RunPlace(str(tmp_path / "runs"), "here")


@on_a_loop
async def test_the_driver_of_the_same_fence_or_a_later_one_replaces_and_an_earlier_one_is_refused(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (address, _):
        first = await Driver.connected(address)
        again = await Driver.connected(address)
        await first.until_closed()
        later = await Driver.connected(address, replace(GREETING, fence=4))
        await again.until_closed()
        with pytest.raises(FencedError, match="serves a later driver, with fence 4 instead of 3"):
            await Driver.connected(address)
        later.writer.close()
        with pytest.raises(FencedError):
            await Driver.connected(address)
        other = await Driver.connected(address, DriverGreeting("another pipeline", 1, COOKIE))
        await Driver.connected(address, replace(GREETING, fence=5))
        other.order(OpenConnections(identified(tmp_path), (SINK,)))
        assert isinstance(await other.answer(), Notice), "the driver of another pipeline is still served"


@on_a_loop
async def test_only_so_many_checkpoints_without_a_driver_are_remembered(tmp_path: Path) -> None:
    async with serving(tmp_path) as (address, server):
        kept = await Driver.connected(address, replace(GREETING, checkpoint_id="kept"))
        for number in range(CHECKPOINTS_MAX + 3):
            driver = await Driver.connected(address, replace(GREETING, checkpoint_id=f"id {number}"))
            driver.writer.close()
        assert len(server._drivers) <= CHECKPOINTS_MAX
        assert "kept" in server._drivers
        kept.writer.close()


@pytest.mark.parametrize(
    ("greeting", "match"),
    [
        (replace(GREETING, cookie=b""), "another secret"),
        (replace(GREETING, cookie=b"guess"), "another secret"),
        (replace(GREETING, format=99), "format 99"),
    ],
    ids=["no secret", "wrong secret", "format"],
)
@on_a_loop
async def test_a_driver_with_another_secret_or_format_is_refused_with_a_next_step(
    tmp_path: Path, greeting: DriverGreeting, match: str
) -> None:
    async with serving(tmp_path) as (address, server):
        with pytest.raises(ConfigError, match=match) as caught:
            await Driver.connected(address, greeting)
        assert caught.value.next_step
        assert server._drivers == {}


def framed(document: object) -> bytes:
    body = json.dumps(document).encode()
    return len(body).to_bytes(4, "big") + body


HOSTILE = {
    "nothing": b"",
    "noise": bytes(range(256)),
    "too long": (GREETING_BYTES_MAX + 1).to_bytes(4, "big") + b"x",
    "nested": GREETING_BYTES_MAX.to_bytes(4, "big") + b"[" * GREETING_BYTES_MAX,
    "not JSON": b"\0\0\0\1x",
    "not an object": b"\0\0\0\2[]",
    "no greeting": b"\0\0\0\2{}",
    "wrong types": framed({"checkpoint_id": [1], "fence": "x", "cookie": 2, "format": "y"}),
    "cookie is not hexadecimal": framed({"checkpoint_id": "x", "fence": 1, "cookie": "zz", "format": 1}),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
@on_a_loop
async def test_a_stranger_ends_only_its_own_connection(tmp_path: Path, data: bytes) -> None:
    async with serving(tmp_path) as (address, server):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(data)
        writer.write_eof()
        async with asyncio.timeout(30):
            reply = await reader.read()
        assert b"refused" in reply
        assert (f"at most {GREETING_BYTES_MAX} are allowed".encode() in reply) == (
            int.from_bytes(data[:4], "big") > GREETING_BYTES_MAX
        )
        assert server._drivers == {}
        await Driver.connected(address)


@on_a_loop
async def test_silent_strangers_make_room_and_lose_their_connection_in_time(tmp_path: Path) -> None:
    async with serving(tmp_path, lambda config: replace(config, connections_max=3)) as (address, _):
        served = await Driver.connected(address)
        silent = [await asyncio.open_connection(*address) for _ in range(3)]
        async with asyncio.timeout(5):
            assert await silent[0][0].read() == b"", "the oldest makes room"
        await Driver.connected(address, replace(GREETING, checkpoint_id="another"))
        assert not served.writer.is_closing()
    async with serving(tmp_path, lambda config: replace(config, greeting_timeout_s=0.05)) as (address, _):
        reader, _ = await asyncio.open_connection(*address)
        async with asyncio.timeout(5):
            await reader.read()


NONSENSE = {
    "noise": bytes(range(128, 256)),
    "too long": (FRAME_BYTES_MAX + 1).to_bytes(4, "big"),
    "not opened": written_request(SendDecision("a.0", "txn", True)),
    "unknown": framed({"evil": 1}),
    "unhashable": framed({"decide": {"sink": [], "txn": 1, "commit": {}}}),
    "options": framed({"open": [{"name": 1}], "runs": {"directory": 1, "identity": 2}}),
}


@pytest.mark.parametrize("data", NONSENSE.values(), ids=NONSENSE)
@on_a_loop
async def test_nonsense_of_a_driver_ends_only_its_session(tmp_path: Path, data: bytes) -> None:
    async with serving(tmp_path) as (address, _):
        driver = await Driver.connected(address)
        driver.writer.write(data)
        await driver.until_closed()
        await Driver.connected(address)


@on_a_loop
async def test_connections_are_opened_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as (address, _):
        driver = await Driver.connected(address)
        place = identified(tmp_path)
        driver.order(OpenConnections(place, (SINK,)))
        driver.order(OpenConnections(place, (SINK,)))
        await driver.until_closed()


@on_a_loop
async def test_an_error_in_a_session_ends_only_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> object:
        raise ZeroDivisionError

    async with serving(tmp_path) as (address, _):
        monkeypatch.setattr("procession.commit.sink_link.SinkLink.run", fail)
        with capture_logs() as logs:
            driver = await Driver.connected(address)
            driver.order(OpenConnections(identified(tmp_path), (SINK,)))
            await driver.until_closed()
        (failed,) = [line for line in logs if line["event"] == "emitter.session_failed"]
        assert failed["reason"] == "ZeroDivisionError()"
        await Driver.connected(address)


@pytest.mark.parametrize("directory", ["runs", "no such directory"])
@on_a_loop
async def test_an_emitter_that_does_not_see_the_directory_of_the_driver_says_so(tmp_path: Path, directory: str) -> None:
    place = replace(identified(tmp_path), identity="another", directory=str(tmp_path / directory))
    async with serving(tmp_path) as (address, _):
        driver = await Driver.connected(address)
        driver.order(OpenConnections(place, (SINK,)))
        answer = await driver.answer()
        assert isinstance(answer, LinkFailed)
        assert "cannot read the runs of the driver" in answer.error.sentence
        assert "--host-services" in answer.error.next_step


@on_a_loop
async def test_over_tls_an_emitter_uses_the_files_and_the_secret_of_its_own_machine(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    cert, key = authority.issue("127.0.0.1")
    asked: list[RunPlace] = []

    def links(place: RunPlace) -> LinkMaker:
        asked.append(place)
        return direct_links(RunStore(tmp_path))

    own = ClientTls(authority.ca)
    driven = ClientTls(Path("/of/the/driver"), name="sinks")
    hosts = HostRuns("0a1b", 3, FlightAccess(b"of the driver", driven))
    adapt: Adapt = lambda config: replace(config, tls=ServerTls(cert, key), client_tls=own)  # noqa: E731
    async with serving(tmp_path, adapt) as (address, server):
        server._links = links
        driver = await Driver.connected(address, tls=own)
        driver.order(OpenConnections(RunPlace(hosts=hosts), (replace(SINK, tls=driven),)))
        assert isinstance(await driver.answer(), Notice), "it tries to reach the sink"
        with pytest.raises(ConnectionError):
            await Driver.connected(address)  # without TLS
    assert [place.hosts for place in asked] == [replace(hosts, access=FlightAccess(COOKIE, replace(own, name="sinks")))]
    async with serving(tmp_path) as (address, _):
        driver = await Driver.connected(address)
        driver.order(OpenConnections(identified(tmp_path), (replace(SINK, tls=driven),)))
        answer = await driver.answer()
        assert isinstance(answer, LinkFailed)
        assert "has no authority to trust" in answer.error.sentence


@on_a_loop
async def test_an_emitter_closes_its_connections_to_sinks_when_its_driver_leaves(tmp_path: Path) -> None:
    greeted, is_closed = asyncio.Event(), asyncio.Event()

    async def sink(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(100):
            greeted.set()
        is_closed.set()
        writer.close()

    listening = await asyncio.start_server(sink, "127.0.0.1", 0)
    options = replace(SINK, port=listening.sockets[0].getsockname()[1])
    async with serving(tmp_path) as (address, _):
        driver = await Driver.connected(address)
        driver.order(OpenConnections(identified(tmp_path), (options,)))
        async with asyncio.timeout(30):
            await greeted.wait()
            driver.writer.close()
            await is_closed.wait()
    listening.close()


def test_an_emitter_needs_a_secret(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs the pipeline's control secret"):
        serve_emitter(EmitterConfig(tmp_path, "127.0.0.1:0", b""), print)


def test_no_secret_is_in_a_printed_text() -> None:
    assert COOKIE.decode() not in repr(GREETING)
    (document,) = FrameReader().take(written_greeting(GREETING))
    assert document["cookie"] == COOKIE.hex()
