"""The simulated event loop behaves as asyncio's does, in virtual time, and runs nothing for a dead process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from procession.address import Address
from procession.sim.environment import Machine
from procession.sim.oracle import InvariantViolation
from procession.sim.runner import plan_of
from procession.sim.simulated_files import SimulatedFileSystem
from procession.sim.simulated_loop import AsyncioProcess
from procession.sim.simulated_transport import SimulatedListener
from procession.sim.world import World

Work = Callable[[], Awaitable[Any]]


class Echo(AsyncioProcess):
    """Sends back what it receives, and closes at "end"."""

    def accepted(self, end: Any) -> None:
        """Accept any connection, because the server has no protocol."""

    def received(self, end: Any, data: bytes) -> Any:
        end.write(data)
        if data.endswith(b"end"):
            end.close()


@pytest.fixture
def process() -> AsyncioProcess:
    world = World(plan_of(0), random.Random(0))
    world.site.gone = lambda _: None
    world.site.network.listeners["echo"] = Echo(world.site, "echo", Machine("there"))
    return AsyncioProcess(world.site, "p", Machine("here"))


def simulated(process: AsyncioProcess, work: Work) -> Any:
    task = process.loop.create_task(work())
    while not task.done() and process.is_alive and process.site.clock.advance():
        pass
    return task.result() if task.done() else None


async def ready_order() -> list[str]:
    loop, told = asyncio.get_running_loop(), list[str]()
    loop.call_later(0.03, told.append, "later")
    loop.call_later(0.02, told.append, "sooner")
    loop.call_later(0.01, told.append, "never").cancel()
    loop.call_soon(told.append, "soon")
    loop.call_soon(loop.call_soon, told.append, "after that")
    loop.call_soon(told.append, "second")
    await asyncio.sleep(0.05)
    return told


async def waiting() -> list[str]:
    told, event, queue = [], asyncio.Event(), asyncio.Queue[int](1)

    async def waits(name: str) -> None:
        try:
            await event.wait()
            told.append(name)
        finally:
            told.append(f"{name} ends")

    tasks = [asyncio.ensure_future(waits(name)) for name in "abc"]
    await asyncio.sleep(0)
    tasks[1].cancel()
    event.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await queue.get()
    return told


@pytest.mark.parametrize("work", [ready_order, waiting])
def test_the_simulated_loop_behaves_as_that_of_asyncio(process: AsyncioProcess, work: Work) -> None:
    assert simulated(process, work) == asyncio.run(work())  # type: ignore[arg-type]


def test_time_is_that_of_the_simulation(process: AsyncioProcess) -> None:
    async def sleep() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert 3600 <= simulated(process, sleep) < 3601


def test_streams_of_asyncio_run_on_the_simulated_network(process: AsyncioProcess) -> None:
    async def talk() -> list[bytes]:
        reader, writer = await asyncio.open_connection("echo", 0)
        writer.write(b"hello\n")
        await writer.drain()
        heard = [await reader.readline()]
        writer.write(b"end")
        heard += [await reader.read(), await reader.read()]
        writer.close()
        await writer.wait_closed()
        return heard

    assert simulated(process, talk) == [b"hello\n", b"end", b""]


def test_a_connection_to_a_closed_port_is_refused(process: AsyncioProcess) -> None:
    async def connect() -> None:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("nobody", 0)

    simulated(process, connect)


def test_a_connection_that_breaks_raises_while_it_is_read(process: AsyncioProcess) -> None:
    async def read() -> None:
        reader, _ = await asyncio.open_connection("echo", 0)
        next(iter(process.ends)).cut()
        with pytest.raises(ConnectionResetError):
            await reader.read(1)

    simulated(process, read)


def test_a_killed_process_has_no_further_effect(process: AsyncioProcess) -> None:
    files, told = SimulatedFileSystem(process, process.machine.disk), []

    async def dies() -> None:
        _, writer = await asyncio.open_connection("echo", 0)
        process.later(0.1, process.kill)
        try:
            await asyncio.sleep(1)
            told.append("lives")
        finally:
            writer.write(b"end")
            writer.close()
            files.make_directory(process.machine.name)  # type: ignore[arg-type]
            told.append("cleans up")

    simulated(process, dies)
    while process.site.clock.advance():
        pass
    process.dismantle()
    assert told == []
    assert not process.machine.disk.root.names


def test_a_violation_in_a_task_that_is_not_awaited_ends_the_run(process: AsyncioProcess) -> None:
    async def starts() -> None:
        async def breaks() -> None:
            raise InvariantViolation("I7", "it does not hold")

        task = asyncio.ensure_future(breaks())
        await asyncio.sleep(1)
        task.cancel()

    with pytest.raises(InvariantViolation, match="it does not hold"):
        simulated(process, starts)


def test_a_call_of_the_executor_returns_its_result_or_raises_its_error(process: AsyncioProcess) -> None:
    async def calls() -> tuple[int, str]:
        loop = asyncio.get_running_loop()
        results = [await loop.run_in_executor(None, divmod, 7, number) for number in range(1, 30)]
        with pytest.raises(OSError, match="No such file"):
            await asyncio.to_thread(SimulatedFileSystem(process, process.machine.disk).read, Path("nothing"))
        return len(results), str(results[2])

    assert simulated(process, calls) == (29, "(2, 1)")


def test_the_loop_continues_while_a_call_of_the_executor_is_suspended(process: AsyncioProcess) -> None:
    files, told = SimulatedFileSystem(process, process.machine.disk), []
    mutex = files.mutex()

    def blocking(name: str) -> None:
        with mutex:
            told.append(f"{name} begins")
            for number in range(20):
                files.exists(Path(str(number)))  # here it can be interrupted
            told.append(f"{name} ends")

    async def both() -> None:
        ticks = asyncio.ensure_future(tick())
        for _ in range(10):
            await asyncio.gather(asyncio.to_thread(blocking, "a"), asyncio.to_thread(blocking, "b"))
        ticks.cancel()

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.0005)
            told.append("tick")

    simulated(process, both)
    lines = [line for line in told if line != "tick"]
    begun = ("a begins", "b begins")
    assert all(line in begun and after == line.replace("begins", "ends") for line, after in pairs(lines))
    assert any(line in begun and after == "tick" for line, after in pairwise(told))


def pairs(lines: list[str]) -> list[tuple[str, str]]:
    return list(zip(lines[::2], lines[1::2], strict=True))


def test_a_server_talks_to_its_clients_until_it_is_closed(process: AsyncioProcess) -> None:
    server = AsyncioProcess(process.site, "server", Machine("other"))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
        writer.close()

    async def serve() -> asyncio.Server:
        listener: Any = SimulatedListener(Address("server", 5))
        return await asyncio.start_server(answer, sock=listener)

    async def talk() -> bytes:
        reader, writer = await asyncio.open_connection("server", 5)
        writer.write(b"one\ntwo\n")
        writer.write_eof()
        return await reader.read()

    async def find_nobody() -> None:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("server", 5)

    running = simulated(server, serve)
    assert simulated(process, talk) == b"ONE\nTWO\n"
    running.close()
    simulated(process, find_nobody)


def test_a_set_of_tasks_is_in_the_order_in_which_they_were_made(process: AsyncioProcess) -> None:
    """A TaskGroup cancels its tasks through a set. An order by memory addresses could not be replayed."""
    tasks = [process.spawn(asyncio.sleep(0)) for _ in range(40)]
    assert list({*tasks[::-1]}) == tasks
    process.loop.close_tasks()
