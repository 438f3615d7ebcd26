"""The report of a source: its progress as a value, for people or programs.

Invariant: reporting has no other effect. Text and JSON lines go to standard error. With `--json`, the result of a
program goes to its standard output. `sdk/source_client` makes the reports.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

LINE_INTERVAL_S = 5.0
"""Time between two progress lines in a pipe, a file or a log."""


@dataclass(frozen=True, slots=True)
class Report:
    """The progress of a source."""

    state: str
    """One of `connecting`, `sending`, `waiting for credits`, `waiting for commits` or `done`."""
    streams: int
    streams_ended: int
    sent: int
    """Records sent, including repetitions."""
    sent_bytes: int
    acknowledged: int
    """Records that are committed."""
    unacknowledged: int
    """Number of records sent and not yet known to be committed, without ephemeral records."""
    ephemeral: int
    """Number of ephemeral records sent. These are never acknowledged."""
    records_per_s: float
    """Records sent per second since the previous report."""
    sessions: int

    @property
    def is_done(self) -> bool:
        return self.state == "done"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "records_per_s": round(self.records_per_s, 1), "is_done": self.is_done}

    def line(self) -> str:
        streams = f", {self.streams_ended} of {self.streams} streams ended" if self.streams != 1 else ""
        committed = f", committed {self.acknowledged:,}" if self.ephemeral < max(1, self.sent) else ""
        line = f"sent {self.sent:,}{committed}, {self.records_per_s:,.0f} records/s{streams}"
        return line if self.state == "sending" else f"{line}, {self.state}"


class SourceReporter:
    """Shows reports. A terminal shows one line that changes; other outputs get a line at intervals."""

    def __init__(self, *, is_json: bool = False, beside: Callable[[Report], None] | None = None) -> None:
        self._is_json = is_json
        self._beside = beside
        self._is_changing = sys.stderr.isatty() and not is_json
        self._next_s = time.monotonic() + LINE_INTERVAL_S
        self._latest: Report | None = None

    def __call__(self, report: Report) -> None:
        self._latest = report
        if self._beside:
            self._beside(report)
        if self._is_changing:
            print(f"\r\x1b[K{report.line()}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() >= self._next_s and not report.is_done:
            self._next_s = time.monotonic() + LINE_INTERVAL_S
            line = json.dumps(report.as_dict()) if self._is_json else report.line()
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Show the final report, whether or not the source has finished."""
        if self._is_changing and self._latest:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        if self._latest is None:
            return
        if self._is_json:
            print(json.dumps(self._latest.as_dict()), flush=True)
        else:
            print(_last_word(self._latest), file=sys.stderr, flush=True)


def _last_word(report: Report) -> str:
    rest = "" if report.is_done else "; stopped before the end"
    if report.unacknowledged and not report.is_done:
        rest += f", {_records(report.unacknowledged)} sent and not acknowledged"
    if report.ephemeral:
        return f"{_records(report.ephemeral)} sent, by best effort{rest}"
    return f"{_records(report.acknowledged)} committed{rest}"


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"
