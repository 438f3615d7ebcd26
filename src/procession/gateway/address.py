"""Where a gateway listens, as written down in its directory.

The one rule: who knows a gateway's directory can find it. `server` writes; `client` and the supervisor read.
"""

from __future__ import annotations

import json
from pathlib import Path

from procession.address import Address, parse_address
from procession.errors import ConfigError

ADDRESS_FILE = "gateway.json"


def starts(directory: Path) -> int:
    """How often the gateway of this directory has said where it listens."""
    try:
        return int(json.loads((directory / ADDRESS_FILE).read_bytes())["starts"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def addresses(directory: Path) -> dict[str, Address]:
    """Where the gateway of this directory listens, or last listened: `listen`, `control` and, if it serves
    its log, `flight`; empty if it never did."""
    try:
        document = json.loads((directory / ADDRESS_FILE).read_bytes())
        doors = [door for door in ("listen", "control", "flight") if document.get(door) or door != "flight"]
        return {door: parse_address(str(document[door])) for door in doors}
    except (OSError, ValueError, KeyError, TypeError, ConfigError):
        return {}
