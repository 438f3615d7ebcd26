"""Logs: what a part writes about itself, to the standard error stream, which the supervisor keeps in a file.

The one rule: quiet unless asked. `PROCESSION_LOG=debug` shows every frame; secrets are in none of them. Before it the
command line; after it every part.
"""

from __future__ import annotations

from procession.log_format import configure


def keep_logs() -> None:
    """Set up the log of this process."""
    configure("info")
