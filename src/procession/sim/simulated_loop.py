"""Implements an asyncio event loop in virtual time, on which the shipped asyncio code of a process runs unchanged.

Invariant: a run depends on its seed only. Callbacks run in the order in which they were scheduled, as in asyncio; a
timer is an event of the virtual clock, a connection one of the simulated network. Each callback is a step at which the
process can die, and its disk calls can be interrupted (`blocking_calls`); so can the calls of its executor, which run
concurrently with callbacks. A dead process runs no further code, except `finally` blocks, whose calls have no effect.
A violation in the middle of a task ends the run, although asyncio only stores exceptions of tasks.
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
from procession.sim.simulated_transport import SimulatedListener, SimulatedTransport

if TYPE_CHECKING:
    from procession.sim.environment import Environment, Machine

    EventLoop: Any
    Task = asyncio.Task[Any]
else:
    EventLoop = asyncio.AbstractEventLoop
    Task = asyncio.Task

TURN_S = 0.004
"""Maximum time between two turns of a loop with work. Other processes and arriving data come first."""

THREADED = 0.3
"""Probability that a turn, or a call of the executor, can be interrupted. It is low because switching threads is
slow."""


class NumberedTask(Task):
    """A task that is hashed by its number: a set of tasks, as in a TaskGroup, is then in the same order in every run,
    wherever in memory the tasks are."""

    def __init__(
        self, loop: SimulatedLoop, work: Any, *, name: str | None, context: contextvars.Context | None
    ) -> None:
        loop.tasks_made += 1
        self._number = loop.tasks_made
        super().__init__(work, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(EventLoop):  # type: ignore[misc]
    """The event loop of one process."""

    def __init__(self, process: AsyncioProcess, *, is_interruptible: bool) -> None:
        """Create a loop. Unless `is_interruptible`, no other process runs in the middle of a callback, which is
        faster."""
        self._process = process
        self._is_interruptible = is_interruptible
        self._clock = process.site.clock
        self._random = process.site.chance.random
        self._ready: deque[Any] = deque()
        """Handles of asyncio that are ready to run."""
        self._is_awaited = False
        """Whether the next turn is scheduled."""
        self._is_turning = False
        self._is_over = False
        self._tasks: list[tuple[asyncio.Task[Any], Any]] = []
        """The tasks, each with its coroutine."""
        self.tasks_made = 0
        self._error: BaseException | None = None
        self.step = process.step

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
        """Do nothing: a cancelled timer stays in the clock until it is due."""

    def _due(self, handle: asyncio.TimerHandle) -> None:
        if self._process.is_alive and not handle.cancelled():
            self._ready.append(handle)
            if not self._is_turning:
                self._await_turn(0.0)

    def _await_turn(self, delay_s: float) -> None:
        if not self._is_awaited and self._process.is_alive:
            self._is_awaited = True
            self._process.later(delay_s, self.turn)

    def turn(self) -> Steps | None:
        """Run the callbacks that are ready."""
        self._is_awaited = False
        if not self._ready or self._is_turning:
            return None
        if self._process.suspended or (self._is_interruptible and self._random() < THREADED):
            return self._process.blocking(self._run_ready)
        self._run_ready()
        return None

    def _run_ready(self) -> None:
        self._is_turning = True
        outer = asyncio._get_running_loop()  # a fault of one process may make another process run
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
            asyncio._set_running_loop(outer)

    # Tasks

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        task = NumberedTask(self, self._guarded(coro), name=name, context=context)
        self._tasks.append((task, coro))
        return task

    async def _guarded(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine. Errors of Procession and of the operating system fail the task; any other error ends the
        run."""
        try:
            return await work
        except (ProcessionError, OSError):
            raise
        except Exception as error:
            self._error = error
            raise

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Do nothing: `_guarded` already handles errors of tasks that are not awaited."""

    def close_tasks(self) -> None:
        """End all waiting tasks at the end of the run."""
        self._ready.clear()
        self._is_over = True
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
        return self._is_over or not self._process.is_alive

    def run_in_executor(self, _: None, call: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        done = self.create_future()
        self._process.start_thread(self._execute(done, call, args))
        return done

    def _execute(self, done: asyncio.Future[Any], call: Callable[..., Any], args: tuple[Any, ...]) -> Steps:
        try:
            if self._process.suspended or self._random() < THREADED:
                result = yield from self._process.blocking(call, *args)
            else:
                result = call(*args)
        except Exception as error:
            self.call_soon(_fulfil, done, None, error)
        else:
            self.call_soon(_fulfil, done, result, None)

    # Connections

    async def create_server(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: None = None,
        port: None = None,
        *,
        sock: SimulatedListener,
        **_: Any,
    ) -> SimulatedListener:
        sock.open(self._process, protocol_factory)
        return sock

    async def create_connection(
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any
    ) -> tuple[SimulatedTransport, asyncio.Protocol]:
        """Connect to a host, whose name is that of the listening part. A host has only port 0."""
        connected: asyncio.Future[Endpoint] = self.create_future()
        address = f"{host}:{port}" if port else host

        def answered(end: Endpoint | None) -> Steps | None:
            if connected.done():
                if end is not None:
                    end.close()
                return None
            if end is None:
                connected.set_exception(ConnectionRefusedError(f"no process listens at {address}"))
            else:
                connected.set_result(end)
            return self.turn()

        self._process.site.network.connect(self._process, address, answered)
        protocol = protocol_factory()
        transport = SimulatedTransport(self, await connected, lambda: protocol)
        return transport, protocol


def _fulfil(done: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if done.cancelled():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


class AsyncioProcess(SimulatedProcess):
    """A process whose work is asyncio code."""

    def __init__(self, site: Environment, part: str, machine: Machine, *, is_interruptible: bool = True) -> None:
        super().__init__(site, part, machine)
        self.ports: dict[str, Callable[[], asyncio.BaseProtocol]] = {}
        """Factories of protocols, by the address at which this process listens."""
        self.loop = SimulatedLoop(self, is_interruptible=is_interruptible)
        self.stopped = asyncio.Event()
        """Set at SIGTERM, if the process waits for it."""

    def begin(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Start the process with this coroutine function."""
        self.post(self._run_main, main)

    def _run_main(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> Steps | None:
        self.spawn(main())
        return self.loop.turn()

    def accepted(self, end: Endpoint) -> Steps | None:
        if (make_protocol := self.ports.get(end.address)) is None:
            end.close()
            return None
        SimulatedTransport(self.loop, end, make_protocol)
        return self.loop.turn()

    def received(self, end: Endpoint, data: bytes) -> Steps | None:
        if isinstance(end.tag, SimulatedTransport):
            end.tag.received(data)
        return self.loop.turn()

    def lost(self, end: Endpoint, is_clean: bool) -> Steps | None:
        if isinstance(end.tag, SimulatedTransport):
            end.tag.lost(is_clean=is_clean)
        return self.loop.turn()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.loop.create_task(work)

    def dismantle(self) -> None:
        self.loop.close_tasks()
