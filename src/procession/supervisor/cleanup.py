"""Finds and kills all processes that a part has left, even if the supervisor itself was killed.

Invariant: a process belongs to a part if its environment has the part's mark, or if it is in the part's session. Its
parent does not matter, because the parent of a JVM or Python worker may have been killed. Linux only, because it
reads /proc. Run as a script, this module is the *cleanup process*: it waits for the end of its standard input, which
the supervisor holds open while it lives, and then kills the remaining processes. (PR_SET_PDEATHSIG would reach only
the direct child.) It must start quickly, so this module imports no other module of Procession.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "PROCESSION_PART"
SWEEP_TIMEOUT_S = 10.0
CLEANUP_PAUSE_S = 0.1

_PR_SET_CHILD_SUBREAPER = 36
_ZOMBIE = "Z"


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """One line of the kernel's process table."""

    pid: int
    state: str
    parent: int
    session: int

    def carries(self, mark: str) -> bool:
        try:
            environment = Path(f"/proc/{self.pid}/environ").read_bytes()
        except OSError:  # it has exited, or belongs to another user
            return False
        return any(entry.startswith(f"{VARIABLE}={mark}".encode()) for entry in environment.split(b"\0"))


def processes() -> Iterator[ProcessEntry]:
    """Yield all processes of the machine."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            continue
        # The command's name is in parentheses and may contain any character, even parentheses and spaces.
        state, parent, _group, session = text.rpartition(")")[2].split()[:4]
        yield ProcessEntry(int(pid), state, int(parent), int(session))


def find(mark: str, sessions: Collection[int] = ()) -> list[ProcessEntry]:
    """Return the processes whose mark begins with `mark` or that are in one of the sessions, including zombies."""
    own_pid = os.getpid()
    return [
        entry for entry in processes() if entry.pid != own_pid and (entry.session in sessions or entry.carries(mark))
    ]


def sweep(mark: str, sessions: Collection[int] = ()) -> int:
    """Send SIGKILL to the processes of `find` until none is alive, and reap our children. Return the number
    killed."""
    deadline = time.monotonic() + SWEEP_TIMEOUT_S
    killed: set[int] = set()
    while True:
        found = find(mark, sessions)
        living = [entry.pid for entry in found if entry.state != _ZOMBIE]
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _wait_for_end(living, deadline)
        # Processes whose parents are dead are now our children, because we are their subreaper.
        for entry in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(entry.pid, os.WNOHANG)
        killed.update(living)
        if not living or time.monotonic() > deadline:
            return len(killed)


def _wait_for_end(pids: list[int], deadline: float) -> None:
    for pid in pids:
        try:
            ended = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            poll = select.poll()  # select does not support descriptors above 1023
            poll.register(ended, select.POLLIN)
            poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        finally:
            os.close(ended)


def adopt_orphans(is_wanted: bool) -> None:
    """Become (or cease to be) the process that inherits its descendants' orphans, so that they can be reaped."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(is_wanted), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def start_cleanup_process(mark: str) -> subprocess.Popen[bytes]:
    """Start a cleanup process for all processes with `mark`. The process is out of reach of the terminal's Ctrl-C,
    and has no mark."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != VARIABLE},
    )


def main(mark: str) -> None:
    """Run the cleanup process: wait until the supervisor has ended, then kill all marked processes."""
    sys.stdin.buffer.read()
    # Repeat until two consecutive searches find no process: between fork and exec a child has no mark yet.
    quiet = 0
    while quiet < 2:
        quiet = 0 if sweep(mark) else quiet + 1
        time.sleep(CLEANUP_PAUSE_S)


if __name__ == "__main__":
    main(sys.argv[1])
