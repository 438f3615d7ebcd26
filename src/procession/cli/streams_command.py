"""The command `procession streams`: lists the streams of a pipeline's gateways.

As in `cli/main`, it only parses; `cli/streams_table` asks the gateways and prints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from procession.cli.command_options import ControlCookieFile, with_groups
from procession.cli.tls_options import ClientTlsOptions


@with_groups
def streams(
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            show_default="the one pipeline in .procession",
            help="Directory of a pipeline or a gateway.",
        ),
    ] = None,
    gateway: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="A gateway's control address, instead of a directory.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    every_s: Annotated[float, typer.Option(min=0.1, help="With --watch: seconds between two updates.")] = 2.0,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the answer of a gateway.")] = 5.0,
    control_cookie_file: ControlCookieFile = None,
    *,
    tls: ClientTlsOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """List the streams of a running pipeline or gateway: state, owner, positions, lag and rate."""
    from procession.cli.streams_table import place, show
    from procession.deployment.cookies import control_cookie
    from procession.exit_status import hear_interrupts

    hear_interrupts()
    at = place(directory, gateway)
    show(
        at,
        cookie=control_cookie(at, control_cookie_file),
        timeout_s=timeout_s,
        every_s=every_s if watch else None,
        as_json=as_json,
        tls=tls.load(),
    )
