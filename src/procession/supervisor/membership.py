"""The gateways of a running pipeline, as an operator lists, adds and removes them.

The one rule: the leading gateway decides; this module only asks it. Used by `procession gateways`; uses
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
from procession.driver.stream_order import order_words_of
from procession.errors import ConfigError, UsageError
from procession.gateway.control_client import ControlClient
from procession.gateway.listen_address import ADDRESS_FILE
from procession.supervisor.local_pipeline import COMMAND, GATEWAY, announced_in, gateway_words
from procession.supervisor.part import Part
from procession.supervisor.settings import Settings
from procession.supervisor.supervisor import Supervisor
from procession.tls import ClientTls

PATIENCE_S = 10.0
LOOK_S = 0.2
TABLE_CHARS = 110


def leader_of(directory: Path | None, address: str | None) -> str | Path:
    """The leader's address, or the directory that has it."""
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
    for one in gateways:
        connected = "yes" if one["is_connected"] else "no"
        asked_at = "its machine only" if one["control"].startswith(SOCKET_FILE) else one["control"]
        shown.add_row(one["name"], one["standing"], connected, str(one["streams"]), one["listen"], asked_at)
    console = Console(width=TABLE_CHARS)
    with console.capture() as captured:
        console.print(shown)
    return captured.get().rstrip()


def let_go(leader: str | Path, cookie: bytes, name: str, wait_s: float, tls: ClientTls | None = None) -> None:
    """Asks a gateway to leave, and waits until it has left."""
    with ControlClient(leader, cookie, PATIENCE_S, tls=tls) as client:
        client.leave(name)
        deadline = time.monotonic() + wait_s
        while any(one["name"] == name for one in client.gateways()):
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"Gateway {name!r} is leaving, and not gone after {wait_s:g} seconds.",
                    next_step="See that gateway and driver run: it goes when all that it took is committed.",
                )
            time.sleep(LOOK_S)


def next_name(used: Iterable[str]) -> str:
    """A name with a number that no gateway of the pipeline ever had: a departed one may come back under its name."""
    numbers = (name.removeprefix(f"{GATEWAY}-") for name in used)
    return f"{GATEWAY}-{1 + max((int(number) for number in numbers if number.isdecimal()), default=0)}"


def run_one_more(
    directory: Path, name: str, listen: str, metrics: str | None, settings: Settings, say: Callable[[str], None]
) -> None:
    """Run one more gateway of the pipeline in this directory until it has left, or until asked to stop. The setting
    `metrics` says where the pipeline's own gateways tell theirs, so this one is told apart."""
    for address in filter(None, (listen, metrics)):
        parse_address(address)
    if not (directory / GATEWAY / ADDRESS_FILE).exists():
        raise ConfigError(f"{directory} is not the directory of a pipeline that was run.", next_step="Check --dir.")
    with ControlClient(directory / GATEWAY, settings.control_cookie, PATIENCE_S, tls=settings.client_tls) as client:
        used = {*(one["name"] for one in client.gateways()), *client.departed()}
        order = order_words_of(client.order())
    part = name or next_name(used)
    with Supervisor(directory / "logs", say=say) as supervisor:
        argv = (*COMMAND, *gateway_words(settings, directory, part, listen), *order)
        argv += ("--metrics", metrics) if metrics else ()
        supervisor.start(Part(part, argv, is_ready=announced_in(directory / part / ADDRESS_FILE)))
        if supervisor.wait_ready():
            say(f"{part} takes records now; Ctrl-C stops it, `procession gateways leave {part}` lets it go")
        supervisor.wait_done(part)
        supervisor.stop()
