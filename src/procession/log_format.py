"""The format of log events: one line each, as text or as JSON, to the standard error stream.

The one rule: an event has a name that can be searched for, `part.what_happened`, a level and fields; sentences go into
fields. `PROCESSION_LOG` is the least level that is written, `PROCESSION_LOG_FORMAT` is `text` or `json`. A program that
only uses the SDK and has not configured structlog itself gets warnings and errors.
"""

from __future__ import annotations

import logging
import os
import sys
from types import TracebackType

import structlog

from procession.errors import ProcessionError

LEVEL_VARIABLE = "PROCESSION_LOG"
FORMAT_VARIABLE = "PROCESSION_LOG_FORMAT"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(default_level: str, *, is_ours: bool = True) -> None:
    """Write events of this level and above, unless the environment asks for another one. In a program that is not ours
    the stream is looked up at each event: it may be replaced meanwhile."""
    level = LEVELS.get(os.environ.get(LEVEL_VARIABLE, "").lower(), LEVELS[default_level])
    renderer: structlog.typing.Processor = structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0)
    if os.environ.get(FORMAT_VARIABLE, "").lower() == "json":
        renderer = structlog.processors.JSONRenderer(default=str)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        cache_logger_on_first_use=is_ours,
    )


def keep_quiet() -> None:
    """In a program that is not ours: warnings only, unless it has configured its logs, or the environment asks for
    more. (structlog's own way is to print everything, to the standard output.)"""
    if not structlog.is_configured():
        configure("warning", is_ours=False)


def tell_uncaught_as_sentences() -> None:
    """In a program that is not ours: an error of ours that nobody catches ends it with its sentence and next step, not
    with a trace, unless `PROCESSION_LOG=debug` asks for one. Whatever hook the program has itself stays."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _tell_uncaught


def _tell_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, ProcessionError) and os.environ.get(LEVEL_VARIABLE, "").lower() != "debug":
        print(f"error: {error.explain()}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)
