"""The addresses at which a gateway listens, as stored in its directory.

Invariant: a gateway can be found by its directory. `gateway/server` writes the addresses; `gateway/control_client` and
the supervisor read them.
"""

from __future__ import annotations

import json
from pathlib import Path

from procession.address import SOCKET_FILE, Address, Endpoint, SocketFile, parse_address
from procession.errors import ConfigError
from procession.runtime.files import FileSystem
from procession.runtime.host import HOST, Host
from procession.runtime.host_files import HOST_FILES

ADDRESS_FILE = "gateway.json"
CONTROL_FILE = "control.sock"
"""The Unix socket for control in the gateway's directory."""


def starts(directory: Path, files: FileSystem = HOST_FILES) -> int:
    """Return the number of the last start of this directory's gateway."""
    try:
        return int(json.loads(files.read(directory / ADDRESS_FILE))["starts"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def next_start(directory: Path, host: Host = HOST) -> int:
    """Return the number of this start, which is above those of all earlier starts. It is at least the current time,
    because the directory may be an older copy."""
    return max(starts(directory, host.files) + 1, int(host.wall_clock_s()))


def addresses(directory: Path, files: FileSystem = HOST_FILES) -> dict[str, Address]:
    """Return the addresses at which this directory's gateway listens or last listened: `listen`, `control` unless it is
    a socket file, and `flight` if the log is served. Empty if it never listened."""
    try:
        document = json.loads(files.read(directory / ADDRESS_FILE))
        listeners = {port: str(document.get(port) or "") for port in ("listen", "control", "flight")}
        ports = {port: at for port, at in listeners.items() if at and not at.startswith(SOCKET_FILE)}
        return {port: parse_address(at) for port, at in ports.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError):
        return {}


def control_of(directory: Path) -> Endpoint:
    """Return the control address of this directory's gateway. Raises ConnectionError if it was never started. A socket
    file is expected in this directory, even if the directory was moved."""
    try:
        control = str(json.loads((directory / ADDRESS_FILE).read_bytes())["control"])
        return SocketFile(directory / CONTROL_FILE) if control.startswith(SOCKET_FILE) else parse_address(control)
    except (OSError, ValueError, KeyError, TypeError, ConfigError):
        raise ConnectionError("it was never started") from None
