"""Counts how often a task ran on a machine that already had its states: the hit rate of placement.

Spark does not know where states are, and correctness does not depend on it. A task on a machine without its state
files fetches them from the driver, and this module counts such tasks. Invariant: a task counts once in an epoch,
whatever number of files it fetches. `storage/file_service` reports each fetched file, from its own threads;
`driver/driver_reports` reports the counts.
"""

from __future__ import annotations

from typing import Any

from procession.commit.round_record import RoundRecord
from procession.storage.shared_files import STATE_NAME


class StatePlacement:
    """Counts the tasks of committed epochs that began with states, and how many of these tasks had to fetch a state
    file."""

    def __init__(self) -> None:
        self._tasks = 0
        self._moved = 0
        self._with_states = 0
        """Number of tasks that begin the open epoch with states."""
        self._fetching: set[str] = set()

    def fetched(self, name: str) -> None:
        """Record that a task fetches this state file."""
        if (found := STATE_NAME.fullmatch(name)) is not None:
            self._fetching.add(found["owner"])

    def committed(self, record: RoundRecord) -> None:
        """Record that an epoch is committed. The next epoch begins with its states."""
        fetching, self._fetching = self._fetching, set()
        self._tasks += self._with_states
        self._moved += min(len(fetching), self._with_states)
        self._with_states = sum(bool(files) for version in record.states.values() for files in version.tasks)

    def as_json(self) -> dict[str, Any]:
        share = round(1 - self._moved / self._tasks, 4) if self._tasks else None
        return {"tasks": self._tasks, "moved": self._moved, "hit_rate": share}
