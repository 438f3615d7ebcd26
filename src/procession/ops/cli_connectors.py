"""`procession sink …`: the connectors that receive, as commands. Words in, one call out.

The one rule: as in `cli`. Before it the command line; after it `connectors`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from procession.ops.cli_sources import CookieFile
from procession.ops.cli_tls import ClientCa, ShownCert, ShownKey

sink_app = typer.Typer(help="Connectors that receive records and take part in the commit.", no_args_is_help=True)


@sink_app.command("file")
def sink_file(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where outputs and transaction logs are written.")],
    listen: Annotated[str, typer.Option(help="Where the driver sends to.")] = "127.0.0.1:7200",
    idempotent: Annotated[
        list[str] | None,
        typer.Option(help="Let this output (PIPELINE-SINK-0) take positions again, with the same bytes (repeatable)."),
    ] = None,
    cookie_file: CookieFile = None,
    tls_cert: ShownCert = None,
    tls_key: ShownKey = None,
    tls_client_ca: ClientCa = None,
) -> None:
    """Write records to files, and take part in the commit."""
    from procession.connectors.file_sink import run_file_sink
    from procession.ops.cookie import read_cookie
    from procession.tls import server_tls

    tls = server_tls(tls_cert, tls_key, tls_client_ca)
    run_file_sink(directory, listen, cookie=read_cookie(cookie_file), tls=tls, idempotent=idempotent or ())
