"""The sink's server with outputs that fail, are slow, block, or are written with coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from procession.errors import StorageError
from procession.sdk.doubles import MemoryOutput
from procession.sdk.output import Output
from procession.sdk.transaction_log import Transaction
from procession.wire import two_phase_commit
from procession.wire.messages import (
    DATA_STREAM,
    Message,
    Phase1,
    Phase2,
    Reply,
)
from tests.sdk.loops import on_a_loop
from tests.sdk.sink_server import Sink, refusal


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path)


class FullOutput(MemoryOutput):
    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        raise StorageError("Cannot write it: No space left on device.", next_step="Free space.")


@on_a_loop
async def test_an_output_that_fails_stops_the_sink_with_its_error_and_tells_the_worker(sink: Sink) -> None:
    sink.outputs["out"] = FullOutput()
    async with sink.serving() as serving, await sink.worker() as worker:
        await worker.hello()
        worker.data(0, b"abc")
        assert "the sink failed" in await refusal(worker)
        with pytest.raises(StorageError, match="No space left"):
            await serving


class SlowOutput(MemoryOutput):
    """An output whose `prepare` waits for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self.preparing = asyncio.Event()
        self.go_on = asyncio.Event()

    def prepare(self, transaction: Transaction) -> None:
        self.loop.call_soon_threadsafe(self.preparing.set)
        asyncio.run_coroutine_threadsafe(self.go_on.wait(), self.loop).result(10)
        super().prepare(transaction)


@on_a_loop
async def test_an_instance_that_waits_for_its_disk_delays_only_its_successor(sink: Sink) -> None:
    slow = sink.outputs["slow"] = SlowOutput()
    async with (
        sink.serving(),
        await sink.worker() as worker,
        await sink.worker() as successor,
        await sink.worker() as other,
    ):
        await worker.hello(instance="slow")
        worker.data(0, b"abc")
        worker.send(two_phase_commit.wrap(Phase1("t1", ((DATA_STREAM, 0, 3),))))
        await slow.preparing.wait()
        await other.hello(instance="other")
        other.data(0, b"x")
        assert await other.phase1("t1", 0, 1)
        greeting = asyncio.create_task(successor.hello(instance="slow"))
        await other.phase2("t1", commit=True)
        assert not greeting.done()
        worker.send(two_phase_commit.wrap(Phase2("t1", commit=True)))
        slow.go_on.set()
        assert await greeting == (0, ("t1",)), (
            "the vote in progress counts; later messages of the superseded session do not"
        )
        await successor.phase2("t1", commit=False)
        assert slow.visible == b""


class AsyncOutput(Output):
    """An output whose methods are coroutines; `commit` waits for the test."""

    def __init__(self) -> None:
        self.memory = MemoryOutput()
        self.committing = asyncio.Event()
        self.go_on = asyncio.Event()
        self.was_cancelled = self.is_closed = False

    @property
    def visible(self) -> bytes:
        return self.memory.visible

    async def recover(self, committed_end: int, prepared: Transaction | None) -> None:
        await asyncio.sleep(0)
        self.memory.recover(committed_end, prepared)

    async def append(self, position: int, payloads: Sequence[bytes]) -> None:
        await asyncio.sleep(0)
        self.memory.append(position, payloads)

    async def prepare(self, transaction: Transaction) -> None:
        await asyncio.sleep(0)
        self.memory.prepare(transaction)

    async def commit(self, transaction: Transaction) -> None:
        self.committing.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        self.memory.commit(transaction)

    async def abort(self, transaction: Transaction) -> None:
        await asyncio.sleep(0)
        self.memory.abort(transaction)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.is_closed = True


@on_a_loop
async def test_an_output_may_be_written_with_coroutines(sink: Sink) -> None:
    output = sink.outputs["out"] = AsyncOutput()
    output.go_on.set()
    async with sink.serving(), await sink.worker() as worker:
        assert await worker.hello() == (0, ())
        worker.data(0, b"ab", b"c")
        assert await worker.phase1("t1", 0, 3)
        await worker.phase2("t1", commit=True)
        worker.data(3, b"d")
        assert await worker.phase1("t2", 3, 4)
        await worker.phase2("t2", commit=False)
        worker.data(3, b"ef")
        assert await worker.phase1("t3", 3, 5)
        await worker.phase2("t3", commit=True)
        assert output.visible == b"abcef"
    assert output.is_closed


@on_a_loop
async def test_a_coroutine_that_waits_is_cancelled_when_the_sink_stops_and_the_transaction_stays_open(
    sink: Sink,
) -> None:
    output = sink.outputs["out"] = AsyncOutput()
    async with sink.serving(), await sink.worker() as worker:
        await worker.hello()
        worker.data(0, b"abc")
        assert await worker.phase1("t1", 0, 3)
        worker.send(two_phase_commit.wrap(Phase2("t1", commit=True)))
        await output.committing.wait()
    assert output.was_cancelled
    assert output.is_closed
    output.go_on.set()
    async with sink.serving(), await sink.worker() as worker:
        assert await worker.hello() == (0, ("t1",))
        await worker.phase2("t1", commit=True)
    assert output.visible == b"abc"


class BlockingOutput(MemoryOutput):
    """An output that blocks in `append`, where the worker waits for no answer."""

    def __init__(self) -> None:
        super().__init__()
        self.appending = threading.Event()
        self.go_on = threading.Event()

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        self.appending.set()
        assert self.go_on.wait(10)
        super().append(position, payloads)


@on_a_loop
async def test_an_output_that_blocks_in_append_delays_no_other_instance(sink: Sink) -> None:
    blocking = sink.outputs["slow"] = BlockingOutput()
    async with sink.serving(), await sink.worker() as worker, await sink.worker() as other:
        await worker.hello(instance="slow")
        worker.data(0, b"abc")
        await asyncio.to_thread(blocking.appending.wait, 10)
        await other.hello(instance="other")
        other.data(0, b"x")
        assert await other.phase1("t1", 0, 1)
        blocking.go_on.set()
        assert await worker.phase1("t1", 0, 3)


@on_a_loop
async def test_votes_before_a_frame_that_ends_the_session_are_answered(sink: Sink) -> None:
    async with sink.serving(), await sink.worker() as worker:
        await worker.hello()
        worker.send(
            Message(DATA_STREAM, 0, 0, b"", b"abc"),
            two_phase_commit.wrap(Phase1("t1", ((DATA_STREAM, 0, 3),))),
            Message(DATA_STREAM, 3, 0, b"", b"too early"),
        )
        assert await worker.answer() == Reply("t1", commit=True)
        assert "data while prepared" in await refusal(worker)
