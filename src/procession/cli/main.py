"""The command line.

Invariant: a command parses its arguments, calls one function and prints the result. The module of a command is imported
only when that command runs (`cli/command_table`), and the module with its function only when it is called, so that
commands start quickly. An error is one sentence, a next step and a status (`exit_status`).
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from procession.cache import find_place
from procession.cli.command_table import CommandGroup
from procession.errors import ProcessionError
from procession.exit_status import Status, status_of
from procession.log_format import keep_logs, print_crash, print_error
from procession.storage.secret import PRIVATE_UMASK
from procession.supervisor.supervisor import PartFailed

app = typer.Typer(
    cls=CommandGroup,
    help="Procession: every record, once, in order. A stream processor for Python, on Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(f"procession {version('procession')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Procession: every record, once, in order. A stream processor for Python, on Spark."""


def main() -> NoReturn:
    """Run the command `procession`."""
    # Only the owner may read payloads, secrets and positions. Child processes, including Spark's, inherit the umask.
    os.umask(PRIVATE_UMASK)
    try:
        keep_logs()
        find_place()
        app()
    except ProcessionError as error:
        print_error(error)
        sys.exit(Status.ACT if isinstance(error, PartFailed) else status_of(error))
    except BrokenPipeError:
        sys.exit(Status.UNCLEAN)
    except Exception:  # a bug in Procession or a library: print the traceback
        print_crash(traceback.format_exc())
        sys.exit(Status.UNCLEAN)
    sys.exit(Status.DONE)
