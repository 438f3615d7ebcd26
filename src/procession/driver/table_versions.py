"""Chooses the version of each refreshed table that an epoch uses.

Invariant: the version for epoch N is chosen while N-1 is committed, and is written into the round record of N-1. So
all tasks of an epoch read the same rows, also when another driver runs the epoch again. The version for the first
epoch is in a separate file. If a new version cannot be read, the driver reports this and keeps using the previous
version. Reads the user's files; used by `storage/table_copies` and `commit/performer`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from procession.errors import ProcessionError, StorageError
from procession.format_number import check_format
from procession.operators.tables import SideTable, refreshed_sides
from procession.planner.graph import Graph
from procession.runtime.files import FileSystem
from procession.runtime.host_files import HOST_FILES
from procession.storage.durable import write_durably
from procession.storage.table_copies import TableCopies

FIRST = "first.json"
"""The versions that are used until a round record names others."""
FORMAT = 2
"""Format of that file. Format 1 contains only the versions."""


@dataclass
class TableRefresh:
    """The tables of a pipeline that are read again after they change."""

    copies: TableCopies
    sides: Mapping[Path, tuple[SideTable, ...]]
    say: Callable[[str], None]
    files: FileSystem = HOST_FILES
    first: dict[str, str] = field(default_factory=dict)
    _refused: set[str] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        graph: Graph,
        directory: Path,
        say: Callable[[str], None],
        fence: int = 0,
        files: FileSystem = HOST_FILES,
    ) -> TableRefresh:
        """Return the tables of this graph that are read again. `files` is the checkpoint's files port, which stores
        the versions of the first epoch; copies of tables never change."""
        return cls(TableCopies(directory, fence), refreshed_sides(node.function for node in graph.nodes), say, files)

    def begin(self, last: Mapping[str, str], check: Callable[[], None] = lambda: None) -> None:
        """Continue from the last committed epoch. A table that it does not name starts with its current version.

        Raises StorageError if a table's file is missing. Calls `check`, which raises in a replaced driver, before
        anything is removed."""
        path = self.copies.directory / FIRST
        if path.exists():
            self.first = _read_first(path)
        wanted = {str(path) for path in self.sides}
        self.first = {table: name for table, name in self.first.items() if table in wanted and table not in last}
        for table in sorted(wanted - set(last) - set(self.first)):
            self.first[table] = self._taken(Path(table))
        if self.sides:
            check()
            write_durably(path, json.dumps({"format": FORMAT, "tables": self.first}).encode(), self.files)
            self.copies.sweep({*last.values(), *self.first.values(), FIRST})

    def fixed(self, graph: Graph, check: Callable[[], None]) -> dict[str, str]:
        """Copy the tables that are not read again, for executors that cannot reach the files. Return the copies by
        file. Only this driver uses them. Calls `check` as `begin` does."""
        if not self.sides:
            check()
            self.copies.sweep(())
        found = refreshed_sides((node.function for node in graph.nodes), is_refreshed=False)
        return {str(path): self._taken(path) for path in found}

    def _taken(self, path: Path) -> str:
        name = self.copies.take(path)
        if name is None:
            raise StorageError(
                f"the table {path} is missing, or is being written", next_step="restore the file, then start again"
            )
        return name

    def current(self, before: Mapping[str, str]) -> dict[str, str]:
        """Return the versions for the next epoch, given those of the previous one."""
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
            self.say(f"{error.sentence}. The changed file is ignored, and the previous version stays in use.")
            return known
        self.say(f"{path} has changed; the next epoch uses the new version")
        return name

    def drop(self, before: Mapping[str, str], needed: Mapping[str, str]) -> None:
        """Remove the versions that no later epoch needs."""
        self.copies.drop({*before.values()} - {*needed.values(), *self.first.values()})


def _read_first(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_text())
        if not all(isinstance(name, str) for name in content.values()):  # in format 1 every entry is a name
            check_format(path, content.get("format"), FORMAT)
            content = content["tables"]
        return {str(table): str(name) for table, name in content.items()}
    except (ValueError, AttributeError, KeyError) as error:
        raise StorageError(
            f"{path} is damaged: {error}", next_step="restore the whole directory of the pipeline from a backup"
        ) from error
