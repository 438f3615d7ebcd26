"""The commands `procession sink …`: run the sinks that we ship, and test a sink.

As in `cli/main`, they only parse and print; `connectors` and `cli/sink_check` do the work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from procession.cli.command_options import with_groups
from procession.cli.connector_group import SinkGroup
from procession.cli.replica_options import ReplicationOptions
from procession.cli.tls_options import ServerTlsOptions
from procession.exit_status import Status

sink_app = typer.Typer(
    cls=SinkGroup, help="Connectors that receive records and take part in two-phase commit.", no_args_is_help=True
)

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="The sink's directory: its transaction logs and output.")
]
Listen = Annotated[str, typer.Option(help="Address for the driver, HOST:PORT.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object per line: the address, and each commit and abort.")
]

CookieFile = Annotated[
    Path | None,
    typer.Option(show_default="DIR/secrets/sinks", help="File with the secret that the driver must send."),
]
Open = Annotated[
    bool, typer.Option("--open", help="Accept output from any driver that can reach the port, without a secret.")
]

Records = Annotated[
    Literal["messages", "blocks"],
    typer.Option(help="How records arrive: one per message, or blocks with keys and event times, as `run` sends them."),
]

ADDRESS = "127.0.0.1:7200"


@dataclass(frozen=True, kw_only=True)
class ReceiveOptions:
    """Options of every sink: its address, secret and certificates."""

    listen: Listen = ADDRESS
    cookie_file: CookieFile = None
    is_open: Open = False
    tls: ServerTlsOptions

    def cookie(self) -> bytes | None:
        """Return the secret from the file, an empty one for --open, or None for the one in the sink's directory."""
        from procession.deployment.cookies import read_cookie
        from procession.errors import UsageError

        if self.cookie_file is not None and self.is_open:
            raise UsageError("--cookie-file and --open exclude each other.", next_step="Use one of them.")
        return b"" if self.is_open else read_cookie(self.cookie_file) or None


def print_json(event: Mapping[str, object]) -> None:
    print(json.dumps(event), flush=True)


@sink_app.command("file")
@with_groups
def sink_file(
    directory: Directory,
    idempotent: Annotated[
        list[str] | None,
        typer.Option(
            help="Let this output (PIPELINE-SINK-0) receive the same bytes at the same position again (repeatable)."
        ),
    ] = None,
    as_json: Json = False,
    *,
    receive: ReceiveOptions,
    replication: ReplicationOptions,
) -> None:
    """Write each output to one file. Its transaction log lists the committed bytes (see `cat`)."""
    from procession.connectors.file_sink import run_file_sink

    with replication.host(directory) as host:
        run_file_sink(
            replication.place(directory),
            receive.listen,
            cookie=receive.cookie(),
            tls=receive.tls.load(),
            idempotent=idempotent or (),
            on_outcome=print_json if as_json else None,
            files=host.files,
        )


@sink_app.command("epochs")
@with_groups
def sink_epochs(
    directory: Directory,
    suffix: Annotated[str, typer.Option(help="Suffix of the file names, such as .csv.")] = ".data",
    empty: Annotated[bool, typer.Option("--empty", help="Write an empty file for an epoch without output.")] = False,
    as_json: Json = False,
    *,
    receive: ReceiveOptions,
    replication: ReplicationOptions,
) -> None:
    """Write one file per committed epoch, DIR/OUTPUT.epochs/POSITION-EPOCH.data. It appears at the commit."""
    from procession.connectors.epochs_sink import run_epochs_sink

    with replication.host(directory) as host:
        run_epochs_sink(
            replication.place(directory),
            receive.listen,
            suffix=suffix,
            is_empty_kept=empty,
            cookie=receive.cookie(),
            tls=receive.tls.load(),
            on_outcome=print_json if as_json else None,
            files=host.files,
        )


@sink_app.command("lanes")
@with_groups
def sink_lanes(
    directory: Directory, as_json: Json = False, *, receive: ReceiveOptions, replication: ReplicationOptions
) -> None:
    """Write sorted lanes, one file each, for `procession merge`. Their transaction logs list the committed bytes."""
    from procession.connectors.lane_sink import run_lane_sink

    with replication.host(directory) as host:
        run_lane_sink(
            replication.place(directory),
            receive.listen,
            cookie=receive.cookie(),
            tls=receive.tls.load(),
            on_outcome=print_json if as_json else None,
            files=host.files,
        )


@sink_app.command("stdout")
@with_groups
def sink_stdout(
    directory: Directory,
    in_doubt: Annotated[
        str,
        typer.Option(help="After a crash, repeat or skip the last piece, which may or may not have been printed."),
    ] = "repeat",
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object per line: instance, start, end, and the text (or base64)."),
    ] = False,
    *,
    receive: ReceiveOptions,
) -> None:
    """Print only committed output. A pipe has a weaker guarantee than a file: see docs/how-to/connectors.md."""
    from procession.connectors.stdout_sink import InDoubt, run_stdout_sink

    if in_doubt not in set(InDoubt):
        raise typer.BadParameter("choose one of repeat, skip", param_hint="--in-doubt")
    run_stdout_sink(
        directory,
        receive.listen,
        is_json=as_json,
        in_doubt=InDoubt(in_doubt),
        cookie=receive.cookie(),
        tls=receive.tls.load(),
    )


@sink_app.command("check")
def sink_check(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND...", help="The sink's command after --, with the placeholders {dir} and {listen}."
        ),
    ] = None,
    visible: Annotated[
        str | None,
        typer.Option(help="Command with {dir} and {instance} that prints the output as a reader sees it."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CASE", help="Only the cases whose name contains this text (repeatable)."),
    ] = None,
    is_listing: Annotated[bool, typer.Option("--list", help="List the cases and their short names.")] = False,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", show_default="a temporary directory", help="Work in this directory and keep it."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Run the conformance tests on a sink: commits, gaps, two workers, a crash at each step."""
    from procession.cli.sink_check import check_sink, list_cases

    if is_listing:
        list_cases(as_json=as_json)
        return
    if not command:
        raise typer.BadParameter("give the sink's command, after --", param_hint="COMMAND...")
    if not check_sink(command, visible, only or (), directory, as_json=as_json):
        raise typer.Exit(Status.UNCLEAN)
