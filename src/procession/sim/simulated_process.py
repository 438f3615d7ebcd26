"""Simulates a process, which can be killed, paused and restarted, and runs one handler at a time.

Invariant: each handled event, each disk call and each network write is a *step*. Steps are counted for each part, and
a fault is injected at a count. So a fault can happen between any two steps, and the schedule determines exactly when.
A handler that is a generator can be interrupted at each `yield`: other processes run, and the other handlers of this
process wait, as after a blocking call. Upstream: `environment`. Downstream: the parts.
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
"""The steps of a handler. It yields where another process may run; a yielded number is the delay in seconds."""

INTERRUPTED = 0.2
"""Probability that another process gets a turn at a `yield`."""
SUSPENDED = 0.25
"""Probability that an interruptible blocking call is suspended when it uses the machine."""
THREAD_S = 0.002
"""Maximum time until a thread begins."""
PAUSE_POLL_S = 0.02
"""Interval at which a thread checks whether its process is still paused."""


class SimulatedProcess:
    """One process of a part. `part` is its name in fault schedules, across restarts."""

    def __init__(self, site: Environment, part: str, machine: Machine) -> None:
        self.site = site
        self.part = part
        self.machine = machine
        self.number = len(site.everyone)
        """Number of this process among all processes of the run."""
        self.is_alive = True
        self.is_paused = False
        self.ends: set[Endpoint] = set()
        self._pace = site.pace(part)
        self._after = site.clock.after
        self._random = site.chance.random
        self._busy: Steps | None = None
        self._thread: CallThread | None = None
        """The thread of the current blocking call."""
        self.suspended = 0
        """Number of suspended blocking calls. A new call may have to wait for them."""
        self._others: list[Steps] = []
        """The threads besides the main thread."""
        self._backlog: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        machine.processes.append(self)
        site.everyone.append(self)

    # Methods that parts override

    def start(self) -> None:
        """Start the process."""

    def stop(self) -> Steps | None:
        """Handle SIGTERM."""

    def failed(self, error: ProcessionError) -> None:
        """Handle an error of a handler. Unless a part overrides this, the error is a bug."""
        raise InvariantViolation("I7", f"{self.part} dies of {type(error).__name__}: {error.sentence}")

    check: Callable[[], None] | None = None
    """Checks the invariants of the process after each of its steps, and raises a violation. None: the process has no
    invariants of its own."""

    def refused(self, reason: str) -> None:
        """Handle a sink's error that it does not understand this process."""

    def dismantle(self) -> None:
        """Free the memory at the end of the run."""

    def died(self) -> None:
        """Handle the death of the process. Only other processes of its machine may be notified."""

    def accepted(self, end: Endpoint) -> Steps | None:
        """Handle a new connection from a peer."""

    def received(self, end: Endpoint, data: bytes) -> Steps | None: ...

    def lost(self, end: Endpoint, is_clean: bool) -> Steps | None:
        """Handle the end of a connection; `is_clean` if the peer closed it in order."""

    # Actions

    def step(self) -> None:
        """Count a step, and inject the faults that are due."""
        pace = self._pace
        pace.taken = taken = pace.taken + 1
        if taken == pace.next_fault:
            self.site.inject_due(self, pace.due())
        if not self.is_alive:
            raise ProcessKilled

    def edge(self) -> None:
        """Count an edge: a step that makes a file durable or renames it."""
        pace = self._pace
        pace.edges_taken = taken = pace.edges_taken + 1
        if taken == pace.next_edge:
            self.site.inject_due(self, pace.due_at_edge())
        self.step()

    def later(self, delay_s: float, call: Callable[..., Any], *args: Any) -> None:
        self._after(delay_s, self.post, call, *args)

    def soon(self, call: Callable[..., Any], *args: Any) -> None:
        """Run a call after a moment, in which others may run first."""
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
        """Make a blocking call of shipped code. Other processes may run whenever it uses the machine."""
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
        """Run these steps in a separate thread, between which handlers of the process run."""
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
        """Let others run first, if a blocking call is about to use the machine."""
        if self._thread is not None and (self.is_paused or self._random() < SUSPENDED):
            self._thread.suspend(self._random() * 0.004)

    def wait(self, delay_s: float) -> bool:
        """Let other tasks run for a time. Return False outside of blocking calls, which cannot wait."""
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
        """End the suspended handler and threads, if there are any."""
        busy, self._busy = self._busy, None
        others, self._others = self._others, []
        for steps in (busy, *others):
            if isinstance(steps, GeneratorType) and not steps.gi_running:
                steps.close()

    def kill(self, *, is_power_cut: bool = False) -> None:
        """End the process immediately. Data in sockets may still arrive; data in files is in the page cache."""
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
