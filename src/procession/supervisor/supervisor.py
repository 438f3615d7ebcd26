"""The supervisor: starts the parts of a pipeline, restarts those that die, and stops them in order.

Invariant: after the supervisor has ended, for any reason, no process of its parts is left. It stops parts by rank,
with deadlines. When a part dies, its remaining processes are killed before the next start. If the supervisor itself
is killed, its cleanup process kills all processes (`supervisor/cleanup`). The supervisor only works while its caller
calls `watch`; parts run in any case.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, Self

from procession.errors import ProcessionError
from procession.exit_status import FINAL_STATUSES
from procession.supervisor import cleanup
from procession.supervisor.part import Child, Part, PartState
from procession.supervisor.restart_policy import RestartPolicy, Restarts

READY_POLL_S = 0.05
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_GIVEN_BY_RUN = frozenset({"listen", "cookie-file", "open", "to", "dir", "source", "records", "acks", "json"})
"""Options of connectors that are not part of a URL. Options for TLS are not either."""
_OPTION = re.compile(r"(?<![\w-])--(?!tls-)([a-z][a-z0-9-]*[a-z0-9])")


class PartFailed(ProcessionError):
    """A part ended permanently and needs an operator. Fields: part, log."""


def with_url_options(lines: str) -> str:
    """Add the URL form of the command-line options in a connector's next step.

    Example:
        >>> with_url_options("It is late.\\n  Next: Give --dead-letters TABLE.").splitlines()[1]
        '  Next: Give --dead-letters TABLE. In the URL of an app, write dead_letters= for --dead-letters.'
    """
    _, _, next_step = lines.rpartition("Next: ")
    names = [name for name in dict.fromkeys(_OPTION.findall(next_step)) if name not in _GIVEN_BY_RUN]
    if not names or next_step == lines:
        return lines
    forms = " and ".join(f"{name.replace('-', '_')}= for --{name}" for name in names)
    return f"{lines.rstrip()} In the URL of an app, write {forms}."


def _in_silence(_sentence: str) -> None:
    pass


class ExitHandler(Protocol):
    """Decides what happens to parts that end or do not become ready, and sets the state of the child."""

    def ended(self, child: Child, status: int, now: float) -> None:
        """Handle the end of a part's process that the supervisor did not cause."""

    def late(self, child: Child, how: str, now: float) -> None:
        """Handle a part that was not ready in time and was killed."""

    def spare_ended(self, child: Child, status: int) -> None:
        """Handle the end of a part's spare."""


class LimitedRestarts:
    """Restarts parts that fail, up to the limit of the policy. A part that needs an operator stops the supervisor."""

    def __init__(
        self, policy: RestartPolicy, say: Callable[[str], None], on_restart: Callable[[str, str], None]
    ) -> None:
        self._policy = policy
        self._say = say
        self._on_restart = on_restart

    def ended(self, child: Child, status: int, now: float) -> None:
        child.clear()
        child.state = PartState.ENDED
        if status in FINAL_STATUSES and not child.part.is_needed:
            self._say(f"{child.part.name} ended: {child.log.last_lines()} The pipeline goes on without it.")
        elif status in FINAL_STATUSES:
            raise part_failed(child, child.log.last_lines() or "It ended with a fatal error and without a message.")
        elif status != 0:
            self._restart(child, _how(status), now, was_killed=status == -signal.SIGKILL)

    def late(self, child: Child, how: str, now: float) -> None:
        self._restart(child, how, now)

    def spare_ended(self, child: Child, status: int) -> None:
        """Do nothing: another spare is started after a pause."""

    def _restart(self, child: Child, how: str, now: float, *, was_killed: bool = False) -> None:
        delay_s: float | None = self._policy.delay_first_s
        if not child.is_killed_by_us:
            delay_s = child.restarts.died(now, was_killed=was_killed)
        if delay_s is None:
            child.state = PartState.ENDED
            if not child.part.is_needed:
                self._say(f"{child.part.name} keeps failing; see {child.log.path}. The pipeline goes on without it.")
                return
            often = f"failed {child.restarts.count} times within {self._policy.window_s:g} s"
            lines = child.log.last_lines() or "(none)"
            raise part_failed(child, f"The {child.part.name} {often}; it {how}. Its last lines:\n{lines}")
        self._say(f"{child.part.name} {how}; restarting it")
        self._on_restart(child.part.name, how)
        child.state = PartState.WAITING
        child.due = now + delay_s


def part_failed(child: Child, sentence: str) -> PartFailed:
    """Return the error for a part that needs an operator."""
    if child.part.is_of_url:
        sentence = with_url_options(sentence)
    return PartFailed(sentence, part=child.part.name, log=str(child.log.path))


class Supervisor:
    """A context manager: parts are started inside it, and all of their processes have ended after it.

    with Supervisor(directory) as supervisor:
        supervisor.start(gateway)
        supervisor.wait_ready("gateway")
        while supervisor.watch(0.2):
            show_progress()
    """

    def __init__(
        self,
        directory: Path,
        policy: RestartPolicy | None = None,
        say: Callable[[str], None] = _in_silence,
        on_restart: Callable[[str, str], None] = lambda part, how: None,
        exits: ExitHandler | None = None,
    ) -> None:
        self._directory = directory
        self._policy = policy or RestartPolicy()
        self._say = say
        self._exits = exits or LimitedRestarts(self._policy, say, on_restart)
        self._mark = f"{uuid.uuid4().hex}/"
        self._children: dict[str, Child] = {}
        self._signals: list[int] = []
        self._handlers: dict[signal.Signals, Any] = {}
        self._wake = -1

    # --- the context

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        cleanup.adopt_orphans(True)
        self._cleanup_process = cleanup.start_cleanup_process(self._mark)
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if (
                    number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
                ):  # keep it ignored under nohup
                    self._handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            for child in self._children.values():
                child.dismiss_spare()
                child.dismiss_successor()
                child.clear()
            self._cleanup_process.kill()
            self._cleanup_process.communicate()
            cleanup.adopt_orphans(False)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            os.close(self._wake)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.ask_to_stop(number)

    # --- the caller's requests

    def start(self, part: Part) -> None:
        """Start a part, and supervise it from now on."""
        if part.name in self._children:
            raise ValueError(f"there is a part named {part.name} already")
        self._children[part.name] = child = Child(part, self._mark, self._directory, self._policy)
        self._launch(child)

    def start_early(self, part: Part) -> None:
        """Start a part's process early. It waits for its turn until `replace` starts the part."""
        if part.name in self._children:
            raise ValueError(f"there is a part named {part.name} already")
        self._children[part.name] = child = Child(part, self._mark, self._directory, self._policy)
        child.due = float("inf")
        child.prepare(part)

    def watch(self, timeout_s: float) -> bool:
        """Supervise the parts for `timeout_s`. Return False immediately when asked to stop, or when all are done."""
        deadline = time.monotonic() + timeout_s
        return self._watch_until(lambda: time.monotonic() >= deadline, deadline)

    def wait_ready(self, *names: str) -> bool:
        """Supervise until the named parts (or all) are ready or done. Return False when asked to stop."""
        waited_for = [self._children[name] for name in names or self._children]
        self._watch_until(lambda: all(child.state in (PartState.READY, PartState.ENDED) for child in waited_for))
        return not self.is_asked_to_stop

    def wait_done(self, *names: str) -> bool:
        """Supervise until the named parts have ended with status 0. Return False when asked to stop."""
        waited_for = [self._children[name] for name in names]
        self._watch_until(lambda: all(child.state is PartState.ENDED for child in waited_for))
        return not self.is_asked_to_stop

    def kill(self, name: str) -> None:
        """Kill a part's process with SIGKILL, for tests. The part is restarted, and this death does not count."""
        child = self._children[name]
        child.is_killed_by_us = True
        child.send(signal.SIGKILL)

    def prepare(self, name: str, part: Part) -> int:
        """Start a process that will run this part in place of the current one: see `replace`. Returns its id."""
        return self._children[name].prepare(part)

    def is_successor_alive(self, name: str) -> bool:
        return self._children[name].successor_status() is None

    def dismiss_successor(self, name: str) -> None:
        self._children[name].dismiss_successor()

    def halt(self, name: str) -> None:
        """Stop a part, as `stop` does, and do not start it again before `replace`."""
        child = self._children[name]
        if child.is_running:
            self._stop_together([child])
        child.dismiss_spare()
        child.state, child.due = PartState.WAITING, float("inf")

    def replace(self, name: str, part: Part) -> None:
        """Start a halted part again as this part. If a successor is prepared, use its process."""
        child = self._children[name]
        child.replace(part)
        child.restarts = Restarts(self._policy)
        self._launch(child)

    def remove(self, name: str) -> None:
        """Stop a part permanently."""
        self.halt(name)
        del self._children[name]

    @property
    def names(self) -> list[str]:
        """The names of all parts."""
        return list(self._children)

    def part(self, name: str) -> Part:
        """Return the part of this name."""
        return self._children[name].part

    def is_ready(self, name: str) -> bool:
        return self._children[name].state is PartState.READY

    def ask_to_stop(self, number: int = signal.SIGTERM) -> None:
        """Handle a signal: `watch` returns False from now on. After a second SIGINT, `stop` does not wait."""
        self._signals.append(number)
        os.eventfd_write(self._wake, 1)

    def has(self, name: str) -> bool:
        """Return whether a part of this name was ever started."""
        return name in self._children

    def is_done(self, name: str) -> bool:
        """Return whether a part has ended permanently."""
        return self._children[name].state is PartState.ENDED

    @property
    def is_asked_to_stop(self) -> bool:
        return bool(self._signals)

    @property
    def stop_signal(self) -> int | None:
        """The first signal that asked the supervisor to stop."""
        return self._signals[0] if self._signals else None

    @property
    def restarts(self) -> dict[str, int]:
        """How often each part was started again."""
        return {name: max(0, child.starts - 1) for name, child in self._children.items()}

    def pid(self, name: str) -> int | None:
        """Return the process id of a part, or None while it does not run."""
        return self._children[name].pid

    def spare_pid(self, name: str) -> int | None:
        """Return the process id of a part's spare. None if there is none."""
        return self._children[name].spare_pid

    def log_path(self, name: str) -> Path:
        return self._children[name].log.path

    # --- supervising

    def _watch_until(self, is_enough: Callable[[], bool], deadline: float = float("inf")) -> bool:
        while True:
            for child in self._children.values():
                self._check_part(child)
            if self.is_asked_to_stop or all(child.state is PartState.ENDED for child in self._children.values()):
                return False
            if is_enough():
                return True
            self._rest(min(deadline, self._next_due()), self._children.values())

    def _check_part(self, child: Child) -> None:
        now = time.monotonic()
        for note in child.log.notes():
            self._say(f"{child.part.name}: {note}")
        if (spare_status := child.spare_status()) is not None:
            self._exits.spare_ended(child, spare_status)
        if child.is_running and (status := child.status()) is not None:
            self._exits.ended(child, status, now)
        elif child.state is PartState.STARTING and child.is_ready():
            child.state = PartState.READY
        elif child.state is PartState.STARTING and now >= child.due:
            child.clear()
            self._exits.late(child, f"was not ready within {child.part.ready_timeout_s:g} s", now)
        elif child.state is PartState.WAITING and now >= child.due:
            self._launch(child)
        else:
            if child.state is PartState.READY:  # not earlier: a starting part needs the CPU
                child.keep_spare(now)
            child.log.trim()

    def _launch(self, child: Child) -> None:
        try:
            child.start(time.monotonic())
        except OSError as error:
            child.state = PartState.ENDED
            raise part_failed(child, f"The {child.part.name} could not be started: {error}.") from error

    def _next_due(self) -> float:
        """Return the time of the next scheduled action."""
        now = time.monotonic()
        due_times = [child.due for child in self._children.values() if child.state is PartState.WAITING]
        polls = [now + READY_POLL_S for child in self._children.values() if child.state is PartState.STARTING]
        spares = [child.spare_due for child in self._children.values()]
        return min([*due_times, *polls, *spares], default=float("inf"))

    def _rest(self, until: float, children: Iterable[Child]) -> None:
        """Sleep until this time, until a child ends, or until asked to stop."""
        if self._cleanup_process.poll() is not None:
            self._cleanup_process.communicate()
            self._cleanup_process = cleanup.start_cleanup_process(self._mark)
        events = select.poll()
        events.register(self._wake, select.POLLIN)
        for ended in (ended for child in children for ended in child.ends):
            events.register(ended, select.POLLIN)
        rest_s = until - time.monotonic()
        events.poll(None if rest_s == float("inf") else max(0.0, rest_s) * 1000)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    # --- stopping

    def stop(self) -> None:
        """Send SIGTERM rank by rank, wait for each rank until its deadline, then kill all remaining processes."""
        children = self._children.values()
        for child in children:
            child.dismiss_spare()
        for rank in sorted({child.part.stop_rank for child in children}):
            self._stop_together([child for child in children if child.part.stop_rank == rank and child.is_running])
        for child in children:
            child.state = PartState.ENDED

    def _stop_together(self, group: list[Child]) -> None:
        began = time.monotonic()
        for child in group:
            child.send(signal.SIGTERM)
        for child in group:
            deadline = began + child.part.stop_timeout_s
            while child.status() is None and time.monotonic() < deadline and not self._is_pressed:
                self._rest(deadline, [child])
            if child.status() is None:
                self._say(f"{child.part.name} did not stop in time and was killed")
            child.clear()

    @property
    def _is_pressed(self) -> bool:
        """Whether Ctrl-C was pressed twice. A second SIGTERM does not count: service managers routinely send two."""
        return self._signals.count(signal.SIGINT) > 1


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    return f"was ended by signal {-status} ({signal.strsignal(-status)})"
