"""Tables: the small tables that a stream is joined with.

The one rule: a table is the same for every task of an epoch. It is read where it is needed, once in each worker. A file
that changes under a running pipeline is an error, unless the user asked for it to be refreshed; then the round record
says which copy an epoch reads. The user names a table and its key; `api/joins` looks records up in it.

    >>> from procession import tables
    >>> table = tables.of_rows([{"id": "a", "name": "Anna"}], by="id")
    >>> table.matches("a")
    [{'id': 'a', 'name': 'Anna'}]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from procession.errors import PlanError, ProcessionError, StorageError
from procession.planner.keys import KeyCodec
from procession.planner.ownership import own

ROWS_MAX = 5_000_000
"""So many rows a side may have: every worker holds all of them."""

SHIPPED_MAX = 100_000
"""So many rows may be given by value: they go to every task with the program. Larger sides are files."""

Row = Mapping[str, Any]
By = str | Callable[[Any], Any]

_KEYS = KeyCodec(has_any_enum=True)


@dataclass(frozen=True)
class Table:
    """The rows of a side, by their encoded keys."""

    rows: dict[bytes, list[dict[str, Any]]]
    kinds: frozenset[type[Any]]
    """The types that its keys have."""

    def matches(self, key: Any) -> list[dict[str, Any]]:
        """The rows of this key, in their order. A key that is of no type that the table has is a mistake, unless it is
        None: it could never match."""
        found = self.rows.get(_KEYS.encode(key))
        if found is None and key is not None and self.kinds and type(key) not in self.kinds:
            names = " or ".join(sorted(kind.__name__ for kind in self.kinds))
            raise TypeError(
                f"the key {key!r} is a {type(key).__name__}, and the keys of the table are {names}: they never match"
            )
        return found or []


@dataclass(frozen=True)
class Side:
    """A table. `rows` if it was given by value, else the file that it is in and how to read it."""

    by: By
    rows: tuple[dict[str, Any], ...] = ()
    path: Path | None = None
    is_parquet: bool = False
    is_refreshed: bool = False
    stamp: tuple[int, int] = (0, 0)
    """What the file looked like when the program was started."""
    copy: Path | None = None
    """What is read instead of the file, if it may change: never changed itself."""
    _table: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def matches(self, key: Any) -> list[dict[str, Any]]:
        """The rows that are known by this key, in their order."""
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
                next_step="start it again, or say refresh=True and let it be read again whenever it changes",
            )
        return self._cached(stamp, self.path)

    def _cached(self, version: Any, path: Path) -> Table:
        """One version of a file, and only the last that was asked for, stays in memory."""
        assert self.path is not None
        place = self.path, _told(self.by)
        if place not in _read or _read[place][0] != version:
            _read[place] = version, _indexed(_rows_of(path, self.is_parquet), self.by)
        return _read[place][1]

    def at(self, copy: Path) -> Side:
        """The same side, as it was when this copy was made."""
        return replace(self, copy=copy)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": {}}


@dataclass(frozen=True)
class Joining:
    """What a record becomes: `join(record, row, …)` for each row of the side that matches, or for each pair of rows
    where there are two sides. Where nothing matches, None stands for the row, or, in an inner join, nothing comes
    out."""

    pairs: tuple[tuple[Side, Callable[[Any], Any]], ...]
    join: Callable[..., Any]
    is_inner: bool
    is_copying: bool = True
    """Whether `join` is given copies: it, or a stage behind, may change what it is given."""

    def __call__(self, record: Any) -> list[Any]:
        found: list[list[Any]] = [side.matches(key(record)) for side, key in self.pairs]
        if not self.is_inner:
            found = [rows or [None] for rows in found]
        if not self.is_copying:
            return [self.join(record, *rows) for rows in product(*found)]
        # The table keeps its rows, and every call but one the record's copy.
        matches = [[own(row) for row in rows] for rows in product(*found)]
        records = [record, *(own(record) for _ in matches[1:])] if matches else []
        return [self.join(one, *rows) for one, rows in zip(records, matches, strict=True)]

    def at(self, copies: Mapping[str, Path]) -> Joining:
        """The same, with those sides that may change as they were in these copies, by the files' paths."""
        pairs = ((side.at(copy) if (copy := copies.get(str(side.path))) else side, key) for side, key in self.pairs)
        return replace(self, pairs=tuple(pairs))


def joinings_at(functions: Mapping[int, Any], copies: Mapping[str, Path]) -> dict[int, Joining]:
    """Of the functions of stages, the joins, as they are with these copies."""
    return {index: one.at(copies) for index, one in functions.items() if isinstance(one, Joining)}


def refreshed_sides(functions: Iterable[Any]) -> dict[Path, tuple[Side, ...]]:
    """Of the functions of stages, those sides of joins that are to be read again when they have changed, by file."""
    found: dict[Path, tuple[Side, ...]] = {}
    for joining in functions:
        for side, _ in joining.pairs if isinstance(joining, Joining) else ():
            if side.is_refreshed and side.path is not None:
                found[side.path] = (*found.get(side.path, ()), side)
    return found


# A worker lives for many tasks, and reads a file once.


def _told(by: Any) -> Hashable:
    """What makes a function the same one after it was sent to another process: where it lies in memory does not."""
    code = getattr(by, "__code__", None)
    cells = tuple(repr(cell.cell_contents) for cell in getattr(by, "__closure__", None) or ())
    return repr(by) if code is None else (code, repr(by.__defaults__), cells)


_read: dict[tuple[Path, Hashable], tuple[Any, Table]] = {}


def of_rows(rows: Iterable[Row], *, by: By) -> Side:
    """A table given by value: dicts, or the rows of a DataFrame (`df.collect()`). `by` is a column, or a function of a
    row."""
    given = tuple(dict(row.asDict()) if hasattr(row, "asDict") else dict(row) for row in rows)
    if len(given) > SHIPPED_MAX:
        raise PlanError(
            f"a side of {len(given):,} rows was given by value; {SHIPPED_MAX:,} are allowed",
            next_step="write it to a Parquet file, and give sides.of_parquet",
        )
    side = Side(by, given)
    side.table()  # a mistake is told where it was made
    return side


def of_json_lines(path: str | Path, *, by: By, refresh: bool = False) -> Side:
    """A file with a JSON object on each line, which every worker can read. `refresh`: it is read again when its time or
    size has changed, from one of the next epochs on; which one is not part of any promise."""
    return _of_file(Path(path), by, is_parquet=False, is_refreshed=refresh)


def of_parquet(path: str | Path, *, by: By, refresh: bool = False) -> Side:
    """A Parquet file, likewise."""
    return _of_file(Path(path), by, is_parquet=True, is_refreshed=refresh)


def _of_file(path: Path, by: By, *, is_parquet: bool, is_refreshed: bool) -> Side:
    path = path.absolute()
    side = Side(by, path=path, is_parquet=is_parquet, is_refreshed=is_refreshed, stamp=stamp_of(path))
    side.table()
    return side


def stamp_of(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise StorageError(
            f"the side {path} cannot be read: {error.strerror}", next_step="put it where every worker can read it"
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
        raise PlanError(f"the side {path} cannot be read: {error}", next_step="mend the file") from error


def _indexed(rows: Iterable[dict[str, Any]], by: By) -> Table:
    table: dict[bytes, list[dict[str, Any]]] = {}
    kinds: set[type[Any]] = set()
    for number, row in enumerate(rows):
        if number >= ROWS_MAX:
            raise PlanError(f"a side has more than {ROWS_MAX:,} rows", next_step="join the streams by key instead")
        try:
            known_by = row[by] if isinstance(by, str) else by(row)
            key = _KEYS.encode(known_by)
        except (KeyError, TypeError, ValueError) as error:
            raise PlanError(
                f"row {number} of a side is not known by {by!r}: {type(error).__name__}: {error}",
                next_step="name a column that every row has, of values that can be keys",
            ) from error
        table.setdefault(key, []).append(row)
        kinds.add(type(known_by))
    return Table(table, frozenset(kinds))
