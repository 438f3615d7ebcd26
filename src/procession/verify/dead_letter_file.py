"""Reads the dead letters of a pipeline from the committed output of its dead-letter sink.

Invariant: a letter's number is the number of its line, from 1 on, so it never changes. Uncommitted letters are not
returned. Letters are read one by one, so memory is bounded. Used by `procession letters`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from procession.errors import StorageError
from procession.verify.lines import split_lines
from procession.verify.sink_outputs import committed_output, written_in


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A record that a stage could not process."""

    number: int
    stream_id: int
    message_id: int
    stage: str
    error: str
    event_time: int
    key: bytes
    payload: bytes


def letters_in(directory: Path, instance: str) -> Iterator[StoredLetter]:
    """Yield the letters of a dead-letter sink, `PIPELINE-SINK`, in its directory; none if the sink has written
    nothing there."""
    if not written_in(directory, instance):
        return
    lines = (line for lines, _ in split_lines(committed_output(directory, instance)) for line in lines)
    for number, line in enumerate(lines, start=1):
        yield _letter(number, line, directory)


def _letter(number: int, line: bytes, directory: Path) -> StoredLetter:
    try:
        found = json.loads(line)
        return StoredLetter(
            number,
            int(found["stream_id"]),
            int(found["message_id"]),
            str(found["stage"]),
            str(found["error"]),
            int(found.get("event_time", 0)),
            base64.b64decode(found.get("key", ""), validate=True),
            base64.b64decode(found["payload"], validate=True),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StorageError(
            f"Line {number} of the dead letters in {directory} is not a dead letter: {error}.",
            next_step="Restore the file from a copy, or handle its letters by hand.",
        ) from error
