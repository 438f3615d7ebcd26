"""Shows the progress of a chaos run, as a live table on a terminal, elsewhere as a line at intervals.

Invariant: the screen shows only the history, on the standard error stream, so standard output has only the verdict.
The monitor calls it at every poll.
"""

from __future__ import annotations

import time
from collections import deque

from rich.console import Group
from rich.text import Text

from procession.chaos.history import History
from procession.monitoring.progress import LiveDisplay, table_of

REFRESH_S = 0.25
LINE_INTERVAL_S = 10.0
WINDOW_S = 5.0


class Screen(LiveDisplay):
    """The progress of a chaos run."""

    def __init__(self) -> None:
        super().__init__(refreshes_per_second=4)
        self._next = 0.0
        self._shown_scenario = ""
        self._recent: deque[tuple[float, int]] = deque()

    def show(self, history: History) -> None:
        now = time.monotonic()
        scenario = history.spans[-1].scenario if history.spans else ""
        self._recent.append((now, history.committed))
        while now - self._recent[0][0] > WINDOW_S:
            self._recent.popleft()
        if now < self._next and (self.is_live or scenario == self._shown_scenario):
            return
        cells = self._cells(history, scenario)
        if self.is_live:
            self._next = now + REFRESH_S
            self.draw(_picture(history, cells))
        else:
            self._next = now + LINE_INTERVAL_S
            self._shown_scenario = scenario
            self.say_cells(cells)

    def _cells(self, history: History, scenario: str) -> dict[str, str]:
        (before, fewer), (now, more) = self._recent[0], self._recent[-1]
        rate = (more - fewer) / (now - before) if now > before else 0.0
        seconds = history.seconds
        events = history.recoveries.events
        return {
            "time": f"{int(seconds) // 60}:{int(seconds) % 60:02d}",
            "scenario": scenario,
            "crashes": f"{events:,}",
            "an hour": f"{events * 3600 / seconds:,.0f}" if seconds > 1 else "-",
            "records": f"{history.committed:,}",
            "records/s": f"{rate:,.0f}",
            "epochs": f"{history.epochs:,}",
            "down": ", ".join(history.recoveries.down) or "-",
            "verdict": _verdict(history),
        }


def _verdict(history: History) -> str:
    if history.has_failed:
        return "violated"
    return "clean so far" if history.committed else "nothing to compare yet"


def _picture(history: History, cells: dict[str, str]) -> Group:
    recent = Text("\n".join(f"{event.at_s:9.2f}  {event.on:14}  {event.what}" for event in history.recent))
    return Group(table_of(cells), recent)
