"""Exit statuses: how every command ends.

The one rule: one table, here and in docs/reference/commands.md, for all commands. Scripts and supervisors decide by the
status what to do next. Before it `cli/main`, which ends the process; after it nothing.
"""

from __future__ import annotations

import enum
import signal

from procession.errors import DiskError, ProcessionError, UsageError


class Status(enum.IntEnum):
    DONE = 0
    """All that was asked for was done, and what was judged is clean."""
    UNCLEAN = 1
    """It was begun and not done, or what was judged is not clean; starting it again may help."""
    USAGE = 2
    """The command was not understood; nothing was begun."""
    ACT = 3
    """Somebody must act before it can work; starting it again does not help."""
    INTERRUPTED = 130
    """Ctrl-C ended a search that had found nothing until then."""


HOPELESS = frozenset({Status.USAGE, Status.ACT})
"""What the supervisor does not start again."""


def hear_interrupts() -> None:
    """From here on Ctrl-C is a KeyboardInterrupt, for a command that has something to tell when it is stopped."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def status_of(error: ProcessionError) -> Status:
    """An error with a next step is for somebody to act on; a disk that failed once is not."""
    if isinstance(error, UsageError):
        return Status.USAGE
    if isinstance(error, DiskError):
        return Status.UNCLEAN
    return Status.ACT if error.next_step else Status.UNCLEAN
