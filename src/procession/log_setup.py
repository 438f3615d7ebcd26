"""Log setup of our commands: events go to the standard error stream, which the supervisor writes to a file.

Invariant: the default level is `info`. `PROCESSION_LOG=debug` logs every frame; no event contains a secret.
"""

from __future__ import annotations

from procession.log_format import configure


def keep_logs() -> None:
    """Set up the log of this process."""
    configure("info")
