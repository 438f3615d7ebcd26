"""The sink's server over real TCP: handshakes, rounds, superseded sessions, and peers that are not workers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from structlog.testing import capture_logs

from procession.errors import StorageError
from procession.sdk.doubles import MemoryOutput, Worker
from procession.sdk.transaction_log import Transaction
from procession.wire import two_phase_commit, v3
from procession.wire.messages import (
    DATA_STREAM,
    Eos,
    Frame,
    Hello,
    ListUncommitted,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Phase1,
    Phase2,
    Reply,
    WorkersLeft,
)
from procession.wire.v3 import SINK_VERSION
from tests.sdk.loops import on_a_loop
from tests.sdk.sink_server import Sink, refusal


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path)


@on_a_loop
async def test_rounds_commit_and_abort_and_the_next_greeting_has_the_end_of_the_output(sink: Sink) -> None:
    async with sink.serving(), await sink.worker() as worker:
        assert await worker.hello() == (0, ())
        worker.data(0, b"ab", b"c")
        assert await worker.phase1("t1", 0, 3)
        await worker.phase2("t1", commit=True)
        worker.data(3, b"d")
        assert await worker.phase1("t2", 3, 4)
        await worker.phase2("t2", commit=False)
        worker.data(3, b"efg")
        assert await worker.phase1("t3", 3, 6)
        async with await sink.worker() as following:
            assert await following.hello() == (3, ("t3",))
            await following.phase2("t3", commit=True)
        async with await sink.worker() as following:
            assert await following.hello() == (6, ())
        assert sink.outputs["out"].visible == b"abcefg"


@on_a_loop
async def test_the_handshake_may_arrive_at_once_byte_by_byte_or_frame_by_frame(sink: Sink) -> None:
    async with sink.serving():
        frames: list[Frame] = [
            Hello(SINK_VERSION, b"", "p", "out"),
            Notify(DATA_STREAM, "out", 0),
            two_phase_commit.wrap(ListUncommitted(1)),
        ]
        async with await sink.worker() as worker:
            for word in frames:
                for byte in worker.connection.send(word):
                    worker.send_bytes(bytes([byte]))
                    await asyncio.sleep(0)
            assert isinstance(await worker.receive(), Ok)
            assert await worker.receive() == NotifyAck(True, DATA_STREAM, 0)
            await worker.answer()
        async with await sink.worker() as worker:
            worker.send(frames[0])
            assert isinstance(await worker.receive(), Ok)
            worker.send(frames[2])
            await worker.answer()
            worker.send(frames[1])
            assert await worker.receive() == NotifyAck(True, DATA_STREAM, 0)


@on_a_loop
async def test_ok_comes_first_and_grants_what_existing_workers_need(sink: Sink) -> None:
    async with sink.serving(), await sink.worker() as worker:
        worker.send(Hello("0.0.1", b"", "p", "out"))
        ok = await worker.receive()
        assert isinstance(ok, Ok)
        assert ok.credits >= 2


@on_a_loop
async def test_data_and_phase_1_may_come_in_one_segment(sink: Sink) -> None:
    async with sink.serving(), await sink.worker() as worker:
        await worker.hello()
        worker.send(
            Message(DATA_STREAM, 0, 0, b"", b"abc"),
            Message(DATA_STREAM, 3, 0, b"", b"de"),
            two_phase_commit.wrap(Phase1("t1", ((DATA_STREAM, 0, 5),))),
        )
        assert await worker.answer() == Reply("t1", commit=True)
        worker.send(
            two_phase_commit.wrap(Phase2("t1", commit=True)),
            Message(DATA_STREAM, 5, 0, b"", b"f"),
            two_phase_commit.wrap(Phase1("t2", ((DATA_STREAM, 5, 6),))),
        )
        assert await worker.answer() == Reply("t1", commit=True)
        assert await worker.answer() == Reply("t2", commit=True)
        assert bytes(sink.outputs["out"].data) == b"abcdef"


@on_a_loop
async def test_only_the_data_stream_can_be_opened(sink: Sink) -> None:
    async with sink.serving(), await sink.worker() as worker:
        worker.send(Hello(SINK_VERSION, b"", "p", "out"), Notify(2, "other", 0))
        assert isinstance(await worker.receive(), Ok)
        assert await worker.receive() == NotifyAck(False, 2, 0)


@on_a_loop
async def test_the_end_of_the_stream_and_workers_that_left_change_nothing(sink: Sink) -> None:
    async with sink.serving(), await sink.worker() as worker:
        await worker.hello()
        worker.data(0, b"abc")
        worker.send(two_phase_commit.wrap(WorkersLeft(1, ("w1",))), Eos(DATA_STREAM))
        assert await worker.phase1("t1", 0, 3)


@on_a_loop
async def test_a_gap_is_voted_abort_and_the_data_can_be_fed_again(sink: Sink) -> None:
    async with sink.serving(), await sink.worker() as worker:
        await worker.hello()
        worker.data(0, b"ab")
        worker.data(3, b"d")
        assert not await worker.phase1("t1", 0, 4)
        await worker.phase2("t1", commit=False)
        worker.data(0, b"abcd")
        assert await worker.phase1("t2", 0, 4)


def go_back(worker: Worker) -> None:
    worker.data(0, b"abc")
    worker.data(1, b"x")


FORBIDDEN: list[tuple[Callable[[Worker], None], str]] = [
    (go_back, "message id 1 is below the position 3"),
    (lambda worker: worker.send(two_phase_commit.wrap(Phase2("t9", commit=True))), "not open here"),
    (
        lambda worker: worker.send(two_phase_commit.wrap(Phase1("a", ())), two_phase_commit.wrap(Phase1("b", ()))),
        "phase 1 while prepared",
    ),
    (lambda worker: worker.send(two_phase_commit.wrap(Reply("a", commit=True))), "sent a message of a participant"),
    (lambda worker: worker.send(Message(0, 0, 0, b"", b"\x07")), "unknown two-phase-commit tag 7"),
    (lambda worker: worker.send(Message(0, 0, 0, b"", b"")), "truncated"),
    (lambda worker: worker.send_bytes(bytes(5)), ""),
    (lambda worker: worker.send_bytes(b"GET / HTTP/1.1\r\n\r\n"), ""),
    (lambda worker: worker.send_bytes(b"\xff" * 100), ""),
    (lambda worker: worker.send_bytes(b"\x00\x00\x00\x01\x09"), "unknown frame tag 9"),
]


@on_a_loop
async def test_a_forbidden_message_of_a_worker_ends_its_session_with_a_reason(sink: Sink) -> None:
    async with sink.serving(), await sink.worker() as witness:
        await witness.hello(instance="witness")
        for number, (say, reason) in enumerate(FORBIDDEN):
            async with await sink.worker() as worker:
                await worker.hello(instance=f"bad-{number}")
                say(worker)
                assert reason in await refusal(worker)
        witness.data(0, b"abc")
        assert await witness.phase1("t1", 0, 3), "no other session is affected"


@on_a_loop
async def test_the_sink_keeps_serving_whatever_follows_a_valid_greeting_in_one_segment(sink: Sink) -> None:
    hello = v3.encode(Hello(SINK_VERSION, b"", "p", "other"))
    arguments = [
        v3.encode(Notify(DATA_STREAM, "out", 0)),
        v3.encode(two_phase_commit.wrap(ListUncommitted(1))),
        v3.encode(two_phase_commit.wrap(Phase2("t", True))),
        v3.encode(Message(DATA_STREAM, 7, 0, b"", b"x")),
        v3.encode(Ok(1)),
        b"\0\0\0\1\x63",
        hello,
    ]
    async with sink.serving() as server:
        for sequence in [(first, other) for first in arguments for other in arguments]:
            reader, writer = await asyncio.open_connection(*sink.address)
            writer.write(hello + b"".join(sequence))
            writer.write_eof()
            await reader.read()  # to its end: the session is over
            writer.close()
        async with await sink.worker() as worker:
            assert await worker.hello() == (0, ())
        assert not server.done()


@on_a_loop
async def test_a_worker_that_is_sending_still_gets_the_reason_of_a_refusal(sink: Sink) -> None:
    async with sink.serving(), await sink.worker() as worker:
        await worker.hello()
        worker.data(0, b"abc")
        worker.data(1, *[b"x" * 1000] * 5000)
        assert "below the position" in await refusal(worker)


@on_a_loop
async def test_data_between_phase_1_and_phase_2_ends_the_session_and_keeps_the_vote(sink: Sink) -> None:
    async with sink.serving():
        async with await sink.worker() as worker:
            await worker.hello()
            worker.data(0, b"abc")
            assert await worker.phase1("t1", 0, 3)
            worker.data(3, b"d")
            assert "data while prepared" in await refusal(worker)
        async with await sink.worker() as worker:
            assert await worker.hello() == (0, ("t1",))


@on_a_loop
async def test_a_wrong_greeting_is_refused_with_a_reason(sink: Sink) -> None:
    async with sink.serving(cookie=b"secret"):
        for hello, reason in (
            (Hello("v9", b"secret", "p", "out"), "version"),
            (Hello(SINK_VERSION, b"", "p", "out"), "cookie"),
            (Hello(SINK_VERSION, b"guess", "p", "out"), "cookie"),
            (Hello(SINK_VERSION, b"secret", "p", ""), "instance"),
            (Hello(SINK_VERSION, b"secret", "p", "../out"), "instance"),
            (Hello(SINK_VERSION, b"secret", "p", ".out"), "instance"),
            (Hello(SINK_VERSION, b"secret", "p", "a" * 201), "instance"),
        ):
            with capture_logs() as logged:
                async with await sink.worker() as worker:
                    worker.send(hello)
                    assert reason in await refusal(worker)
            (event,) = logged
            assert event["peer"].startswith("127.0.0.1:")
            assert reason in event["reason"]
        async with await sink.worker() as worker:
            assert await worker.hello(cookie=b"secret") == (0, ())
    assert set(sink.outputs) == {"out"}
    async with sink.serving(), await sink.worker() as worker:
        worker.send(Hello(SINK_VERSION, b"secret", "p", "out"))
        assert "cookie" in await refusal(worker), "a cookie on one side only is refused too"


@on_a_loop
async def test_a_new_hello_of_the_same_instance_ends_the_older_session(sink: Sink) -> None:
    async with sink.serving(), await sink.worker() as older, await sink.worker() as newer, await sink.worker() as other:
        await other.hello(instance="other")
        await older.hello()
        older.data(0, b"abc")
        assert await older.phase1("t1", 0, 3)
        assert await newer.hello() == (0, ("t1",))
        assert await older.receive() is None
        await newer.phase2("t1", commit=True)
        other.data(0, b"x")
        assert await other.phase1("t1", 0, 1), "another instance goes on"


@on_a_loop
async def test_no_phase_2_is_taken_from_a_superseded_session(sink: Sink) -> None:
    """The older worker's decision is in flight while the newer one greets. Whichever arrives first, the decision is
    performed once."""
    async with sink.serving():
        for turn in range(20):
            async with await sink.worker() as older, await sink.worker() as newer:
                start, listed = await older.hello()
                assert listed == ()
                older.data(start, b"%03d" % turn)
                assert await older.phase1(f"t{turn}", start, start + 3)
                older.send(two_phase_commit.wrap(Phase2(f"t{turn}", commit=False)))
                committed, listed = await newer.hello()
                assert committed == start
                if listed:
                    await newer.phase2(f"t{turn}", commit=True)
                    assert sink.outputs["out"].visible.endswith(b"%03d" % turn)
                else:
                    assert len(sink.outputs["out"].data) == start


@on_a_loop
async def test_a_session_that_never_greets_is_closed_in_time(sink: Sink) -> None:
    async with sink.serving(), await sink.worker() as worker:
        await worker.hello()
        assert sink.server is not None
        sink.server.handshake_timeout_s = (
            0.05  # set only now, because on a busy machine a worker's HELLO may take longer
        )
        async with await sink.worker() as silent:
            assert "no HELLO in time" in await refusal(silent)
        worker.data(0, b"abc")
        assert await worker.phase1("t1", 0, 3), "a session that has greeted has no limit"


@on_a_loop
async def test_a_greeting_that_arrived_in_time_is_accepted_although_it_was_not_read_yet(sink: Sink) -> None:
    """A flooded sink closes the oldest connections that have not greeted. An honest worker may be among them."""
    async with sink.serving(), await sink.worker() as worker:
        assert sink.server is not None
        while not any(session.is_silent for session in sink.server._sessions):  # noqa: ASYNC110  the server has no such event
            await asyncio.sleep(0)
        (session,) = sink.server._sessions
        greeting = asyncio.create_task(worker.hello())
        await asyncio.sleep(0)  # the greeting is in the socket, and the sink has not run since
        session.give_up()
        assert await greeting == (0, ())


@on_a_loop
async def test_no_more_sessions_than_the_limit_are_taken(sink: Sink) -> None:
    async with sink.serving(sessions_max=1), await sink.worker() as worker:
        await worker.hello()
        async with await sink.worker() as second:
            assert "too many sessions" in await refusal(second)
        worker.data(0, b"abc")
        assert await worker.phase1("t1", 0, 3)


class RefusingOutput(MemoryOutput):
    """An output that fails when it is recovered, once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.is_called, self.may_fail = threading.Event(), threading.Event()

    def recover(self, committed_end: int, prepared: Transaction | None) -> None:
        self.is_called.set()
        assert self.may_fail.wait(30)
        raise StorageError("the database is gone")


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_failed_output_stops_the_sink_also_when_its_worker_has_left(
    sink: Sink, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    sink.outputs["out"] = output = RefusingOutput()

    async def serve() -> None:
        async with sink.serving() as serving:
            worker = await sink.worker()
            worker.send(Hello(SINK_VERSION, worker.cookie, "test", "out"))
            assert await asyncio.to_thread(output.is_called.wait, 30)
            worker.abort()
            (session,) = sink.server._sessions
            while not session.is_closed:  # noqa: ASYNC110  (a transport has no event)
                await asyncio.sleep(0)
            output.may_fail.set()
            with pytest.raises(StorageError, match="the database is gone"):
                await asyncio.wait_for(asyncio.shield(serving), 30)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve())
