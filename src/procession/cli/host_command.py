"""The command `procession host`: runs a host service.

As in `cli/main`, it only parses; `storage.host_service` does the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from procession.cli.command_options import with_groups
from procession.cli.tls_options import ServerTlsOptions
from procession.log_format import note


@with_groups
def host(
    directory: Annotated[
        Path, typer.Option("--dir", help="The service's directory. The tasks of this machine write their runs there.")
    ],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address for the driver and for executors on other machines.")
    ] = "127.0.0.1:7300",
    advertise: Annotated[
        str,
        typer.Option(
            metavar="HOST", show_default="where it listens", help="Host name that other machines use to reach it."
        ),
    ] = "",
    control_cookie_file: Annotated[
        Path | None, typer.Option(help="File with the secret of the pipeline's control port. Required.")
    ] = None,
    with_executors: Annotated[
        bool,
        typer.Option(
            "--with-executors",
            help="End some minutes after the last executor that uses the service has ended. `procession submit` uses"
            " this option.",
        ),
    ] = False,
    *,
    tls: ServerTlsOptions,
) -> None:
    """Run the host service of a machine with executors. It serves the executors' intermediate files to other
    machines."""
    from procession.deployment.cookies import read_cookie
    from procession.storage.host_service import LINGER_S, HostConfig, serve_host

    linger_s = LINGER_S if with_executors else None
    cookie = read_cookie(control_cookie_file)
    serve_host(HostConfig(directory.resolve(), listen, cookie, advertise, tls.load(), linger_s), say=note)
