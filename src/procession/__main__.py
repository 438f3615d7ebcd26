"""The command `procession`, also as `python -m procession`.

The one rule: Ctrl-C ends it without a trace from its first line on: at once while modules are imported, which must not
be interrupted half-way; then as an ordinary exit; then as the command itself wants it, once it has its own handlers.
After it `cli/main`.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

INTERRUPTED = 130


def main() -> NoReturn:
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where it is ignored, by nohup
    if is_heard:
        signal.signal(signal.SIGINT, _leave_at_once)
    from procession.cli.main import main as command

    if is_heard:
        signal.signal(signal.SIGINT, _leave)
    command()


def _leave_at_once(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(INTERRUPTED)


# A process that a benchmark starts loads this module, too, under another name.
if __name__ == "__main__":
    main()
