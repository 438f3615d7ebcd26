"""The screen: a chaos run while it goes on. A live picture on a terminal, a line now and then elsewhere.

The one rule: it only shows what the chronicle says, on the standard error stream, so that the verdict alone is output.
Before it the vigil, which calls it at every look; after it people.
"""

from __future__ import annotations

import time
from collections import deque

from rich.console import Group
from rich.text import Text

from procession.chaos.history import History
from procession.supervisor.progress import LiveDisplay, table_of

REFRESH_S = 0.25
LINE_INTERVAL_S = 10.0
WINDOW_S = 5.0


class Screen(LiveDisplay):
    """The progress of a chaos run."""

    def __init__(self) -> None:
        super().__init__(refreshes_per_second=4)
        self._next = 0.0
        self._told = ""
        self._recent: deque[tuple[float, int]] = deque()

    def show(self, chronicle: History) -> None:
        now = time.monotonic()
        scenario = chronicle.spans[-1].scenario if chronicle.spans else ""
        self._recent.append((now, chronicle.committed))
        while now - self._recent[0][0] > WINDOW_S:
            self._recent.popleft()
        if now < self._next and (self.is_live or scenario == self._told):
            return
        cells = self._cells(chronicle, scenario)
        if self.is_live:
            self._next = now + REFRESH_S
            self.draw(_picture(chronicle, cells))
        else:
            self._next = now + LINE_INTERVAL_S
            self._told = scenario
            self.say_cells(cells)

    def _cells(self, chronicle: History, scenario: str) -> dict[str, str]:
        (before, fewer), (now, more) = self._recent[0], self._recent[-1]
        rate = (more - fewer) / (now - before) if now > before else 0.0
        seconds = chronicle.seconds
        events = chronicle.recoveries.events
        return {
            "time": f"{int(seconds) // 60}:{int(seconds) % 60:02d}",
            "scenario": scenario,
            "crashes": f"{events:,}",
            "an hour": f"{events * 3600 / seconds:,.0f}" if seconds > 1 else "-",
            "records": f"{chronicle.committed:,}",
            "records/s": f"{rate:,.0f}",
            "epochs": f"{chronicle.epochs:,}",
            "down": ", ".join(chronicle.recoveries.down) or "-",
            "verdict": _verdict(chronicle),
        }


def _verdict(chronicle: History) -> str:
    if chronicle.has_failed:
        return "violated"
    return "clean so far" if chronicle.committed else "nothing to judge yet"


def _picture(chronicle: History, cells: dict[str, str]) -> Group:
    recent = Text("\n".join(f"{event.at_s:9.2f}  {event.on:14}  {event.what}" for event in chronicle.recent))
    return Group(table_of(cells), recent)
