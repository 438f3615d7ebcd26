"""How a refusal crosses the control connection: `control` names an error's class, `control_client` raises it again."""

from __future__ import annotations

from procession.errors import ConfigError, DiskError, FencedError, ProcessionError, RemoteProtocolError, StorageError


class GarbledRequest(RemoteProtocolError):
    """What came is no request at all: it was damaged on its way, and is asked again."""


KINDS: dict[type[ProcessionError], str] = {
    FencedError: "fenced",
    StorageError: "storage",
    DiskError: "disk",
    ConfigError: "config",
    RemoteProtocolError: "invalid",
    GarbledRequest: "garbled",
}
