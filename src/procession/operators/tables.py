"""Tables: the small tables that a stream is joined with.

Invariant: a table is the same for every task of an epoch. Each worker reads it once, at first use. A file that changes
while the pipeline runs is an error, unless it is declared with `refresh=True`; then the round record names the copy
that an epoch reads. `api/joins` declares the look-up of records in a table.

    >>> from procession import tables
    >>> table = tables.of_rows([{"id": "a", "name": "Anna"}], by="id")
    >>> table.matches("a")
    [{'id': 'a', 'name': 'Anna'}]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from procession.errors import PlanError, ProcessionError, StorageError
from procession.planner.keys import KeyCodec
from procession.planner.ownership import own
from procession.times import TIME_MAX, Unit, nanoseconds

ROWS_MAX = 5_000_000
"""Maximum number of rows of a table, because every worker holds all of them."""

SHIPPED_MAX = 100_000
"""Maximum number of rows that are given by value, because they are sent to every task with the program. Larger tables
are files."""

Row = Mapping[str, Any]
By = str | Callable[[Any], Any]

_KEYS = KeyCodec(has_any_enum=True)


@dataclass(frozen=True)
class Table:
    """Holds the rows of a table by their encoded keys."""

    rows: dict[bytes, list[dict[str, Any]]]
    kinds: frozenset[type[Any]]
    """The types of the table's keys."""

    def matches(self, key: Any) -> list[dict[str, Any]]:
        """Return the rows of this key, in their order.

        Raises TypeError for a key, other than None, whose type no key of the table has, because it could never match.
        """
        found = self.rows.get(_KEYS.encode(key))
        if found is None and key is not None and self.kinds and type(key) not in self.kinds:
            names = " or ".join(sorted(kind.__name__ for kind in self.kinds))
            raise TypeError(
                f"the key {key!r} is a {type(key).__name__}, and the keys of the table are {names}: they never match"
            )
        return found or []


@dataclass(frozen=True)
class SideTable:
    """A table. It has its rows if they were given by value, else its file and the function that reads it."""

    by: By
    rows: tuple[dict[str, Any], ...] = ()
    path: Path | None = None
    is_parquet: bool = False
    is_refreshed: bool = False
    stamp: tuple[int, int] = (0, 0)
    """Time and size of the file at the start of the program."""
    copy: Path | None = None
    """An immutable copy that is read instead of the file, if the file may change."""
    _table: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def matches(self, key: Any) -> list[dict[str, Any]]:
        """Return the rows with this key, in their order."""
        return self.table().matches(key)

    def table(self) -> Table:
        if self.path is None:
            if "table" not in self._table:
                self._table["table"] = _indexed(self.rows, self.by)
            found: Table = self._table["table"]
            return found
        if self.copy is not None:
            return self._cached(self.copy.name, self.copy)
        stamp = stamp_of(self.path)
        if stamp != self.stamp and not self.is_refreshed:
            raise PlanError(
                f"{self.path} has changed since the pipeline was started",
                next_step="start it again, or pass refresh=True to read it again whenever it changes",
            )
        return self._cached(stamp, self.path)

    def _cached(self, version: Any, path: Path) -> Table:
        """Return a version of a file. Only the last used version stays in memory."""
        assert self.path is not None
        place = self.path, _identity(self.by)
        if place not in _read or _read[place][0] != version:
            _read[place] = version, _indexed(_rows_of(path, self.is_parquet), self.by)
        return _read[place][1]

    def at(self, copy: Path) -> SideTable:
        """Return the same table, with the contents of this copy."""
        return replace(self, copy=copy)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": {}}


@dataclass(frozen=True)
class ValidRow:
    """Chooses the row of a key that was valid at a record's time: the one with the latest start at or before it."""

    time: Callable[[Any], Any]
    valid_from: Callable[[Any], Any]
    unit: Unit = "s"

    def of(self, record: Any, rows: Sequence[Any]) -> list[Any]:
        """Return a list with the row, or an empty list. If rows have the same start, the last one is chosen."""
        time = nanoseconds(self.time(record), self.unit)
        found: list[Any] = []
        latest = -TIME_MAX
        for row in rows:
            start = self._start(row)
            if latest <= start <= time:
                found, latest = [row], start
        return found

    def _start(self, row: Any) -> int:
        try:
            return nanoseconds(self.valid_from(row), self.unit)
        except Exception as error:  # user code may raise any exception
            raise ValueError(f"valid_from of the row {row!r} of the table: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class TableJoin:
    """Joins a record with tables: `join(record, row, …)` for each matching row, or pair of rows if there are two
    tables.

    If no row matches, None stands for the row; an inner join emits nothing.
    """

    pairs: tuple[tuple[SideTable, Callable[[Any], Any]], ...]
    join: Callable[..., Any]
    is_inner: bool
    is_copying: bool = True
    """Whether `join` receives copies, because it or a later stage may change its arguments."""
    valid: ValidRow | None = None
    """Chooses among the matching rows of a table of versions. None: all rows are used."""

    def __call__(self, record: Any) -> list[Any]:
        found: list[list[Any]] = [side.matches(key(record)) for side, key in self.pairs]
        if self.valid is not None:
            found = [self.valid.of(record, rows) for rows in found]
        if not self.is_inner:
            found = [rows or [None] for rows in found]
        if not self.is_copying:
            return [self.join(record, *rows) for rows in product(*found)]
        # The table keeps its rows, and every call but the first gets a copy of the record.
        matches = [[own(row) for row in rows] for rows in product(*found)]
        records = [record, *(own(record) for _ in matches[1:])] if matches else []
        return [self.join(copied, *rows) for copied, rows in zip(records, matches, strict=True)]

    def at(self, copies: Mapping[str, Path]) -> TableJoin:
        """Return the same join with copies in place of the tables that may change. The keys of `copies` are the files'
        paths."""
        pairs = ((side.at(copy) if (copy := copies.get(str(side.path))) else side, key) for side, key in self.pairs)
        return replace(self, pairs=tuple(pairs))


def joinings_at(functions: Mapping[int, Any], copies: Mapping[str, Path]) -> dict[int, TableJoin]:
    """Return the joins among the functions of stages, with these copies of their tables."""
    return {index: join.at(copies) for index, join in functions.items() if isinstance(join, TableJoin)}


def refreshed_sides(functions: Iterable[Any], *, is_refreshed: bool = True) -> dict[Path, tuple[SideTable, ...]]:
    """Return the tables of joins by file: those that are read again when their file changes, or those that are not."""
    found: dict[Path, tuple[SideTable, ...]] = {}
    for function in functions:
        for side, _ in function.pairs if isinstance(function, TableJoin) else ():
            if side.is_refreshed is is_refreshed and side.path is not None:
                found[side.path] = (*found.get(side.path, ()), side)
    return found


def _identity(by: Any) -> Hashable:
    """Return the identity of a function after it was sent to another process. Its address in memory does not identify
    it."""
    code = getattr(by, "__code__", None)
    cells = tuple(repr(cell.cell_contents) for cell in getattr(by, "__closure__", None) or ())
    return repr(by) if code is None else (code, repr(by.__defaults__), cells)


# A worker process runs many tasks, and reads a file once.
_read: dict[tuple[Path, Hashable], tuple[Any, Table]] = {}


def of_rows(rows: Iterable[Row], *, by: By) -> SideTable:
    """Make a table of up to 100,000 rows that are given by value.

    Args:
        rows: Dicts, or the rows of a Spark DataFrame (`df.collect()`).
        by: The key: name of a column, or a function of a row.

    Returns:
        A table for `Stage.hash_join`.

    Raises:
        PlanError: There are too many rows, or a row has no such key.
    """
    given = tuple(dict(row.asDict()) if hasattr(row, "asDict") else dict(row) for row in rows)
    if len(given) > SHIPPED_MAX:
        raise PlanError(
            f"a table of {len(given):,} rows was given by value; at most {SHIPPED_MAX:,} are allowed",
            next_step="write it to a Parquet file, and use tables.of_parquet",
        )
    side = SideTable(by, given)
    side.table()  # reports a mistake at the line of the mistake
    return side


def of_json_lines(path: str | Path, *, by: By, refresh: bool = False) -> SideTable:
    """Make a table from a file with one JSON object per line.

    Args:
        path: The file. Every worker must be able to read it.
        by: The key: name of a column, or a function of a row.
        refresh: Read the file again when its time or size has changed. One of the next epochs is the first to use the
            new contents. Without `refresh`, a change of the file stops the pipeline.

    Raises:
        PlanError: The file is not valid, or a row has no such key.
        StorageError: The file cannot be read.
    """
    return _of_file(Path(path), by, is_parquet=False, is_refreshed=refresh)


def of_parquet(path: str | Path, *, by: By, refresh: bool = False) -> SideTable:
    """Make a table from a Parquet file. The arguments are those of `of_json_lines`."""
    return _of_file(Path(path), by, is_parquet=True, is_refreshed=refresh)


def _of_file(path: Path, by: By, *, is_parquet: bool, is_refreshed: bool) -> SideTable:
    path = path.absolute()
    side = SideTable(by, path=path, is_parquet=is_parquet, is_refreshed=is_refreshed, stamp=stamp_of(path))
    side.table()
    return side


def stamp_of(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise StorageError(
            f"the table {path} cannot be read: {error.strerror}", next_step="put it where every worker can read it"
        ) from error
    return found.st_mtime_ns, found.st_size


def _rows_of(path: Path, is_parquet: bool) -> Iterable[dict[str, Any]]:
    try:
        if is_parquet:
            rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
            return rows
        return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except ProcessionError:
        raise
    except (OSError, ValueError) as error:
        raise PlanError(f"the table {path} cannot be read: {error}", next_step="correct the file") from error


def _indexed(rows: Iterable[dict[str, Any]], by: By) -> Table:
    table: dict[bytes, list[dict[str, Any]]] = {}
    kinds: set[type[Any]] = set()
    for number, row in enumerate(rows):
        if number >= ROWS_MAX:
            raise PlanError(f"a table has more than {ROWS_MAX:,} rows", next_step="join the streams by key instead")
        try:
            value = row[by] if isinstance(by, str) else by(row)
            key = _KEYS.encode(value)
        except (KeyError, TypeError, ValueError) as error:
            raise PlanError(
                f"row {number} of a table has no key {by!r}: {type(error).__name__}: {error}",
                next_step="name a column that every row has, of values that can be keys",
            ) from error
        table.setdefault(key, []).append(row)
        kinds.add(type(value))
    return Table(table, frozenset(kinds))
