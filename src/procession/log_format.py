"""The format of log events: one line each, as text or as JSON, to the standard error stream.

Invariant: an event has a name that can be searched for, `part.what_happened`, a level and fields; sentences go into
fields. No event contains a secret. `PROCESSION_LOG` is the lowest level that is written, `PROCESSION_LOG_FORMAT` is
`text` or `json`. Commands write events from `info` on. A program that only uses the SDK writes events from `warning`
on.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import textwrap
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import structlog

from procession.errors import ProcessionError

LEVEL_VARIABLE = "PROCESSION_LOG"
FORMAT_VARIABLE = "PROCESSION_LOG_FORMAT"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


NOTE_PREFIX = "note: "
"""Prefix of a line for people, from a part that continues to run."""
ERROR_PREFIX = "error: "
NOTED = "command.noted"
"""The name of the log event for a note, for logs in JSON."""
FAILED = "command.failed"


def note(sentence: str) -> None:
    """Print a sentence for people while the command continues."""
    _print_event(NOTE_PREFIX + sentence, NOTED, "info", {"sentence": sentence})


def print_error(error: ProcessionError) -> None:
    """Print the error that ended the command: the sentence, the next step, then the indented traceback."""
    trace = str(error.fields.get("trace", "")).rstrip()
    texts = {"sentence": error.sentence, "next_step": error.next_step, "trace": trace}
    fields = {name: text for name, text in texts.items() if text}
    _print_event(f"{ERROR_PREFIX}{error.explain()}{_below(trace)}", FAILED, "error", fields)


def print_crash(trace: str) -> None:
    """Print the whole traceback of a bug that ended the command."""
    last = (trace.strip().splitlines() or [""])[-1]
    _print_event(trace.rstrip(), FAILED, "error", {"sentence": last, "trace": trace.rstrip()})


def noted_in(line: str) -> str | None:
    """Return the note in a log line, or None."""
    if line.startswith(NOTE_PREFIX):
        return line.removeprefix(NOTE_PREFIX)
    event = _event_in(line, NOTED)
    return None if event is None else str(event.get("sentence", ""))


def failure_in(line: str) -> str | None:
    """Return the error in a log line that ended a command, or None. In text, the lines below belong to it."""
    if line.startswith(ERROR_PREFIX):
        return line.removeprefix(ERROR_PREFIX)
    event = _event_in(line, FAILED)
    if event is None:
        return None
    error = ProcessionError(str(event.get("sentence", "")), next_step=str(event.get("next_step", "")))
    return error.explain() + _below(str(event.get("trace", "")))


def _event_in(line: str, name: str) -> dict[str, Any] | None:
    if not line.startswith("{") or name not in line:
        return None
    try:
        event = json.loads(line)
    except ValueError:  # truncated, or not a log event of this package
        return None
    return event if isinstance(event, dict) and event.get("event") == name else None


def _below(trace: str) -> str:
    return "\n" + textwrap.indent(trace, "  ") if trace else ""


def _is_json() -> bool:
    return os.environ.get(FORMAT_VARIABLE, "").lower() == "json"


def _print_event(text: str, event: str, level: str, fields: dict[str, str]) -> None:
    if _is_json():
        text = json.dumps({**fields, "event": event, "level": level, "timestamp": datetime.now(UTC).isoformat()})
    print(text, file=sys.stderr, flush=True)


def configure(default_level: str, *, is_ours: bool = True) -> None:
    """Write events of this level and above, unless the environment sets another level.

    In a user's program the stream is looked up at each event, because the program may replace it."""
    level = LEVELS.get(os.environ.get(LEVEL_VARIABLE, "").lower(), LEVELS[default_level])
    renderer: structlog.typing.Processor = structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0)
    if _is_json():
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
    """In a user's program: write only warnings, unless it has configured structlog, or the environment sets a level.

    By default structlog would print everything to the standard output."""
    if not structlog.is_configured():
        configure("warning", is_ours=False)


def print_uncaught_as_sentences() -> None:
    """In a user's program: print an uncaught ProcessionError as its sentence and next step, without a traceback unless
    `PROCESSION_LOG=debug` is set. A hook of the program itself is kept."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_uncaught


def _print_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, ProcessionError) and os.environ.get(LEVEL_VARIABLE, "").lower() != "debug":
        print_error(error)
    else:
        sys.__excepthook__(kind, error, trace)


def keep_logs() -> None:
    """Set up the log of a command of this package. The supervisor writes the standard error stream to a file."""
    configure("info")
