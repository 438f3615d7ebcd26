"""The command `procession dashboard`: the dashboard of a running or stopped pipeline.

As in `cli/main`, it only parses and prints; `dashboard/web_server` serves.
"""

from __future__ import annotations

import os
import socket
from typing import Annotated

import typer

from procession.cli.command_options import with_groups
from procession.cli.job_commands import ControlOptions


@with_groups
def dashboard(
    *,
    at: ControlOptions,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the page. Port 0: any.")] = "127.0.0.1:0",
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:PORT]", help="Another name of the page, such as that of a proxy (repeatable)."),
    ] = None,
    descriptor: Annotated[
        int | None, typer.Option("--fd", hidden=True, help="Descriptor of a socket that already listens.")
    ] = None,
) -> None:
    """Show a pipeline in the browser, while it runs and after that. Prints a link that is valid once."""
    from procession.address import parse_address
    from procession.dashboard.web_server import serve_dashboard
    from procession.deployment.dashboard_part import LINK_VARIABLE
    from procession.errors import ConfigError
    from procession.monitoring.job_status import status

    directory, cookie, tls = at.load()
    link = os.environ.pop(LINK_VARIABLE, "")
    if descriptor is not None:
        listening = socket.socket(fileno=descriptor)
    else:
        status(directory, is_asking=False)  # there is a pipeline
        try:
            listening = socket.create_server(parse_address(listen), backlog=64)
        except OSError as error:
            raise ConfigError(
                f"The dashboard cannot listen at {listen}: {error.strerror}.", next_step="Give another --listen."
            ) from error
    serve_dashboard(
        directory.resolve(),
        listening,
        cookie,
        tls,
        link,
        host or [],
        _control_arguments(at),
        (lambda sentence: print(sentence, flush=True)) if not link else (lambda _: None),
    )


def _control_arguments(at: ControlOptions) -> tuple[str, ...]:
    """Return the options of `at` for another command, without the directory."""
    given = {"control_cookie_file": at.control_cookie_file, **vars(at.tls)}
    named = {name: value for name, value in given.items() if value is not None}
    return tuple(word for name, value in named.items() for word in (f"--{name.replace('_', '-')}", str(value)))
