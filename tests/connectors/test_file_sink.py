"""The file sink as a program, killed at each of its fault points: it keeps what it promised and drops the rest."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from procession.errors import StorageError
from procession.sdk.doubles import Worker
from procession.sdk.transaction_log import committed_ranges
from procession.wire import two_phase_commit
from procession.wire.messages import DATA_STREAM, Phase1, Phase2
from tests.connectors.programs import SinkProgram
from tests.sdk.loops import on_a_loop


@pytest.fixture
def sink(tmp_path: Path) -> SinkProgram:
    return SinkProgram(tmp_path)


async def dies_of(process: asyncio.subprocess.Process, worker: Worker, decision: Phase2) -> None:
    """Send a decision during which the sink is killed."""
    worker.send(two_phase_commit.wrap(decision))
    assert await worker.receive() is None
    await process.wait()


async def check_restarted(sink: SinkProgram) -> None:
    """After a restart `abc` is committed and no transaction is open."""
    async with sink.running(), await sink.worker() as worker:
        assert await worker.hello() == (3, ())
        assert sink.data() == b"abc"


@on_a_loop
async def test_killed_before_the_vote_the_sink_lists_nothing_and_drops_the_data(sink: SinkProgram) -> None:
    async with sink.running(fault="sink:before-vote") as process, await sink.worker() as worker:
        await worker.hello()
        worker.data(0, b"abc")
        worker.send(two_phase_commit.wrap(Phase1("t1", ((DATA_STREAM, 0, 3),))))
        assert await worker.receive() is None
        assert await process.wait() == -signal.SIGKILL
    assert sink.data() == b"abc"
    async with sink.running(), await sink.worker() as worker:
        assert await worker.hello() == (0, ())
        assert sink.data() == b""
        worker.data(0, b"abcd")
        assert await worker.phase1("t2", 0, 4)


@pytest.mark.parametrize("commit", [True, False])
@on_a_loop
async def test_killed_after_the_vote_the_sink_lists_the_transaction_and_accepts_the_decision(
    sink: SinkProgram, commit: bool
) -> None:
    async with sink.running(fault="sink:after-vote-before-reply") as process, await sink.worker() as worker:
        await worker.hello()
        worker.data(0, b"abc")
        worker.send(two_phase_commit.wrap(Phase1("t1", ((DATA_STREAM, 0, 3),))))
        assert await worker.receive() is None
        await process.wait()
    with (sink.directory / "out.data").open("ab") as file:
        file.write(b"torn")
    async with sink.running(), await sink.worker() as worker:
        assert await worker.hello() == (0, ("t1",))
        assert sink.data() == b"abc", "bytes after the prepared range are cut off at HELLO"
        await worker.phase2("t1", commit=commit)
        assert sink.data() == (b"abc" if commit else b"")
    assert committed_ranges(sink.directory / "out.txnlog") == ([(0, 3)] if commit else [])


@on_a_loop
async def test_killed_before_the_commit_the_sink_still_lists_the_transaction(sink: SinkProgram) -> None:
    async with sink.running(fault="sink:before-commit") as process, await sink.worker() as worker:
        await worker.hello()
        worker.data(0, b"abc")
        assert await worker.phase1("t1", 0, 3)
        worker.send(two_phase_commit.wrap(Phase2("t1", commit=True)))
        assert await worker.receive() is None
        await process.wait()
    async with sink.running(), await sink.worker() as worker:
        assert await worker.hello() == (0, ("t1",))
        await worker.phase2("t1", commit=True)
        worker.data(3, b"d")
        assert await worker.phase1("t2", 3, 4)
    assert committed_ranges(sink.directory / "out.txnlog") == [(0, 3)]


@on_a_loop
async def test_killed_after_the_commit_the_sink_lists_nothing_and_reports_the_new_end(sink: SinkProgram) -> None:
    async with sink.running(fault="sink:after-commit") as process, await sink.worker() as worker:
        await worker.hello()
        worker.data(0, b"abc")
        assert await worker.phase1("t1", 0, 3)
        await dies_of(process, worker, Phase2("t1", commit=True))
    await check_restarted(sink)


@on_a_loop
async def test_killed_after_the_abort_the_sink_lists_nothing_and_drops_the_data(sink: SinkProgram) -> None:
    async with sink.running(fault="sink:after-commit@2") as process, await sink.worker() as worker:
        await worker.hello()
        worker.data(0, b"abc")
        assert await worker.phase1("t1", 0, 3)
        await worker.phase2("t1", commit=True)
        worker.data(3, b"d")
        assert await worker.phase1("t2", 3, 4)
        await dies_of(process, worker, Phase2("t2", commit=False))
    await check_restarted(sink)


@on_a_loop
async def test_a_restarted_sink_listens_at_the_same_port_and_stops_cleanly_on_sigterm(sink: SinkProgram) -> None:
    async with sink.running() as process, await sink.worker() as worker:
        port = sink.port
        await worker.hello()
        process.send_signal(signal.SIGTERM)
        assert await worker.receive() is None
        assert await process.wait() == 0
        assert process.stderr
        assert await process.stderr.read() == b""
    async with sink.running():
        assert sink.port == port


@on_a_loop
async def test_each_instance_has_its_own_files(sink: SinkProgram) -> None:
    async with sink.running(), await sink.worker() as one, await sink.worker() as two:
        await one.hello(instance="demo-w0:out")
        await two.hello(instance="demo-w1:out")
        one.data(0, b"one")
        two.data(0, b"two")
        assert await one.phase1("t", 0, 3)
        assert await two.phase1("t", 0, 3)
    assert (sink.data("demo-w0:out"), sink.data("demo-w1:out")) == (b"one", b"two")


@on_a_loop
async def test_a_sink_that_lost_committed_output_reports_it_and_stops(sink: SinkProgram) -> None:
    async with sink.running(), await sink.worker() as worker:
        await worker.hello()
        worker.data(0, b"abc")
        assert await worker.phase1("t1", 0, 3)
        await worker.phase2("t1", commit=True)
    (sink.directory / "out.data").write_bytes(b"a")
    async with sink.running() as process, await sink.worker() as worker:
        with pytest.raises(AssertionError, match="the sink failed"):
            await worker.hello()
        assert process.stderr
        assert b"out.data has 1 bytes, but its log records 3" in await process.stderr.read()
        assert await process.wait() == 1
    (sink.directory / "out.txnlog").write_bytes(b"damaged\n")
    async with sink.running() as process, await sink.worker() as worker:
        with pytest.raises(AssertionError, match="the sink failed"):
            await worker.hello()
        assert process.stderr
        assert b"out.txnlog is damaged at byte 0" in await process.stderr.read()


@on_a_loop
async def test_a_second_sink_on_a_directory_is_refused(sink: SinkProgram) -> None:
    from procession.connectors.file_sink import opener
    from procession.sdk.sink_directory import SinkDirectory

    async with sink.running():
        with pytest.raises(StorageError, match="Another process holds"):
            SinkDirectory(sink.directory, opener(sink.directory))


@on_a_loop
async def test_many_short_messages_are_processed_in_bulk(sink: SinkProgram) -> None:
    lines = [b"record %06d\n" % number for number in range(100_000)]
    async with sink.running(), await sink.worker() as worker:
        await worker.hello()
        for start in range(0, len(lines), 1000):
            worker.data(start * 14, *lines[start : start + 1000])
        assert await worker.phase1("t1", 0, 14 * len(lines))
        await worker.phase2("t1", commit=True)
    assert sink.data() == b"".join(lines)
