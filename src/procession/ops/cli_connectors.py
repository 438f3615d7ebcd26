"""`procession source …` and `procession sink …`: the connectors as commands. Words in, one call out.

The one rule: as in `cli`. Before it the command line; after it `connectors`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

source_app = typer.Typer(help="Connectors that send records to a gateway.", no_args_is_help=True)
sink_app = typer.Typer(help="Connectors that receive records and take part in the commit.", no_args_is_help=True)

CookieFile = Annotated[Path | None, typer.Option(help="A file with the secret that both sides must show.")]


@source_app.command("file")
def source_file(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Files; each is a stream, each line a record.")],
    to: Annotated[str, typer.Option(help="The gateway's address.")] = "127.0.0.1:7100",
    rate: Annotated[float | None, typer.Option(help="Records a second at most.")] = None,
    stamp: Annotated[bool, typer.Option("--stamp", help="Event time is the time of sending.")] = False,
    acks: Annotated[Path | None, typer.Option(help="Note down in this file what is acknowledged, and when.")] = None,
    cookie_file: CookieFile = None,
) -> None:
    """Send the lines of files; ends with status 0 when all of them are committed."""
    from procession.connectors.file import run_source
    from procession.ops.cookie import read_cookie

    if not run_source(paths, to, cookie=read_cookie(cookie_file), rate=rate, is_stamping=stamp, acks=acks):
        raise typer.Exit(1)


@sink_app.command("file")
def sink_file(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where outputs and transaction logs are written.")],
    listen: Annotated[str, typer.Option(help="Where the driver sends to.")] = "127.0.0.1:7200",
    idempotent: Annotated[
        list[str] | None,
        typer.Option(help="Let this output (PIPELINE-SINK-0) take positions again, with the same bytes (repeatable)."),
    ] = None,
    cookie_file: CookieFile = None,
) -> None:
    """Write records to files, and take part in the commit."""
    from procession.connectors.file_sink import run_sink
    from procession.ops.cookie import read_cookie

    run_sink(directory, listen, cookie=read_cookie(cookie_file), idempotent=idempotent or ())
