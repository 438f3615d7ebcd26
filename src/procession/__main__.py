"""The command `procession`, also as `python -m procession`.

Invariant: Ctrl-C ends the command without a traceback. While modules are imported, it ends the process at once, because
an import must not be interrupted half-way. Afterwards the process exits normally, unless the command
has set handlers of its own. Calls `cli/main`.
"""

from __future__ import annotations

import os
import signal
import sys

from procession.allocation import keep_arrow_memory
from procession.process_start import prepare_imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

INTERRUPTED = 130


def main() -> NoReturn:
    keep_arrow_memory()
    prepare_imports()
    is_handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # unless it is ignored, as under nohup
    if is_handled:
        signal.signal(signal.SIGINT, _leave_at_once)
    from procession.cli.main import main as command

    if is_handled:
        signal.signal(signal.SIGINT, _leave)
    command()


def _leave_at_once(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(INTERRUPTED)


# A process that a benchmark starts also loads this module, under another name.
if __name__ == "__main__":
    main()
