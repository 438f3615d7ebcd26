"""Manages the log file of a supervised part, which is bounded in size, and returns its last lines.

Invariant: the part writes to the file itself, so no pipe can fill up or break, even if the supervisor dies. The last
lines are shown to the user when the part has ended.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from procession.log_format import failure_in, noted_in

LOG_BYTES_MAX = 16 * 1024 * 1024
TAIL_BYTES_MAX = 64 * 1024
TAIL_LINES_MAX = 20


class PartLog:
    """The log file of one part across restarts, and one older file."""

    def __init__(self, path: Path, bytes_max: int = LOG_BYTES_MAX) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._start = 0
        self._noted = 0

    def open(self) -> int:
        """Return a descriptor for appending to the file, for the next start. The caller closes it."""
        self.trim()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._start = self._noted = os.fstat(descriptor).st_size
        return descriptor

    def notes(self) -> list[str]:
        """Return the part's `note:` lines since the last call."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size <= self._noted:
            self._noted = size
            return []
        with self.path.open("rb") as file:
            file.seek(max(self._noted, size - TAIL_BYTES_MAX))
            text, _, rest = file.read(size - file.tell()).rpartition(b"\n")
        self._noted = size - len(rest)
        lines = text.decode(errors="replace").splitlines()
        return [note for line in lines if (note := noted_in(line)) is not None]

    def trim(self) -> None:
        """If the file is over its limit, copy it to the older file and empty it. The part continues to append to the
        same file."""
        if not self.path.exists() or self.path.stat().st_size <= self._bytes_max:
            return
        shutil.copyfile(self.path, self.path.with_suffix(".old.log"))
        os.truncate(self.path, 0)

    def last_lines(self) -> str:
        """Return the last message since the newest start."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = self._start if self._start <= size else 0
                file.seek(max(start, size - TAIL_BYTES_MAX))
                return last_lines(file.read().decode(errors="replace"))
        except FileNotFoundError:
            return ""


def last_lines(text: str) -> str:
    """Return the last error line with the indented lines below it. If there is no error line, return the last
    lines."""
    lines = text.rstrip().splitlines()
    errors = [(number, message) for number, line in enumerate(lines) if (message := failure_in(line)) is not None]
    if not errors:
        return "\n".join(lines[-TAIL_LINES_MAX:])
    first, message = errors[-1]
    end = next((n for n in range(first + 1, len(lines)) if lines[n] and not lines[n][0].isspace()), len(lines))
    return "\n".join([message, *lines[first + 1 : end]]).rstrip()
