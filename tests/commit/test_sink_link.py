"""The link to a sink over real TCP: it waits and reports that it waits, settles open transactions before it sends, and
gives up on refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import uvloop

from procession.address import Address, listening_socket
from procession.commit.coordinator import REFUSALS_MAX
from procession.commit.read_ahead import in_turn
from procession.commit.round_events import EmitEpoch, Event, Phase2Confirmed, SinkConnected, SinkLost, VoteReceived
from procession.commit.sink_link import SinkLink, SinkOptions
from procession.connectors.file_sink import opener
from procession.errors import ConfigError, RemoteProtocolError, StorageError
from procession.sdk.sink_directory import SinkDirectory
from procession.sdk.sink_server import SinkServer
from procession.tls import ClientTls, ServerTls
from procession.wire import two_phase_commit
from procession.wire.connection import Connection
from procession.wire.lifecycle import ConnectionSide, Role
from procession.wire.messages import (
    TWOPC_STREAM,
    Error,
    Frame,
    ListUncommitted,
    Messages,
    NotifyAck,
    Ok,
    Phase1,
    Reply,
    ReplyUncommitted,
    Restart,
    WorkersLeft,
)
from tests.certificates import Authority

TXN = "p-w-out-id-abc.1.1:c_id=0"
PATIENCE_S = 30.0


class Talk:
    """A link with its events and its messages for the user. `until` waits for a condition on them."""

    def __init__(
        self,
        port: int,
        cookie: bytes = b"",
        answer_timeout_s: float = 10.0,
        tls: ClientTls | None = None,
        knows_workers_left: bool = False,
        is_in_blocks: bool = False,
    ) -> None:
        self.events: list[Event] = []
        self.said: list[str] = []
        self._news = asyncio.Event()
        options = SinkOptions(
            "out",
            "127.0.0.1",
            port,
            "p",
            "p-out-0",
            cookie,
            tls,
            answer_timeout_s=answer_timeout_s,
            backoff_max_s=0.05,
            knows_workers_left=knows_workers_left,
            is_in_blocks=is_in_blocks,
        )
        self.link = SinkLink(options, self._take, self._hear)
        self.task = asyncio.ensure_future(self.link.run())

    @property
    def greetings(self) -> int:
        return sum(isinstance(event, SinkConnected) for event in self.events)

    def _take(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    def _hear(self, sentence: str) -> None:
        self.said.append(sentence)
        self._news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._news.clear()
                await self._news.wait()

    async def end(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


def free_port() -> int:
    """Return a port outside the range that the system assigns, so that no other process takes it before the sink
    starts."""
    with closing(listening_socket(Address("127.0.0.1", 0))) as free:
        return int(free.getsockname()[1])


class Sink:
    """A file sink in this process, at a given port."""

    def __init__(self, directory: Path, port: int, cookie: bytes = b"", tls: ServerTls | None = None) -> None:
        self._home = SinkDirectory(directory, opener(directory))
        listener = listening_socket(Address("127.0.0.1", port))
        self._task = asyncio.ensure_future(
            SinkServer(self._home.open_participant, cookie=cookie, tls=tls).serve(listener)
        )

    async def end(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._home.close()


def test_the_link_waits_for_a_sink_that_is_not_up_yet_and_reports_it_from_time_to_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = free_port()
        talk = Talk(port)
        await talk.until(lambda: len(talk.said) == 2)
        first = f"sink 'out' at 127.0.0.1:{port} cannot be reached: Connection refused; waiting for it"
        assert talk.said[0] == first
        assert talk.link._failures > REFUSALS_MAX, "a sink that is away has refused nothing, however long it takes"
        assert talk.events == []
        sink = Sink(tmp_path, port)
        await talk.until(lambda: bool(talk.events))
        assert talk.events == [SinkConnected("out", (), 0)]
        await talk.end()
        await sink.end()

    asyncio.run(scenario())


def test_repeated_refusals_of_a_sink_are_reported_to_the_user(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = free_port()
        sink = Sink(tmp_path, port, cookie=b"right")
        talk = Talk(port, cookie=b"wrong")
        with pytest.raises(ConfigError, match="the cookie does not match") as caught:
            await asyncio.wait_for(talk.task, PATIENCE_S)
        assert "same cookie" in caught.value.next_step
        assert "right" not in caught.value.explain()
        assert len(talk.said) == 1, "reported once, not at each refusal"
        assert talk.events == []
        assert REFUSALS_MAX > 1, "a single refusal may be a sink that is stopping"
        await sink.end()

    asyncio.run(scenario())


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_round_runs_over_tls_with_certificates_of_both_sides(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def scenario() -> None:
        port, authority = free_port(), Authority(tmp_path / "authority")
        sink = Sink(tmp_path / "sink", port, tls=authority.server(client_ca=authority.ca))
        talk = Talk(port, tls=authority.client())
        await talk.until(lambda: bool(talk.events))
        await talk.link.emit(EmitEpoch("out", TXN, 0, 0, 300_000), in_turn([pa.array([bytes(100_000)] * 3)]))
        await talk.until(lambda: len(talk.events) == 2)
        assert talk.events[1] == VoteReceived("out", TXN, True)
        talk.link.phase2(TXN, commit=True)
        await talk.until(lambda: len(talk.events) == 3)
        await talk.end()
        await sink.end()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())


def test_an_untrusted_certificate_of_a_sink_is_reported_to_the_user(tmp_path: Path) -> None:
    async def scenario() -> None:
        port, authority, other = free_port(), Authority(tmp_path / "authority"), Authority(tmp_path / "other")
        sink = Sink(tmp_path / "sink", port, tls=authority.server())
        talk = Talk(port, tls=ClientTls(other.ca))
        with pytest.raises(ConfigError, match="its certificate is not trusted") as caught:
            await asyncio.wait_for(talk.task, PATIENCE_S)
        assert "certificates" in caught.value.next_step
        await sink.end()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


def test_a_worker_that_a_sink_does_not_trust_is_refused_and_reports_that_it_retries(tmp_path: Path) -> None:
    # With TLS 1.3 a client completes its handshake before the server checks its certificate, so it may only see a
    # lost connection. The sink's log has the reason.
    async def scenario() -> None:
        port, authority, other = free_port(), Authority(tmp_path / "authority"), Authority(tmp_path / "other")
        sink = Sink(tmp_path / "sink", port, tls=authority.server(client_ca=authority.ca))
        talk = Talk(port, tls=ClientTls(authority.ca, *other.issue("client.example")))
        await talk.until(lambda: bool(talk.said))
        assert talk.events == []
        await talk.end()
        await sink.end()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


def test_a_round_runs_to_its_confirmation_and_a_restarted_sink_lists_open_transactions(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        port = free_port()
        sink = Sink(tmp_path, port)
        talk = Talk(port)
        await talk.until(lambda: bool(talk.events))
        await talk.link.emit(
            EmitEpoch("out", TXN, 0, 0, 6), in_turn([pa.array([b"ab", b"", b"cd"]), pa.array([b"ef"])])
        )
        await talk.until(lambda: len(talk.events) == 2)
        assert talk.events[1] == VoteReceived("out", TXN, True)
        await sink.end()
        sink = Sink(tmp_path, port)
        await talk.until(lambda: len(talk.events) == 4)
        assert talk.events[2:] == [SinkLost("out"), SinkConnected("out", (TXN,), 0)]
        talk.link.phase2(TXN, True)
        await talk.until(lambda: len(talk.events) == 5)
        assert talk.events[4] == Phase2Confirmed("out", TXN)
        assert (tmp_path / "p-out-0.data").read_bytes() == b"abcdef"
        talk.link.reconnect(0.0)
        await talk.until(lambda: len(talk.events) == 7)
        assert talk.events[6] == SinkConnected("out", (), 6)
        await talk.end()
        await sink.end()

    asyncio.run(scenario())


def test_a_sink_that_does_not_answer_in_time_is_reported_as_away_or_hung(tmp_path: Path) -> None:
    """The peer reads everything and answers nothing: during the greeting it counts as away, after the request for a
    vote as hung."""

    async def scenario() -> None:
        silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(PATIENCE_S), "127.0.0.1", 0)
        talk = Talk(silent.sockets[0].getsockname()[1], answer_timeout_s=0.1)
        await talk.until(lambda: bool(talk.said))
        assert f"refused its greeting (1 of {REFUSALS_MAX}): no answer; trying again" in talk.said[0]
        assert talk.events == []
        await talk.end()
        silent.close()

        port = free_port()
        sink = Sink(tmp_path, port)
        talk = Talk(port)
        await talk.until(lambda: bool(talk.events))
        lost, give_up, options = asyncio.Event(), talk.link._give_up, talk.link.options

        def lose(data: bytes) -> list[Any]:
            lost.set()
            return []

        def give_up_after_the_vote(writer: asyncio.StreamWriter) -> None:
            waiting.append(asyncio.ensure_future(lost.wait()))
            waiting[-1].add_done_callback(lambda _: give_up(writer))

        waiting: list[asyncio.Future[bool]] = []
        assert talk.link._connection is not None
        talk.link._connection.receive = lose  # type: ignore[method-assign, assignment]
        talk.link._give_up = give_up_after_the_vote  # type: ignore[method-assign]
        talk.link.options = replace(options, answer_timeout_s=0.1)  # for the vote; its greeting takes as long as it may
        await talk.link.emit(EmitEpoch("out", TXN, 0, 0, 1), in_turn([pa.array([b"x"])]))
        talk.link.options = options
        await talk.until(lambda: SinkLost("out", hung=True) in talk.events)
        await talk.until(lambda: SinkConnected("out", (TXN,), 0) in talk.events)
        await talk.end()
        await sink.end()

    asyncio.run(scenario())


@pytest.mark.parametrize("last_word", [Restart(None), Error("no more")])
def test_a_sink_that_ends_the_session_during_the_data_is_reconnected_without_a_refusal(
    last_word: Frame,
) -> None:
    """Our end of the connection closes at once. The rest of the data to send must not count as an error of ours."""

    async def scenario() -> None:
        sessions = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sessions
            sessions += 1
            connection = Connection(ConnectionSide.ACCEPTOR, Role.SINK)
            while not any(isinstance(event, Messages) for event in connection.receive(await reader.read(65_536))):
                pass
            listed = two_phase_commit.wrap(ReplyUncommitted(1, ()))
            for frame in (Ok(2), NotifyAck(True, 1, 0), listed, *([last_word] if sessions == 1 else [])):
                writer.write(connection.send(frame))
            await reader.read(65_536)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        talk = Talk(server.sockets[0].getsockname()[1], answer_timeout_s=5.0)
        await talk.until(lambda: bool(talk.events))
        await talk.link.emit(EmitEpoch("out", TXN, 0, 0, 2), in_turn([pa.array([b"x"]), pa.array([b"y"])]))
        await talk.until(lambda: sum(isinstance(event, SinkConnected) for event in talk.events) == 2)
        assert not talk.task.done()
        await talk.end()
        server.close()

    asyncio.run(scenario())


class Closing:
    """A sink that ends its sessions at the greeting, at PHASE1 or right after the greeting."""

    def __init__(self, closes_at: str) -> None:
        self.closes_at = closes_at
        self.sessions = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.sessions += 1
        connection = Connection(ConnectionSide.ACCEPTOR, Role.SINK)
        while data := await reader.read(65_536):
            for event in connection.receive(data):
                for payload in event.bodies() if isinstance(event, Messages) else ():
                    if not self._answer(payload, connection, writer):
                        writer.close()
                        return

    def _answer(self, payload: bytes, connection: Connection, writer: asyncio.StreamWriter) -> bool:
        try:
            message = two_phase_commit.decode(payload)
        except RemoteProtocolError:
            return True  # a record
        if isinstance(message, ListUncommitted) and self.closes_at != "greeting":
            answers = (Ok(2), NotifyAck(True, 1, 0), two_phase_commit.wrap(ReplyUncommitted(1, ())))
            writer.write(b"".join(map(connection.send, answers)))
            return self.closes_at != "idle"
        return False


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_missing_run_is_an_error_unless_the_connection_was_lost_meanwhile(tmp_path: Path, is_lost: bool) -> None:
    async def scenario() -> None:
        port = free_port()
        sink = Sink(tmp_path, port)
        talk = Talk(port)
        await talk.until(lambda: bool(talk.events))

        async def messages() -> AsyncIterator[pa.Array]:
            yield pa.array([b"x"])
            if is_lost:
                talk.link.reconnect(0.0)
                await talk.until(lambda: talk.greetings == 2)
            raise StorageError("a run of epoch 0 is lost")

        with nullcontext() if is_lost else pytest.raises(StorageError, match="epoch 0 is lost"):
            await talk.link.emit(EmitEpoch("out", TXN, 0, 0, 2), messages())
        await talk.end()
        await sink.end()

    asyncio.run(scenario())


def test_a_sink_that_closes_at_every_greeting_is_reported_with_the_likely_causes() -> None:
    async def scenario() -> None:
        sink = Closing("greeting")
        server = await asyncio.start_server(sink.serve, "127.0.0.1", 0)
        talk = Talk(server.sockets[0].getsockname()[1])
        with pytest.raises(ConfigError, match=f"refused its greeting {REFUSALS_MAX} times in a row") as caught:
            await asyncio.wait_for(talk.task, PATIENCE_S)
        for likely in ("cookie", "output of another pipeline", "proxy", "sink_refusals_max"):
            assert likely in caught.value.next_step
        assert sink.sessions == REFUSALS_MAX
        server.close()

    asyncio.run(scenario())


def test_a_sink_that_closes_before_every_vote_is_reported_with_the_likely_causes() -> None:
    async def scenario() -> None:
        sink = Closing("phase1")
        server = await asyncio.start_server(sink.serve, "127.0.0.1", 0)
        talk = Talk(server.sockets[0].getsockname()[1])
        for number in range(1, REFUSALS_MAX + 1):
            await talk.until(lambda n=number: talk.greetings == n)  # type: ignore[misc]
            await talk.link.emit(
                EmitEpoch("out", f"p-w-out-id-abc.e0.f1:c_id={number}", 0, 0, 1), in_turn([pa.array([b"x"])])
            )
        with pytest.raises(ConfigError, match=f"{REFUSALS_MAX} times in a row before its vote") as caught:
            await asyncio.wait_for(talk.task, PATIENCE_S)
        assert f":c_id={REFUSALS_MAX}:" in caught.value.sentence
        for likely in ("rule", "output of another pipeline", "full disk", "sink_refusals_max"):
            assert likely in caught.value.next_step
        server.close()

    asyncio.run(scenario())


def test_a_sink_that_closes_an_idle_connection_has_refused_nothing() -> None:
    async def scenario() -> None:
        server = await asyncio.start_server(Closing("idle").serve, "127.0.0.1", 0)
        talk = Talk(server.sockets[0].getsockname()[1])
        await talk.until(lambda: talk.greetings == 2 * REFUSALS_MAX)
        assert not talk.task.done()
        await talk.end()
        server.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("knows", [True, False])
def test_a_sink_that_supports_it_is_notified_of_gateways_that_left_at_once_and_at_each_hello(knows: bool) -> None:
    async def scenario() -> None:
        heard: list[WorkersLeft] = []
        writers: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = Connection(ConnectionSide.ACCEPTOR, Role.SINK)
            writers.append(writer)
            while data := await reader.read(65_536):
                received = [event for event in connection.receive(data) if isinstance(event, Messages)]
                for stream_id, some in (one for event in received for one in event.by_stream()):
                    for payload in some.payloads.to_pylist() if stream_id == TWOPC_STREAM else ():
                        message = two_phase_commit.decode(payload)
                        if isinstance(message, WorkersLeft):
                            heard.append(message)
                        elif isinstance(message, ListUncommitted):
                            answers = (Ok(2), NotifyAck(True, 1, 0), two_phase_commit.wrap(ReplyUncommitted(1, ())))
                            writer.write(b"".join(map(connection.send, answers)))
                        else:
                            assert isinstance(message, Phase1)
                            writer.write(connection.send(two_phase_commit.wrap(Reply(message.txn_id, True))))

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        talk = Talk(server.sockets[0].getsockname()[1], knows_workers_left=knows)
        await talk.until(lambda: bool(talk.events))
        talk.link.workers_left(("gateway-1",))
        talk.link.workers_left(("gateway-1",))
        talk.link.workers_left(())  # it is back: no gateway has left, so nothing is sent
        talk.link.workers_left(("gateway-1", "gateway-2"))
        writers[0].close()
        await talk.until(lambda: sum(isinstance(event, SinkConnected) for event in talk.events) == 2)
        await talk.link.emit(EmitEpoch("out", TXN, 0, 0, 1), in_turn([pa.array([b"x"])]))
        await talk.until(lambda: VoteReceived("out", TXN, True) in talk.events)
        both = ("gateway-1", "gateway-2")
        first = [WorkersLeft(1, ("gateway-1",)), WorkersLeft(2, both)]  # what was read before we closed
        assert heard == ([*first[: len(heard) - 1], WorkersLeft(3, both)] if knows else [])
        await talk.end()
        server.close()

    asyncio.run(scenario())


def test_runs_that_have_less_than_their_manifests_say_get_no_vote(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = free_port()
        sink = Sink(tmp_path, port)
        talk = Talk(port)
        await talk.until(lambda: bool(talk.events))
        with pytest.raises(StorageError, match="manifests say"):
            await talk.link.emit(EmitEpoch("out", TXN, 0, 0, 5), in_turn([pa.array([b"x"])]))
        await talk.end()
        await sink.end()

    asyncio.run(scenario())


def test_a_vote_on_blocks_has_the_number_of_bytes_that_were_sent(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = free_port()
        sink = Sink(tmp_path / "sink", port)
        talk = Talk(port, is_in_blocks=True)
        await talk.until(lambda: bool(talk.events))
        await talk.link.emit(EmitEpoch("out", TXN, 0, 0, None), in_turn([pa.array([b"ab"]), pa.array([b"cde"])]))
        await talk.until(lambda: len(talk.events) == 2)
        assert talk.events[1] == VoteReceived("out", TXN, True, length=5)
        await talk.end()
        await sink.end()

    asyncio.run(scenario())
