"""A process: something that can be killed, paused and started again, and does one thing at a time.

Invariant: each event that it handles, each disk call and each network write is a *step*. Steps are counted for each
part, and a fault is injected at a count. So a fault can happen between any two steps, and the schedule determines
exactly when. A handler that is a generator can also be interrupted at each `yield`: other processes continue, and the
rest of this process waits, as after a blocking call. Upstream: `environment`. Downstream: the parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from procession.errors import ProcessionError
from procession.sim.blocking_calls import CallThread, ProcessKilled
from procession.sim.oracle import InvariantViolation

if TYPE_CHECKING:
    from procession.sim.environment import Environment, Machine
    from procession.sim.network import Endpoint

Steps = Generator[Any, None, Any]
"""The steps of a handler. It yields wherever another process may run; a yielded number is the seconds until it
continues."""

INTERRUPTED = 0.2
"""How likely another process gets a turn at a `yield`."""
SUSPENDED = 0.25
"""How likely a blocking call that can be interrupted is suspended when it uses the machine."""
THREAD_S = 0.002
"""Longest time until a thread begins."""
PAUSE_POLL_S = 0.02
"""Interval at which a thread checks whether its process still pauses."""


class SimulatedProcess:
    """One incarnation of a part. `part` names it in fault schedules, over all its incarnations."""

    def __init__(self, site: Environment, part: str, machine: Machine) -> None:
        self.site = site
        self.part = part
        self.machine = machine
        self.number = len(site.everyone)
        """Of all processes of the run."""
        self.is_alive = True
        self.is_paused = False
        self.ends: set[Endpoint] = set()
        self._pace = site.pace(part)
        self._after = site.clock.after
        self._random = site.chance.random
        self._busy: Steps | None = None
        self._thread: CallThread | None = None
        """Of the blocking call that is being made."""
        self.suspended = 0
        """How many blocking calls are interrupted. One that begins may have to wait for them."""
        self._others: list[Steps] = []
        """Threads besides the main one."""
        self._backlog: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        machine.processes.append(self)
        site.everyone.append(self)

    # What parts override

    def start(self) -> None:
        """Start."""

    def stop(self) -> Steps | None:
        """SIGTERM."""

    def failed(self, error: ProcessionError) -> None:
        """An error came out of a handler. Unless a part handles it, it is a bug."""
        raise InvariantViolation("I7", f"{self.part} dies of {type(error).__name__}: {error.sentence}")

    check: Callable[[], None] | None = None
    """Checks the invariants of the process after each of its steps, and raises a violation. None: it has none of its
    own."""

    def refused(self, reason: str) -> None:
        """A sink does not understand this process, and says so."""

    def dismantle(self) -> None:
        """The run is over."""

    def died(self) -> None:
        """The process has died. It may do nothing except notify the other processes of its machine."""

    def accepted(self, end: Endpoint) -> Steps | None:
        """A peer has connected to this process."""

    def received(self, end: Endpoint, data: bytes) -> Steps | None: ...

    def lost(self, end: Endpoint, is_clean: bool) -> Steps | None:
        """The connection is gone; `is_clean` if the peer closed it in order."""

    # Doing

    def step(self) -> None:
        """Count a step, and inject the faults that are due."""
        pace = self._pace
        pace.taken = taken = pace.taken + 1
        if taken == pace.next_fault:
            self.site.inject_due(self, pace.due())
        if not self.is_alive:
            raise ProcessKilled

    def edge(self) -> None:
        """A step that makes something durable, or gives it its name: what was done before it may matter now."""
        pace = self._pace
        pace.edges_taken = taken = pace.edges_taken + 1
        if taken == pace.next_edge:
            self.site.inject_due(self, pace.due_at_edge())
        self.step()

    def later(self, delay_s: float, call: Callable[..., Any], *args: Any) -> None:
        self._after(delay_s, self.post, call, *args)

    def soon(self, call: Callable[..., Any], *args: Any) -> None:
        """After a moment, in which others may come first."""
        self._after(self._random() * 0.002, self.post, call, *args)

    def post(self, call: Callable[..., Any], *args: Any) -> None:
        """Run this call in the process: now, or as soon as the process is idle."""
        if not self.is_alive:
            return
        if self.is_paused or self._busy is not None or self._backlog:
            self._backlog.append((call, args))
        else:
            self._run(call, args)

    def _run(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            self.step()
            steps = call(*args)
            if type(steps) is GeneratorType:
                self._busy = steps
                self._advance()
        except ProcessKilled:
            return
        except ProcessionError as error:
            self._fail(error)
        if self.check is not None:
            self.check()

    def _advance(self) -> None:
        steps, random = self._busy, self._random
        assert steps is not None
        while True:
            try:
                delay_s = next(steps)
            except StopIteration:
                self._busy = None
                if self._backlog:
                    self._after(0.0, self._drain)
                return
            self.step()
            if self.is_paused:
                return
            if delay_s is None and random() < INTERRUPTED:
                delay_s = random() * 0.004
            if delay_s is not None:
                self._after(delay_s, self._resume)
                return

    def _resume(self) -> None:
        if not self.is_alive or self.is_paused or self._busy is None:
            return
        try:
            self._advance()
        except ProcessKilled:
            return
        except ProcessionError as error:
            self._fail(error)
        if self.check is not None:
            self.check()

    def _fail(self, error: ProcessionError) -> None:
        self._busy = None
        if self._backlog:
            self._after(0.0, self._drain)
        self.failed(error)

    def _drain(self) -> None:
        while self._backlog and self.is_alive and not self.is_paused and self._busy is None:
            call, args = self._backlog.popleft()
            self._run(call, args)

    # Blocking calls

    def blocking(self, call: Callable[..., Any], *args: Any) -> Steps:
        """Make a call of shipped code. Other processes may run whenever it uses the machine."""
        threads = self.site.threads
        thread = threads.take()
        thread.begin(partial(call, *args))
        try:
            self._thread = thread
            while not thread.resume():
                self._thread = None
                self.suspended += 1
                try:
                    yield thread.delay_s
                finally:
                    self.suspended -= 1
                self._thread = thread
        finally:
            self._thread = None
            thread.abandon()
            threads.give_back(thread)
        if thread.error is not None:
            raise thread.error
        return thread.result

    def start_thread(self, steps: Steps) -> None:
        """Take these steps in a thread of their own: the handlers of the process run between them."""
        self._others.append(steps)
        self._after(self._random() * THREAD_S, self._run_thread, steps)

    def _run_thread(self, steps: Steps) -> None:
        if not self.is_alive:
            return
        if self.is_paused:
            self._after(PAUSE_POLL_S, self._run_thread, steps)
            return
        try:
            self.step()
            delay_s = next(steps)
        except StopIteration:
            self._others.remove(steps)
        except ProcessKilled:
            return
        else:
            self._after(delay_s, self._run_thread, steps)

    def give_way(self) -> None:
        """A call to the machine begins. If it is made by a blocking call, others may go first."""
        if self._thread is not None and (self.is_paused or self._random() < SUSPENDED):
            self._thread.suspend(self._random() * 0.004)

    def wait(self, delay_s: float) -> bool:
        """Let others go on for a time. False if this is no blocking call, which cannot wait."""
        if self._thread is None:
            return False
        self._thread.suspend(delay_s)
        return True

    # Dying and stopping

    def pause(self, seconds: float) -> None:
        if not self.is_paused:
            self.is_paused = True
            self._after(seconds, self._wake)

    def _wake(self) -> None:
        if self.is_alive and self.is_paused:
            self.is_paused = False
            if self._busy is not None:
                self._resume()
            self._drain()

    def abandon(self) -> None:
        """End the handler and the threads that are suspended, if there are any."""
        busy, self._busy = self._busy, None
        others, self._others = self._others, []
        for steps in (busy, *others):
            if isinstance(steps, GeneratorType) and not steps.gi_running:
                steps.close()

    def kill(self, *, is_power_cut: bool = False) -> None:
        """Gone at once. What it wrote to sockets may still arrive, what it wrote to files is in the page cache."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.abandon()
        self._backlog.clear()
        self.machine.processes.remove(self)
        for end in sorted(self.ends, key=lambda end: end.number):
            end.drop(is_silent=is_power_cut)
        self.died()
        self.site.gone(self)
