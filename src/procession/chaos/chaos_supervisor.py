"""The supervisor of a chaos run, in which parts die all the time.

The one rule: it has endless patience, tells of every death, and starts everything again, but for what it was told to
keep away and what may come to an end. A death is ours only if it is the one that we asked for: SIGKILL brings signal 9,
SIGTERM an orderly end. Before it `chaos/chaos_cluster`; after it the parts.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

from procession.chaos.cluster_view import Death
from procession.exit_status import Status
from procession.supervisor.part import Child, Part, State
from procession.supervisor.supervisor import Supervisor

RESTART_DELAY_S = 0.02
TRACE = "Traceback (most recent call last)"
UNDONE = frozenset({Status.UNCLEAN, -signal.SIGTERM})
"""How a part with an end of its own may end when it is asked to before; one that has not begun yet does not hear it."""


class ChaosSupervisor(Supervisor):
    """A supervisor with endless patience that tells of every death, and can keep a part away for a while."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.deaths: list[Death] = []
        self.held: set[str] = set()
        self.ending: set[str] = set()
        """Parts that are asked to end: a clean status is no reason to leave them ended."""
        self.finite: set[str] = set()
        """Parts that have an end of their own, with status 0: producers, and gateways that are let go."""

    def _bury(self, child: Child, status: int, now: float) -> None:
        name = child.part.name
        words = child.log.last_words()
        child.clear()
        is_done = status == Status.DONE and name in self.finite and name not in self.ending
        child.state = State.ENDED if is_done or name in self.held else State.WAITING
        child.due = now + RESTART_DELAY_S
        if not is_done or child.is_killed_by_us:
            self.deaths.append(Death(name, status, now, is_done or self._is_ours(child, status, words), words))
        self.ending.discard(name)

    def _is_ours(self, child: Child, status: int, words: str) -> bool:
        if child.is_killed_by_us and status == -signal.SIGKILL:
            return True
        if child.part.name not in self.ending:
            return False
        # With status 0 a trace is somebody else's: Spark's workers write theirs into the driver's log when it ends.
        is_undone = child.part.name in self.finite and status in UNDONE and TRACE not in words
        return status == Status.DONE or is_undone

    def _start_again(self, child: Child, how: str, now: float, *, was_killed: bool = False) -> None:
        """It was not ready in time, and is cleared away. Whether that was too long is for the vigil's deadlines."""
        child.state, child.due = State.WAITING, now + RESTART_DELAY_S
        self.deaths.append(Death(child.part.name, -signal.SIGKILL, now, True, how, is_late=True))

    def _look_after(self, child: Child) -> None:
        if (status := child.spare_status()) is not None:
            words = child.log.last_words()
            child.dismiss_spare()
            self.deaths.append(Death(child.part.name, status, time.monotonic(), False, words, is_spare=True))
        super()._look_after(child)

    def stop(self) -> None:
        """In order, unless somebody asked us to stop: nothing is judged any more then, and nobody need wait for it."""
        if self.is_asked_to_stop:
            for child in self._children.values():
                child.clear()
        super().stop()

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
        for names in (self.held, self.ending, self.finite):
            names.discard(name)
