"""The command `procession sos`: runs an object service.

As in `cli/main`, it only parses; `sos.sos_server` does the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from procession.cli.command_options import with_groups
from procession.cli.tls_options import ServerTlsOptions
from procession.log_format import note


@with_groups
def sos(
    directory: Annotated[Path, typer.Option("--dir", help="The service's directory: its volumes and its secret.")],
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Address for clients. For clients on other machines, use an address that they can reach.",
        ),
    ] = "127.0.0.1:7400",
    cookie_file: Annotated[
        Path | None,
        typer.Option(show_default="DIR/secrets/sos", help="File with the secret that clients must send."),
    ] = None,
    *,
    tls: ServerTlsOptions,
) -> None:
    """Run an object service. It keeps append-only copies of a pipeline's files for other machines."""
    from procession.deployment.cookies import read_cookie
    from procession.sos.sos_server import SosConfig, run_sos
    from procession.storage.secret import Secret, make_pipeline_private, make_secret

    place = directory.resolve()
    make_pipeline_private(place)
    cookie = read_cookie(cookie_file) or make_secret(place, Secret.SOS)
    run_sos(SosConfig(place, listen, cookie, tls.load()), say=note)
