"""Part: a program that is supervised, and the child process that runs it at the moment.

The one rule: a child is the leader of a session of its own and carries a mark, and it counts as ended only when
everything that bears its mark has ended with it. Before it stands the supervisor; after it `sweep`, which finds what
a child left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

from procession.ops import sweep
from procession.ops.partlog import PartLog
from procession.ops.restarts import RestartPolicy, Restarts


def _ready_at_once(_pid: int) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Part:
    """What to run, how to see that it is ready, and how it is stopped: lower ranks first, equal ranks together."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    is_ready: Callable[[int], bool] = _ready_at_once
    ready_timeout_s: float = 120.0
    stop_rank: int = 0
    stop_timeout_s: float = 10.0


class State(Enum):
    """Where a child is in its life."""

    WAITING = auto()  # for its next start
    STARTING = auto()  # running, not ready yet
    READY = auto()
    ENDED = auto()  # for good: done, stopped or failed


class Child:
    """One part's process, over all its starts."""

    def __init__(self, part: Part, mark: str, directory: Path, policy: RestartPolicy) -> None:
        self.part = part
        self.state = State.WAITING
        self.due = 0.0  # WAITING: when it starts; STARTING: when it must be ready
        self.starts = 0
        self.is_killed_by_us = False
        self.restarts = Restarts(policy)
        self.log = PartLog(directory / f"{part.name}.log")
        self.ended = -1  # a descriptor that becomes readable when the process ends
        self._mark = f"{mark}{part.name}/"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self, now: float) -> None:
        output = self.log.open()
        try:
            self._process = subprocess.Popen(
                self.part.argv,
                env={**os.environ, **self.part.env, sweep.VARIABLE: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        finally:
            os.close(output)
        self.ended = os.pidfd_open(self._process.pid)
        self.starts += 1
        self.is_killed_by_us = False
        self.state = State.STARTING
        self.due = now + self.part.ready_timeout_s

    def status(self) -> int | None:
        """The status with which the process has ended (minus the signal's number if by one), None while it runs."""
        return self._process.poll() if self._process else None

    def is_ready(self) -> bool:
        return self.pid is not None and self.part.is_ready(self.pid)

    def send(self, number: signal.Signals) -> None:
        """A signal to the process itself, not to those that it has started: how they end is its own affair."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def clear(self) -> None:
        """End the process, if it still runs, and everything that it has started; reap it all."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        os.close(self.ended)
        sweep.sweep(self._mark, [self._process.pid])
        self._process = None
