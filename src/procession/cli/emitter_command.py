"""The command `procession emitter`: runs an emitter.

As in `cli/main`, it only parses; `commit.emitter_server` does the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from procession.cli.command_options import with_groups
from procession.cli.tls_options import ServerTlsOptions, TrustedName
from procession.log_format import note


@with_groups
def emitter(
    directory: Annotated[Path, typer.Option("--dir", help="The emitter's directory, with its address.")],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address for drivers. Port 0 takes a free port.")
    ] = "127.0.0.1:7500",
    control_cookie_file: Annotated[
        Path | None, typer.Option(help="File with the secret of the pipeline's control port. Required.")
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(help="Use TLS to sinks and host services, and trust only certificates of this authority (PEM)."),
    ] = None,
    tls_name: TrustedName = None,
    *,
    tls: ServerTlsOptions,
) -> None:
    """Run an emitter. It fetches the output of tasks and sends it to sinks with several connections, as drivers
    order."""
    from procession.commit.emitter_server import EmitterConfig, serve_emitter
    from procession.deployment.cookies import read_cookie
    from procession.tls import client_tls

    trusted = client_tls(tls_ca, tls.tls_cert, tls.tls_key, tls_name) if tls_ca is not None else None
    cookie = read_cookie(control_cookie_file)
    serve_emitter(EmitterConfig(directory.resolve(), listen, cookie, tls.load(), trusted), say=note)
