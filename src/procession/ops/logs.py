"""Logs: what a part writes about itself, to the standard error stream, which the supervisor keeps in a file.

The one rule: quiet unless asked. `PROCESSION_LOG=debug` shows every frame, with a gutter (`<` in, `>` out, `=` state,
`!` error); secrets are in none of them. Before it the command line; after it every part.
"""

from __future__ import annotations

import logging
import os
import sys

import structlog

VARIABLE = "PROCESSION_LOG"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def keep_logs() -> None:
    """Set up the log of this process."""
    level = LEVELS.get(os.environ.get(VARIABLE, "info").lower(), logging.INFO)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0),
        ],
        cache_logger_on_first_use=True,
    )
