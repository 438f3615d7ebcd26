"""Which version of each refreshed table an epoch uses.

The one rule: the version for epoch N is chosen while N-1 is committed, and is written into the round record of N-1. So
all tasks of an epoch read the same rows, and so does an epoch that is run again by any driver. The version for the
first epoch is in a file of its own. If a new version cannot be read, that is reported and the previous one stays in
use. Reads the user's files; used by `storage/table_copies` and `commit/performer`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from procession.errors import ProcessionError, StorageError
from procession.format_number import check_format
from procession.operators.tables import Side, refreshed_sides
from procession.planner.graph import Graph
from procession.storage.durable import write_durably
from procession.storage.table_copies import Copies

FIRST = "first.json"
"""The versions that are used until a round record names others."""
FORMAT = 2
"""Of that file. In format 1 it is the versions alone."""


@dataclass
class Refresh:
    """The tables of one pipeline that are read again when they have changed."""

    copies: Copies
    sides: Mapping[Path, tuple[Side, ...]]
    say: Callable[[str], None]
    first: dict[str, str] = field(default_factory=dict)
    _refused: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, graph: Graph, directory: Path, say: Callable[[str], None], fence: int = 0) -> Refresh:
        return cls(Copies(directory, fence), refreshed_sides(node.function for node in graph.nodes), say)

    def begin(self, last: Mapping[str, str], check: Callable[[], None] = lambda: None) -> None:
        """Go on from the last committed epoch. What it does not know begins as it is now. Raises StorageError if there
        is no such file, and what `check` raises to a driver that was replaced: before anything is removed."""
        path = self.copies.directory / FIRST
        if path.exists():
            self.first = _read_first(path)
        wanted = {str(path) for path in self.sides}
        self.first = {one: name for one, name in self.first.items() if one in wanted and one not in last}
        for one in sorted(wanted - set(last) - set(self.first)):
            self.first[one] = self._taken(Path(one))
        if self.sides:
            check()
            write_durably(path, json.dumps({"format": FORMAT, "tables": self.first}).encode())
            self.copies.sweep({*last.values(), *self.first.values(), FIRST})

    def _taken(self, path: Path) -> str:
        name = self.copies.take(path)
        if name is None:
            raise StorageError(
                f"the side {path} is gone, or is being written", next_step="put it back, and start again"
            )
        return name

    def current(self, before: Mapping[str, str]) -> dict[str, str]:
        """The versions for the next epoch, if these were those of the one before."""
        known = {**self.first, **before}
        return {str(path): self._newer(path, known.get(str(path))) for path in self.sides}

    def _newer(self, path: Path, known: str | None) -> str:
        name = self.copies.take(path, known)
        if name is None or name == known or name in self._refused:
            return known or self._taken(path)
        try:
            for side in self.sides[path]:
                side.at(self.copies.directory / name).table()
        except ProcessionError as error:
            if known is None:
                raise
            self._refused.add(name)
            self.say(f"{error.sentence}. It has changed, and what it was before goes on being used.")
            return known
        self.say(f"{path} has changed, and is read again from the next epoch on")
        return name

    def drop(self, before: Mapping[str, str], needed: Mapping[str, str]) -> None:
        """Forget what the last epoch was the last to need."""
        self.copies.drop({*before.values()} - {*needed.values(), *self.first.values()})


def _read_first(path: Path) -> dict[str, str]:
    try:
        told = json.loads(path.read_text())
        if not all(isinstance(name, str) for name in told.values()):  # in format 1 all are names
            check_format(path, told.get("format"), FORMAT)
            told = told["tables"]
        return {str(one): str(name) for one, name in told.items()}
    except (ValueError, AttributeError, KeyError) as error:
        raise StorageError(
            f"{path} is damaged: {error}", next_step="restore the pipeline's directory, the whole of it, from a copy"
        ) from error
