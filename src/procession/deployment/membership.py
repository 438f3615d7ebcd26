"""Membership: lists, adds and removes the gateways of a running pipeline.

Invariant: the leading gateway decides; this module only sends requests to it. Used by `procession gateways`; uses
`gateway/control_client`, and a supervisor for a gateway that is added.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from procession.address import SOCKET_FILE, parse_address
from procession.deployment.local_pipeline import COMMAND, announced_in
from procession.deployment.part_arguments import GATEWAY, gateway_arguments
from procession.deployment.pipeline_replicas import check_unreplicated
from procession.deployment.settings import Settings
from procession.driver.stream_order import order_arguments_of
from procession.errors import ConfigError, UsageError
from procession.gateway.control_client import ControlClient
from procession.gateway.input_pins import pin_new_gateway
from procession.gateway.listen_address import ADDRESS_FILE
from procession.supervisor.part import Part
from procession.supervisor.supervisor import Supervisor
from procession.tls import ClientTls

PATIENCE_S = 10.0
POLL_INTERVAL_S = 0.2
TABLE_CHARS = 110


def leader_of(directory: Path | None, address: str | None) -> str | Path:
    """Return the leader's address, or the directory with the leader's address."""
    if (directory is None) == (address is None):
        raise UsageError("It is not clear which pipeline is meant.", next_step="Give either --dir or --leader.")
    return address if address is not None else directory / GATEWAY  # type: ignore[operator]


def listed(leader: str | Path, cookie: bytes, tls: ClientTls | None = None) -> list[dict[str, Any]]:
    with ControlClient(leader, cookie, PATIENCE_S, tls=tls) as client:
        return client.gateways()


def table(gateways: list[dict[str, Any]]) -> str:
    shown = Table(show_edge=False)
    for column in ("name", "standing", "connected", "streams", "producers send to", "driver asks at"):
        shown.add_column(column, no_wrap=True)
    for gateway in gateways:
        connected = "yes" if gateway["is_connected"] else "no"
        control = "its machine only" if gateway["control"].startswith(SOCKET_FILE) else gateway["control"]
        shown.add_row(
            gateway["name"], gateway["standing"], connected, str(gateway["streams"]), gateway["listen"], control
        )
    console = Console(width=TABLE_CHARS)
    with console.capture() as captured:
        console.print(shown)
    return captured.get().rstrip()


def let_go(leader: str | Path, cookie: bytes, name: str, wait_s: float, tls: ClientTls | None = None) -> None:
    """Ask a gateway to leave, and wait until it has left."""
    with ControlClient(leader, cookie, PATIENCE_S, tls=tls) as client:
        client.leave(name)
        deadline = time.monotonic() + wait_s
        while any(gateway["name"] == name for gateway in client.gateways()):
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"Gateway {name!r} is leaving, but has not left after {wait_s:g} seconds.",
                    next_step="Check that the gateway and the driver run: it leaves when its records are committed.",
                )
            time.sleep(POLL_INTERVAL_S)


def next_name(used: Iterable[str]) -> str:
    """Return a name that no gateway of the pipeline ever had, because a departed gateway may return with its name."""
    numbers = (name.removeprefix(f"{GATEWAY}-") for name in used)
    return f"{GATEWAY}-{1 + max((int(number) for number in numbers if number.isdecimal()), default=0)}"


def run_added_gateway(
    directory: Path, name: str, listen: str, metrics: str | None, settings: Settings, say: Callable[[str], None]
) -> None:
    """Run one more gateway of the pipeline in this directory until it has left, or until asked to stop.

    `metrics` is the address of its metrics; the setting of that name is for the gateways that `run` starts."""
    for address in filter(None, (listen, metrics)):
        parse_address(address)
    if not (directory / GATEWAY / ADDRESS_FILE).exists():
        raise ConfigError(
            f"The directory {directory} is not that of a pipeline that was run.", next_step="Check --dir."
        )
    check_unreplicated(directory)
    with ControlClient(directory / GATEWAY, settings.control_cookie, PATIENCE_S, tls=settings.client_tls) as client:
        used = {*(gateway["name"] for gateway in client.gateways()), *client.departed()}
        order = order_arguments_of(client.order())
    part = name or next_name(used)
    pin_new_gateway(directory / GATEWAY, directory / part)
    with Supervisor(directory / "logs", say=say) as supervisor:
        argv = (*COMMAND, *gateway_arguments(settings, directory, part, listen), *order)
        argv += ("--metrics", metrics) if metrics else ()
        supervisor.start(Part(part, argv, is_ready=announced_in(directory / part / ADDRESS_FILE)))
        if supervisor.wait_ready():
            say(f"{part} accepts records; Ctrl-C stops it, `procession gateways leave {part}` removes it")
        supervisor.wait_done(part)
        supervisor.stop()
