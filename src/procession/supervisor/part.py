"""Manages a part: a supervised program, and the child process that currently runs it.

Invariant: a child leads its own session and has a mark in its environment. It counts as ended only when
every process with its mark has ended. Used by the supervisor; uses `supervisor/cleanup` to find the processes that a
child left.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path

from procession.supervisor import cleanup
from procession.supervisor.part_log import PartLog
from procession.supervisor.restart_policy import RestartPolicy, Restarts

TURN = b"go\n"
"""The line that promotes a spare."""

SPARE_PAUSE_S = 5.0
"""Minimum time between two starts of a spare."""


def _ready_at_once(_pid: int) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Part:
    """A program to run, its test of readiness, and its rank: parts with lower ranks are stopped first, equal ranks
    together."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    is_ready: Callable[[int], bool] = _ready_at_once
    ready_timeout_s: float = 120.0
    stop_rank: int = 0
    stop_timeout_s: float = 10.0
    spare: tuple[str, ...] = ()
    """Arguments that start the program as a spare, which waits for its turn on standard input. Empty: no spare."""
    turn: bytes = TURN
    """The line that promotes the spare."""
    pass_fds: tuple[int, ...] = ()
    """File descriptors that the process inherits."""
    is_needed: bool = True
    """Whether the pipeline fails if this part fails for good. Otherwise the pipeline continues without it."""
    is_of_url: bool = False
    """Whether the part is a connector that an app names by URL, so that its options are in the URL."""


@dataclass(frozen=True, slots=True)
class PartProcess:
    """A running process, the mark of its descendants, and a descriptor that becomes readable when the process
    ends."""

    popen: subprocess.Popen[bytes]
    mark: str
    ended: int

    def clear(self) -> None:
        """Kill the process and all processes that it has started, and reap them."""
        self.popen.kill()
        if self.popen.stdin:
            self.popen.stdin.close()
        self.popen.wait()
        os.close(self.ended)
        cleanup.sweep(self.mark, [self.popen.pid])


class PartState(Enum):
    """The states of a child."""

    WAITING = auto()  # waits for its next start
    STARTING = auto()  # running, not ready yet
    READY = auto()
    ENDED = auto()  # ended permanently: done, stopped or failed


class Child:
    """The process of one part, across restarts."""

    def __init__(self, part: Part, mark: str, directory: Path, policy: RestartPolicy) -> None:
        self.part = part
        self.state = PartState.WAITING
        self.due = 0.0  # WAITING: time of the next start; STARTING: deadline for readiness
        self.starts = 0
        self.is_killed_by_us = False
        self.restarts = Restarts(policy)
        self.log = PartLog(directory / f"{part.name}.log")
        self._marks = (f"{mark}{part.name}/{number}/" for number in itertools.count())
        self._process: PartProcess | None = None
        self._spare: PartProcess | None = None
        self._spare_due = 0.0
        self._successor: PartProcess | None = None
        self._prepared_from: Part | None = None

    @property
    def pid(self) -> int | None:
        return self._process.popen.pid if self._process else None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def ends(self) -> list[int]:
        """Return the descriptors that become readable when the process or its spare ends."""
        return [process.ended for process in (self._process, self._spare) if process]

    def start(self, now: float) -> None:
        """Start the process, or promote the spare."""
        self._process = self._promote() or self._open(self.part.argv, subprocess.DEVNULL)
        self.starts += 1
        self.is_killed_by_us = False
        self.state = PartState.STARTING
        self.due = now + self.part.ready_timeout_s

    def _open(self, argv: tuple[str, ...], stdin: int) -> PartProcess:
        mark = next(self._marks)
        output = self.log.open()
        try:
            popen = subprocess.Popen(
                argv,
                env={**os.environ, **self.part.env, cleanup.VARIABLE: mark},
                stdin=stdin,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=self.part.pass_fds,
            )
        finally:
            os.close(output)
        return PartProcess(popen, mark, os.pidfd_open(popen.pid))

    def status(self) -> int | None:
        """Return the exit status, or minus the signal's number. None while it runs."""
        return self._process.popen.poll() if self._process else None

    def is_ready(self) -> bool:
        return self.pid is not None and self.part.is_ready(self.pid)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process itself, not to its descendants."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                self._process.popen.send_signal(number)

    def clear(self) -> None:
        """Kill the process and all processes that it has started. The spare continues."""
        if self._process is not None:
            self._process.clear()
            self._process = None

    # --- the spare

    @property
    def spare_pid(self) -> int | None:
        return self._spare.popen.pid if self._spare else None

    def spare_status(self) -> int | None:
        """Return the exit status of the spare. None while it waits, or if there is none."""
        return self._spare.popen.poll() if self._spare else None

    @property
    def spare_due(self) -> float:
        """Time of the next start of a spare; infinity if no spare is missing."""
        is_missing = self.part.spare and self._spare is None and self.state is PartState.READY
        return self._spare_due if is_missing else float("inf")

    def keep_spare(self, now: float) -> None:
        """Start a spare if the part has one and it does not run."""
        if self._spare and self._spare.popen.poll() is not None:
            self.dismiss_spare()
        if now >= self.spare_due:
            self._spare = self._open((*self.part.argv, *self.part.spare), subprocess.PIPE)
            self._spare_due = now + SPARE_PAUSE_S

    def dismiss_spare(self) -> None:
        if self._spare is not None:
            self._spare.clear()
            self._spare = None

    # --- the successor: a spare of the part that will replace this one

    def prepare(self, part: Part) -> int:
        """Start a spare of this part, which waits for its turn, and return its process id. It takes the place of the
        current part's spare."""
        self.dismiss_successor()
        self.dismiss_spare()
        self._prepared_from, self.part = self.part, replace(self.part, spare=())
        self._successor = self._open((*part.argv, *part.spare), subprocess.PIPE)
        return self._successor.popen.pid

    def successor_status(self) -> int | None:
        """Return the exit status of the successor. None while it waits, or if there is none."""
        return self._successor.popen.poll() if self._successor else None

    def replace(self, part: Part) -> None:
        """Use this part from the next start on, with the successor as its process if there is one."""
        self.part, self._prepared_from = part, None
        self.dismiss_spare()
        self._spare, self._successor = self._successor, None

    def dismiss_successor(self) -> None:
        self.part, self._prepared_from = self._prepared_from or self.part, None
        if self._successor is not None:
            self._successor.clear()
            self._successor = None

    def _promote(self) -> PartProcess | None:
        """Promote the spare. Return None if there is none."""
        spare, self._spare = self._spare, None
        if spare is None:
            return None
        assert spare.popen.stdin is not None
        try:
            spare.popen.stdin.write(self.part.turn)
            spare.popen.stdin.close()
        except OSError:  # it has ended meanwhile
            spare.clear()
            return None
        return spare
