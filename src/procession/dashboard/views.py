"""Answers the page's requests besides the live feed: dead letters, logs, the largest states, settings.

Invariant: every answer is bounded, and only files of the pipeline are read: a name from a request is compared with the
names that exist, and never becomes part of a path.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import re
from collections import deque
from pathlib import Path
from typing import Any

from procession.deployment.run_details import read_details
from procession.errors import ProcessionError
from procession.verify.committed_states import committed_states
from procession.verify.dead_letter_file import letters_in

LETTERS_SHOWN = 50
LETTERS_READ_MAX = 200_000
"""Maximum number of dead letters that are read to find the latest ones."""
LOG_BYTES = 256 * 1024
"""Number of bytes that are read at the end of a log."""
LOG_LINES = 300
STATES_SHOWN = 20
STATES_READ_MAX = 100_000
"""Maximum number of keys that are read to find the largest states."""
TEXT_MAX = 2_000
"""Maximum number of characters of a payload or state that are shown."""

EVENT = re.compile(r"^(?P<at>\S+Z) \[(?P<level>\w+) *\] (?P<event>[a-z_]+\.[a-z_0-9]+)(?P<fields>.*)$")
SECRET = re.compile("cookie|secret|key|passw|pwd|token|credential")


def letters(directory: Path) -> dict[str, Any]:
    """Return the last dead letters, the newest first. Raises a ProcessionError if they cannot be read."""
    place = read_details(directory).get("dead_letters")
    if place is None:
        return {"letters": [], "why": "The pipeline has no dead letters, or they cannot be read here."}
    found = itertools.islice(letters_in(Path(place["directory"]), place["instance"]), LETTERS_READ_MAX)
    last = deque(found, maxlen=LETTERS_SHOWN)
    return {
        "letters": [
            {
                "number": letter.number,
                "stream_id": str(letter.stream_id),
                "message_id": str(letter.message_id),
                "stage": letter.stage,
                "error": letter.error[:TEXT_MAX],
                "payload": letter.payload[:TEXT_MAX].decode(errors="replace"),
                "bytes": len(letter.payload),
            }
            for letter in reversed(last)
        ]
    }


def log_parts(directory: Path) -> list[str]:
    """Return the parts that have a log."""
    return sorted(path.stem for path in (directory / "logs").glob("*.log") if not path.stem.endswith(".old"))


def log_events(directory: Path, part: str) -> dict[str, Any]:
    """Return the last lines of a part's log, the newest first. Log events are split into their fields."""
    parts = log_parts(directory)
    if part not in parts:
        return {"parts": parts, "lines": []}
    with (directory / "logs" / f"{parts[parts.index(part)]}.log").open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    if size > LOG_BYTES:
        del lines[:1]
    return {"parts": parts, "lines": [_event(line) for line in reversed(lines[-LOG_LINES:]) if line.strip()]}


def _event(line: str) -> dict[str, str]:
    if line.startswith("{"):
        try:
            fields = json.loads(line)
            event, level, at = (str(fields.pop(name, "")) for name in ("event", "level", "timestamp"))
            return {"at": at, "level": level, "event": event, "text": json.dumps(fields)[:TEXT_MAX]}
        except (ValueError, AttributeError):
            pass
    found = EVENT.match(line)
    if found is None:
        level = "error" if line.startswith("error: ") else "info" if line.startswith("note: ") else ""
        return {"at": "", "level": level, "event": "", "text": line[:TEXT_MAX]}
    return {**{name: found[name] for name in ("at", "level", "event")}, "text": found["fields"].strip()[:TEXT_MAX]}


def largest_states(directory: Path, stage: str) -> dict[str, Any]:
    """Return the keys of a stage with the largest states, by the length of the state as JSON."""
    found = committed_states(directory)
    if stage not in found:
        return {"states": [], "why": "No stage of this name has states."}
    rows = (
        (len(text), str(row.get("key")), text)
        for row in itertools.islice(found[stage].scan(), STATES_READ_MAX)
        for text in [json.dumps({name: value for name, value in row.items() if name != "key"}, default=str)]
    )
    largest = heapq.nlargest(STATES_SHOWN, rows)
    return {"states": [{"key": key, "size": size, "state": text[:TEXT_MAX]} for size, key, text in largest]}


def settings(directory: Path) -> dict[str, Any]:
    """Return the settings of the run. They contain the files of secrets, not the secrets."""
    found = read_details(directory)
    kept = {name: value for name, value in found.get("settings", {}).items() if name != "conf"}
    conf = {
        name: "…" if SECRET.search(name.lower()) else value
        for name, value in (found.get("settings", {}).get("conf") or {}).items()
    }
    return {"app": found.get("app"), "settings": kept | ({"conf": conf} if conf else {})}


def plan(directory: Path) -> dict[str, Any]:
    """Return the plan that the driver runs. Empty if there is none yet."""
    try:
        found = json.loads((directory / "plan.json").read_text())
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def sentence_of(error: BaseException) -> str:
    return error.sentence if isinstance(error, ProcessionError) else str(error)
