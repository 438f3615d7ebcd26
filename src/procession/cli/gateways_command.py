"""The commands `procession gateways …`: list, add and remove gateways of a running pipeline.

As in `cli/main`, they only parse and print; `deployment/membership` sends the requests to the leader.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from procession.cli.command_options import ControlCookieFile, CookieFile, with_groups
from procession.cli.tls_options import ClientTlsOptions

gateways_app = typer.Typer(help="List, add and remove gateways of a running pipeline.", no_args_is_help=True)

Pipeline = Annotated[Path | None, typer.Option("--dir", help="The pipeline's directory.")]
Leader = Annotated[
    str | None,
    typer.Option("--leader", metavar="HOST:PORT", help="Control address of the first gateway, instead of --dir."),
]


@gateways_app.command("list")
@with_groups
def list_gateways(
    directory: Pipeline = None,
    leader: Leader = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    control_cookie_file: ControlCookieFile = None,
    *,
    tls: ClientTlsOptions,
) -> None:
    """List the gateways, their addresses, and how many streams each one holds."""
    from procession.deployment.cookies import control_cookie
    from procession.deployment.membership import leader_of, listed, table

    at = leader_of(directory, leader)
    found = listed(at, control_cookie(at, control_cookie_file), tls.load())
    print(json.dumps({"gateways": found}) if as_json else table(found))


@gateways_app.command()
def join(
    directory: Annotated[Path, typer.Option("--dir", help="The pipeline's directory.")],
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", show_default="the next number", help="Name of the new gateway.")
    ] = "",
    listen: Annotated[str, typer.Option(help="Address for producers, HOST:PORT.")] = "127.0.0.1:0",
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address of the Prometheus metrics. Port 0 takes a free port."),
    ] = None,
    cookie_file: CookieFile = None,
    control_cookie_file: ControlCookieFile = None,
) -> None:
    """Start one more gateway on this machine, and restart it if it dies, until it leaves or Ctrl-C."""
    from procession.deployment.membership import run_added_gateway
    from procession.deployment.settings import load_settings

    settings = load_settings(
        cookie_file=cookie_file.resolve() if cookie_file else None,
        control_cookie_file=control_cookie_file.resolve() if control_cookie_file else None,
    )
    run_added_gateway(directory.resolve(), name, listen, metrics, settings, print)


@gateways_app.command()
@with_groups
def leave(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the gateway, as `gateways list` shows it.")],
    directory: Pipeline = None,
    leader: Leader = None,
    wait_s: Annotated[float, typer.Option(min=0, help="Seconds to wait until the gateway has left.")] = 60.0,
    control_cookie_file: ControlCookieFile = None,
    *,
    tls: ClientTlsOptions,
) -> None:
    """Remove a gateway: it accepts no more records, redirects its producers, and exits when all is committed."""
    from procession.deployment.cookies import control_cookie
    from procession.deployment.membership import leader_of, let_go

    at = leader_of(directory, leader)
    let_go(at, control_cookie(at, control_cookie_file), name, wait_s, tls.load())
    print(f"{name} has left")


@gateways_app.command()
@with_groups
def abandon(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the gateway, as `gateways list` shows it.")],
    directory: Annotated[Path, typer.Option("--dir", help="The pipeline's directory, with the driver's checkpoint.")],
    despite_replicas: Annotated[
        bool, typer.Option("--despite-replicas", help="Do not restore the gateway from its replicas.")
    ] = False,
    wait_s: Annotated[
        float, typer.Option(min=0, help="Seconds to wait until a running driver continues without the gateway.")
    ] = 60.0,
    control_cookie_file: ControlCookieFile = None,
    *,
    tls: ClientTlsOptions,
) -> None:
    """Give up a gateway that is lost for good. Its producers send again at other gateways what is not committed."""
    from procession.deployment.cookies import control_cookie
    from procession.deployment.gateway_loss import abandon_gateway, is_carried_out

    cookie = control_cookie(directory / "gateway", control_cookie_file)
    fence = abandon_gateway(directory.resolve(), name, cookie, tls.load(), despite_replicas=despite_replicas)
    print(f"{name} is abandoned: nothing of its log is read any more")
    if is_carried_out(directory.resolve(), fence, wait_s):
        print("a driver continues without it")
    else:
        print("no driver has continued yet: the next one that starts carries it out")
