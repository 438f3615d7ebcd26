"""How a refusal crosses the control connection: `control` names an error's class, `client` raises it again."""

from __future__ import annotations

from procession.errors import ConfigError, FencedError, ProcessionError, RemoteProtocolError, StorageError

KINDS: dict[type[ProcessionError], str] = {
    FencedError: "fenced",
    StorageError: "storage",
    ConfigError: "config",
    RemoteProtocolError: "invalid",
}
