"""Blocking calls of shipped code run on their own stacks, one at a time, and end when their process dies."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from procession.runtime.files import OpenMode
from procession.sim.blocking_calls import CallThread, CallThreads, ProcessKilled
from procession.sim.environment import Machine
from procession.sim.runner import plan_of
from procession.sim.simulated_files import SimulatedFileSystem
from procession.sim.simulated_process import SimulatedProcess, Steps
from procession.sim.world import World


def test_a_call_continues_where_it_was_suspended() -> None:
    thread, calls = CallThread(), list[str]()

    def call() -> str:
        calls.append("begun")
        thread.suspend(1.5)
        calls.append("resumed")
        return "done"

    thread.begin(call)
    assert not thread.resume()
    assert (calls, thread.delay_s) == (["begun"], 1.5)
    assert thread.resume()
    assert (calls, thread.result, thread.error) == (["begun", "resumed"], "done", None)
    thread.end()


def test_an_error_of_a_call_is_kept_and_the_thread_serves_the_next_call() -> None:
    threads = CallThreads()
    thread = threads.take()
    thread.begin(lambda: 1 // 0)
    assert thread.resume()
    assert isinstance(thread.error, ZeroDivisionError)
    threads.give_back(thread)
    assert threads.take() is thread
    thread.begin(lambda: 7)
    assert thread.resume()
    assert (thread.result, thread.error) == (7, None)
    threads.give_back(thread)
    threads.end()


def test_a_call_that_is_abandoned_ends_where_it_was_suspended() -> None:
    thread, calls = CallThread(), list[str]()

    def call() -> None:
        try:
            thread.suspend(0.0)
            calls.append("not reached")
        finally:
            calls.append("finally")

    thread.begin(call)
    thread.resume()
    thread.abandon()
    assert calls == ["finally"]
    assert isinstance(thread.error, ProcessKilled)
    thread.end()


class Writer(SimulatedProcess):
    """Writes a file in many calls to the disk."""

    def __init__(self, world: World, machine: Machine) -> None:
        super().__init__(world.site, "writer", machine)
        self.files = SimulatedFileSystem(self, machine.disk)
        self.result: object = None

    def work(self) -> Steps:
        self.result = yield from self.blocking(self._write)

    def _write(self) -> int:
        with self.files.open(Path("file"), OpenMode.NEW) as file:
            for number in range(50):
                file.write(number, b"x")
        return 50


@pytest.fixture
def world() -> World:
    world = World(plan_of(0), random.Random(0))
    world.site.gone = lambda process: None
    return world


def test_others_run_while_a_blocking_call_uses_the_disk(world: World) -> None:
    machine = Machine("m")
    writer = Writer(world, machine)
    writer.post(writer.work)
    lengths = set()
    while world.site.clock.advance():
        file = machine.disk.file("file")
        lengths.add(0 if file is None else len(file.data))
    assert writer.result == 50
    assert len(lengths) > 5
    world.dismantle()


def test_a_blocking_call_of_a_process_that_is_killed_writes_no_more(world: World) -> None:
    machine = Machine("m")
    writer = Writer(world, machine)
    writer.post(writer.work)
    world.site.clock.advance()
    file = machine.disk.file("file")
    assert file is not None
    writer.kill()
    length = len(file.data)
    while world.site.clock.advance():
        pass
    assert (len(file.data), writer.result) == (length, None)
    assert length < 50
    world.dismantle()


def test_a_process_waits_for_a_lock_that_another_holds(world: World) -> None:
    machine = Machine("m")
    holder, waiter = Writer(world, machine), Writer(world, machine)
    holder.files.make_directory(Path("d"))
    lock = holder.files.lock(Path("d"))
    calls = []

    def wait() -> Steps:
        yield from waiter.blocking(lambda: waiter.files.lock(Path("d"), waits=True))
        calls.append("locked")

    waiter.post(wait)
    world.site.clock.advance()
    assert not calls
    lock.close()
    while world.site.clock.advance():
        pass
    assert calls == ["locked"]
    world.dismantle()
