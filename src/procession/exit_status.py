"""Exit statuses of all commands.

Invariant: there is one table for all commands, here and in docs/reference/commands.md. Scripts and supervisors choose
their next step by the status.
"""

from __future__ import annotations

import enum
import signal

from procession.errors import DiskError, ProcessionError, UsageError


class Status(enum.IntEnum):
    DONE = 0
    """The command did everything, and verified output is clean."""
    UNCLEAN = 1
    """The work is incomplete, or verified output is not clean. A restart may help."""
    USAGE = 2
    """Invalid command or argument. Nothing was started."""
    ACT = 3
    """An operator must act. A restart does not help."""
    INTERRUPTED = 130
    """Ctrl-C ended a search that had found no problem so far."""


FINAL_STATUSES = frozenset({Status.USAGE, Status.ACT})
"""Statuses after which the supervisor does not restart a part."""


def hear_interrupts() -> None:
    """Make Ctrl-C raise KeyboardInterrupt, for a command that prints a result when it is stopped."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def status_of(error: ProcessionError) -> Status:
    """Return the status of an error. An error with a next step needs an operator; a disk error may be temporary."""
    if isinstance(error, UsageError):
        return Status.USAGE
    if isinstance(error, DiskError):
        return Status.UNCLEAN
    return Status.ACT if error.next_step else Status.UNCLEAN
