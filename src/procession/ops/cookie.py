"""The cookie: the secret that connectors and gateways show each other, read from a file so that no command line and no
log has it. Before it the command line; after it the parts. Apart from the settings, because every connector needs it.
"""

from __future__ import annotations

from pathlib import Path

from procession.errors import ConfigError


def read_cookie(path: Path | None) -> bytes:
    """The secret in a file, without the newline at its end; empty if there is no file."""
    if path is None:
        return b""
    try:
        cookie = path.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(
            f"the cookie file {path} cannot be read: {error.strerror}", next_step="give a file that this user may read"
        ) from error
    if not cookie:
        raise ConfigError(f"the cookie file {path} is empty", next_step="put a secret into it, or give no cookie file")
    return cookie
