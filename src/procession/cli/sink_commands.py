"""`procession sink …`: the connectors that receive, as commands. Words in, one call out.

The one rule: as in `cli`. Before it the command line; after it `connectors` and `cli/sink_check`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from procession.cli.tls_options import ClientCa, ShownCert, ShownKey
from procession.exit_status import Status

sink_app = typer.Typer(help="Connectors that receive records and take part in the commit.", no_args_is_help=True)

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="The sink's own directory: transaction logs, and what the sink writes.")
]
Listen = Annotated[str, typer.Option(help="Where the driver sends to, HOST:PORT.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print an object a line: where it listens, and each commit and abort.")
]

CookieFile = Annotated[
    Path | None,
    typer.Option(show_default="DIR/secrets/sinks", help="A file with the secret that the driver must show."),
]
Open = Annotated[bool, typer.Option("--open", help="Let anybody who reaches the port write, without a secret.")]

ADDRESS = "127.0.0.1:7200"


def _cookie(cookie_file: Path | None, is_open: bool) -> bytes | None:
    """The secret of a file, none at all, or the one of the sink's own directory."""
    from procession.errors import UsageError
    from procession.supervisor.cookies import read_cookie

    if cookie_file is not None and is_open:
        raise UsageError("A sink cannot need a secret and none.", next_step="Give either --cookie-file or --open.")
    return b"" if is_open else read_cookie(cookie_file) or None


def _print_json(said: Mapping[str, object]) -> None:
    print(json.dumps(said), flush=True)


@sink_app.command("file")
def sink_file(
    directory: Directory,
    listen: Listen = ADDRESS,
    idempotent: Annotated[
        list[str] | None,
        typer.Option(help="Let this output (PIPELINE-SINK-0) take positions again, with the same bytes (repeatable)."),
    ] = None,
    as_json: Json = False,
    cookie_file: CookieFile = None,
    is_open: Open = False,
    tls_cert: ShownCert = None,
    tls_key: ShownKey = None,
    tls_client_ca: ClientCa = None,
) -> None:
    """Write each output to one file, of which its transaction log says what is committed (see `cat`)."""
    from procession.connectors.file_sink import run_file_sink
    from procession.tls import server_tls

    run_file_sink(
        directory,
        listen,
        cookie=_cookie(cookie_file, is_open),
        tls=server_tls(tls_cert, tls_key, tls_client_ca),
        idempotent=idempotent or (),
        tell=_print_json if as_json else None,
    )


@sink_app.command("epochs")
def sink_epochs(
    directory: Directory,
    listen: Listen = ADDRESS,
    suffix: Annotated[str, typer.Option(help="What the names of the files end with, such as .csv.")] = ".data",
    empty: Annotated[
        bool, typer.Option("--empty", help="An epoch without output has a file too, an empty one.")
    ] = False,
    as_json: Json = False,
    cookie_file: CookieFile = None,
    is_open: Open = False,
    tls_cert: ShownCert = None,
    tls_key: ShownKey = None,
    tls_client_ca: ClientCa = None,
) -> None:
    """Write a file for each committed epoch, DIR/OUTPUT.epochs/POSITION-EPOCH.data; it appears when it is committed."""
    from procession.connectors.epochs_sink import run_epochs_sink
    from procession.tls import server_tls

    run_epochs_sink(
        directory,
        listen,
        suffix=suffix,
        is_empty_kept=empty,
        cookie=_cookie(cookie_file, is_open),
        tls=server_tls(tls_cert, tls_key, tls_client_ca),
        tell=_print_json if as_json else None,
    )


@sink_app.command("stdout")
def sink_stdout(
    directory: Directory,
    listen: Listen = ADDRESS,
    in_doubt: Annotated[
        str,
        typer.Option(help="Repeat or skip the one piece of which nobody knows, after a crash, whether it was printed."),
    ] = "repeat",
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print objects, one a line: instance, start, end, and the text (or base64)."),
    ] = False,
    cookie_file: CookieFile = None,
    is_open: Open = False,
    tls_cert: ShownCert = None,
    tls_key: ShownKey = None,
    tls_client_ca: ClientCa = None,
) -> None:
    """Print what is committed, and nothing else. A pipe promises less than a file: see docs/connectors.md."""
    from procession.connectors.stdout_sink import InDoubt, run_stdout_sink
    from procession.tls import server_tls

    if in_doubt not in set(InDoubt):
        raise typer.BadParameter("choose one of repeat, skip", param_hint="--in-doubt")
    run_stdout_sink(
        directory,
        listen,
        is_json=as_json,
        in_doubt=InDoubt(in_doubt),
        cookie=_cookie(cookie_file, is_open),
        tls=server_tls(tls_cert, tls_key, tls_client_ca),
    )


@sink_app.command("check")
def sink_check(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND...", help="The sink's command after --, with {dir} and {listen} in it."),
    ] = None,
    visible: Annotated[
        str | None,
        typer.Option(help="A command, with {dir} and {instance} in it, that prints what a reader of the output sees."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CASE", help="Only the case of this name, or those with it in theirs (repeatable)."),
    ] = None,
    is_listing: Annotated[bool, typer.Option("--list", help="Print the cases and their short names, and end.")] = False,
    directory: Annotated[
        Path | None, typer.Option("--dir", show_default="a temporary directory", help="Work here and keep everything.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Put a sink to the test: rounds, gaps, two workers, a crash at each step. Status 0 if it keeps all promises."""
    from procession.cli.sink_check import check_sink, list_cases

    if is_listing:
        list_cases(as_json=as_json)
        return
    if not command:
        raise typer.BadParameter("give the sink's command, after --", param_hint="COMMAND...")
    if not check_sink(command, visible, only or (), directory, as_json=as_json):
        raise typer.Exit(Status.UNCLEAN)
