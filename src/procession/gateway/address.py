"""Where a gateway listens: addresses as text, as sockets, and as written down in its directory.

The one rule: who knows a gateway's directory can find it. `server` binds and writes; `client` and the supervisor read.
"""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path

from procession.errors import ConfigError

ADDRESS_FILE = "gateway.json"


def parse_address(text: str) -> tuple[str, int]:
    """The host and the port of "host:port"; an IPv6 host stands in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{text!r} is not an address.", next_step="Write it as host:port, e.g. 127.0.0.1:7100.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def addresses(directory: Path) -> dict[str, str]:
    """Where the gateway of this directory listens, or last listened: `listen`, `control`; empty if it never did."""
    try:
        document = json.loads((directory / ADDRESS_FILE).read_bytes())
        return {"listen": str(document["listen"]), "control": str(document["control"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def bind(address: str, previous: str | None) -> socket.socket:
    """A listening socket. For port 0 the port of the last time is tried first, so that peers find us again."""
    host, port = parse_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if port == 0 and previous is not None and parse_address(previous)[0] == host:
        with contextlib.suppress(OSError):
            return socket.create_server((host, parse_address(previous)[1]), family=family)
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"Cannot listen on {address}: {error.strerror or error}.",
            next_step="Stop what holds this port, or choose another (port 0 takes any that is free).",
            address=address,
        ) from error
