"""An asyncio event loop in virtual time: the shipped asyncio code of a simulated process runs on it unchanged.

Invariant: a run depends on its seed only. Callbacks run in the order in which they were scheduled, as in asyncio; a
timer is an event of the virtual clock, a connection one of the simulated network. Each callback is a step at which the
process can die, and its disk calls can be interrupted (`blocking_calls`). Of a dead process nothing runs any more: what
its `finally` blocks still call has no effect. A violation found in the middle of a task ends the run, although asyncio
keeps exceptions of tasks to itself.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from procession.errors import ProcessionError
from procession.sim.blocking_calls import ProcessKilled
from procession.sim.network import Endpoint
from procession.sim.simulated_process import INTERRUPTED, SimulatedProcess, Steps

if TYPE_CHECKING:
    from procession.sim.environment import Environment, Machine

    EventLoop: Any
else:
    EventLoop = asyncio.AbstractEventLoop

TURN_S = 0.004
"""Longest time between two turns of a loop that has work: other processes, and what arrives meanwhile, come first."""


class SimulatedLoop(EventLoop):  # type: ignore[misc]
    """The event loop of one process."""

    def __init__(self, process: AsyncioProcess) -> None:
        self._process = process
        self._clock = process.site.clock
        self._random = process.site.chance.random
        self._ready: deque[Any] = deque()
        """Handles of asyncio."""
        self._is_awaited = False
        """Whether the next turn is scheduled."""
        self._is_turning = False
        self._tasks: list[tuple[asyncio.Task[Any], Any]] = []
        """Each with its coroutine."""
        self._error: BaseException | None = None

    # Callbacks and timers

    def time(self) -> float:
        return self._clock.now

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._is_turning:
            self._await_turn(0.0)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._clock.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._clock.after(max(0.0, when - self._clock.now), self._due, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the clock until it is due."""

    def _due(self, handle: asyncio.TimerHandle) -> None:
        if self._process.is_alive and not handle.cancelled():
            self._ready.append(handle)
            if not self._is_turning:
                self._await_turn(0.0)

    def _await_turn(self, delay_s: float) -> None:
        if not self._is_awaited and self._process.is_alive:
            self._is_awaited = True
            self._process.later(delay_s, self.turn)

    def turn(self) -> Steps:
        """Run what is ready."""
        self._is_awaited = False
        if self._ready and not self._is_turning:
            yield from self._process.blocking(self._run_ready)

    def _run_ready(self) -> None:
        self._is_turning = True
        asyncio._set_running_loop(self)
        process, ready = self._process, self._ready
        try:
            while ready:
                for _ in range(len(ready)):
                    handle = ready.popleft()
                    if not handle._cancelled:
                        handle._context.run(handle._callback, *handle._args)
                        if self._error is not None:
                            raise self._error
                        if not process.is_alive:
                            raise ProcessKilled
                if ready and self._random() < INTERRUPTED:
                    self._is_turning = False
                    self._await_turn(TURN_S * self._random())
                    return
        finally:
            self._is_turning = False
            asyncio._set_running_loop(None)

    # Tasks

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(self._guarded(coro), loop=self, name=name, context=context)
        self._tasks.append((task, coro))
        return task

    async def _guarded(self, work: Coroutine[Any, Any, Any]) -> Any:
        """A task fails with an error of ours, or of the operating system. Anything else ends the run."""
        try:
            return await work
        except (ProcessionError, OSError):
            raise
        except Exception as error:
            self._error = error
            raise

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Of what nobody waits for, `_guarded` has noticed what matters."""

    def close_tasks(self) -> None:
        """The run is over: ends all tasks where they wait."""
        self._ready.clear()
        for task, coro in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            for work in (task.get_coro(), coro):
                with suppress(BaseException):
                    work.close()
        self._tasks.clear()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return not self._process.is_alive

    # Connections

    async def create_connection(
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any
    ) -> tuple[SimulatedTransport, asyncio.Protocol]:
        """The name of a host is that of the part that listens there."""
        connected: asyncio.Future[Endpoint] = self.create_future()

        def answered(end: Endpoint | None) -> Steps | None:
            if connected.done():
                if end is not None:
                    end.close()
                return None
            if end is None:
                connected.set_exception(ConnectionRefusedError(f"nobody listens at {host}"))
            else:
                connected.set_result(end)
            return self.turn()

        self._process.site.network.connect(self._process, host, answered)
        protocol = protocol_factory()
        transport = SimulatedTransport(self, await connected, protocol)
        return transport, protocol


class SimulatedTransport(asyncio.Transport):
    """One end of a simulated connection. Nothing that is written waits here: the network delays it."""

    def __init__(self, loop: SimulatedLoop, end: Endpoint, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self._end = end
        self._protocol = protocol
        self._is_closing = False
        end.tag = self
        loop.call_soon(protocol.connection_made, self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing:
            self._end.write(bytes(data))

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._end.close()
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._end.drop()
            self._loop.call_soon(self._protocol.connection_lost, None)

    # What the network calls

    def received(self, data: bytes) -> None:
        if not self._is_closing:
            self._loop.call_soon(self._protocol.data_received, data)

    def lost(self, *, is_clean: bool) -> None:
        """The other side has closed, or the connection is broken."""
        if self._is_closing:
            return
        if is_clean:
            self._loop.call_soon(self._protocol.eof_received)
        else:
            self._is_closing = True
            self._loop.call_soon(self._protocol.connection_lost, ConnectionResetError("Connection reset by peer"))


class AsyncioProcess(SimulatedProcess):
    """A process whose work is asyncio code."""

    def __init__(self, site: Environment, part: str, machine: Machine) -> None:
        super().__init__(site, part, machine)
        self.loop = SimulatedLoop(self)

    def received(self, end: Endpoint, data: bytes) -> Steps:
        if isinstance(end.tag, SimulatedTransport):
            end.tag.received(data)
        return self.loop.turn()

    def lost(self, end: Endpoint, is_clean: bool) -> Steps:
        if isinstance(end.tag, SimulatedTransport):
            end.tag.lost(is_clean=is_clean)
        return self.loop.turn()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.loop.create_task(work)

    def dismantle(self) -> None:
        self.loop.close_tasks()
