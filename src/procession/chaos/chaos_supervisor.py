"""Supervises the parts of a chaos run, which die frequently.

Invariant: every death is recorded, and parts are restarted without a limit, except parts that are held back or may
end. A death counts as injected only if it matches the injected signal: SIGKILL gives signal 9, SIGTERM an orderly
end.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

from procession.chaos.cluster_view import Death
from procession.exit_status import Status
from procession.supervisor.part import Child, Part, PartState
from procession.supervisor.supervisor import Supervisor

RESTART_DELAY_S = 0.02
TRACE = "Traceback (most recent call last)"
UNDONE = frozenset({Status.UNCLEAN, -signal.SIGTERM})
"""Exit statuses of a finite part that is stopped early. A part that is still starting does not handle SIGTERM."""


class RecordedDeaths:
    """Restarts parts without a limit, and records every death."""

    def __init__(self) -> None:
        self.deaths: list[Death] = []
        self.held: set[str] = set()
        self.ending: set[str] = set()
        """Parts that were sent SIGTERM. They are restarted even after a clean exit."""
        self.finite: set[str] = set()
        """Parts that end with status 0 without being stopped: producers, and gateways that leave."""

    def ended(self, child: Child, status: int, now: float) -> None:
        name = child.part.name
        last_lines = child.log.last_lines()
        child.clear()
        is_done = status == Status.DONE and name in self.finite and name not in self.ending
        child.state = PartState.ENDED if is_done or name in self.held else PartState.WAITING
        child.due = now + RESTART_DELAY_S
        if not is_done or child.is_killed_by_us:
            self.deaths.append(
                Death(name, status, now, is_done or self._is_ours(child, status, last_lines), last_lines)
            )
        self.ending.discard(name)

    def _is_ours(self, child: Child, status: int, last_lines: str) -> bool:
        if child.is_killed_by_us and status == -signal.SIGKILL:
            return True
        if child.part.name not in self.ending:
            return False
        # With status 0 a traceback is not the part's own: Spark's workers write theirs to the driver's log at its exit.
        is_undone = child.part.name in self.finite and status in UNDONE and TRACE not in last_lines
        return status == Status.DONE or is_undone

    def late(self, child: Child, how: str, now: float) -> None:
        """Restart a part that was not ready in time. The monitor's deadlines decide whether the start took too
        long."""
        child.state, child.due = PartState.WAITING, now + RESTART_DELAY_S
        self.deaths.append(Death(child.part.name, -signal.SIGKILL, now, True, how, is_late=True))

    def spare_ended(self, child: Child, status: int) -> None:
        last_lines = child.log.last_lines()
        child.dismiss_spare()
        self.deaths.append(Death(child.part.name, status, time.monotonic(), False, last_lines, is_spare=True))


class ChaosSupervisor(Supervisor):
    """A supervisor without a restart limit that records every death, and can hold a part back for a while."""

    def __init__(self, directory: Path) -> None:
        exits = RecordedDeaths()
        super().__init__(directory, exits=exits)
        self.deaths, self.held, self.ending, self.finite = exits.deaths, exits.held, exits.ending, exits.finite

    def stop(self) -> None:
        """Stop the parts in order; kill them immediately if the user interrupted the run, because nothing is verified
        then."""
        if self.is_asked_to_stop:
            for child in self._children.values():
                child.clear()
        super().stop()

    def hold(self, name: str) -> None:
        """Kill a part and do not restart it."""
        self.held.add(name)
        self.kill(name)
        child = self._children[name]
        if child.state is PartState.WAITING:
            child.state = PartState.ENDED

    def release(self, name: str) -> None:
        self.held.discard(name)
        child = self._children[name]
        if child.state is PartState.ENDED:
            child.state, child.due = PartState.WAITING, time.monotonic()

    def end(self, name: str) -> None:
        """Send SIGTERM. The part is restarted."""
        self.ending.add(name)
        self._children[name].send(signal.SIGTERM)

    def change(self, part: Part) -> None:
        """Use this definition of the part from its next start on."""
        child = self._children[part.name]
        if child.part != part:
            child.part = part
            child.dismiss_spare()

    def forget(self, name: str) -> None:
        """Remove a part. Another one may take its name."""
        child = self._children.pop(name, None)
        if child is not None:
            child.dismiss_spare()
            child.clear()
        for names in (self.held, self.ending, self.finite):
            names.discard(name)
