"""The stage: a supervisor for chaos runs, on which parts die all the time.

The one rule: it has endless patience, tells of every death, and starts everything again, but for what it was told to
keep away. Before it `ops/chaos`; after it the parts.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

from procession.chaos.cluster import Death
from procession.ops.part import Child, Part, State
from procession.ops.supervise import Supervisor

RESTART_DELAY_S = 0.02


class Stage(Supervisor):
    """A supervisor with endless patience that tells of every death, and can keep a part away for a while."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.deaths: list[Death] = []
        self.held: set[str] = set()
        self.ending: set[str] = set()
        """Parts that are asked to end: a clean status is no reason to leave them ended."""

    def _bury(self, child: Child, status: int, now: float) -> None:
        name = child.part.name
        words = child.log.last_words()
        child.clear()
        is_done = status == 0 and name not in self.ending
        child.state = State.ENDED if is_done or name in self.held else State.WAITING
        child.due = now + RESTART_DELAY_S
        if not is_done:
            self.deaths.append(Death(name, status, now, child.is_killed_by_us or name in self.ending, words))
        self.ending.discard(name)

    def hold(self, name: str) -> None:
        """Kill it, and do not start it again."""
        self.held.add(name)
        self.kill(name)
        child = self._children[name]
        if child.state is State.WAITING:
            child.state = State.ENDED

    def release(self, name: str) -> None:
        self.held.discard(name)
        child = self._children[name]
        if child.state is State.ENDED:
            child.state, child.due = State.WAITING, time.monotonic()

    def end(self, name: str) -> None:
        """Ask it to end; it is started again."""
        self.ending.add(name)
        self._children[name].send(signal.SIGTERM)

    def change(self, part: Part) -> None:
        """From its next start on it is run like this."""
        child = self._children[part.name]
        if child.part != part:
            child.part = part
            child.dismiss_spare()

    def forget(self, name: str) -> None:
        """A part that is done, or not wanted any more; another one may take its name."""
        child = self._children.pop(name, None)
        if child is not None:
            child.dismiss_spare()
            child.clear()
        self.held.discard(name)
        self.ending.discard(name)

    def has(self, name: str) -> bool:
        return name in self._children
