"""Reads a PostgreSQL table by polling, in the order of a column whose values only grow.

Invariant: the position names a page of rows before the page goes into the spool, and a page is one atomic entry of
the spool. So a restart neither loses nor repeats a page. The owner of the table must ensure that rows become visible
in the order of the column. Upstream: `connectors/postgres_connection`; downstream: `sdk/push_source`.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from psycopg import sql

from procession import faults
from procession.connectors.postgres_connection import (
    LOCK_TIMEOUT_S,
    PATIENCE_S,
    lock_number,
    table_name,
    try_lock,
    value,
)
from procession.connectors.postgres_medium import PostgresMedium, SourceSession
from procession.connectors.postgres_position import PositionFile
from procession.errors import ConfigError, StorageError
from procession.sdk.backlog import Spool
from procession.sdk.push_source import PushStream
from procession.sdk.source_records import Batch

PAGE_ROWS = 5_000
"""Rows per page. Rows with the same value of the column are always in one page."""
PAGE_ROWS_MAX = 100_000
"""Maximum number of rows per page if many rows have the same value. A page is held in memory."""


@dataclass(frozen=True, slots=True)
class PollingOptions:
    """Which rows a source reads.

    Args:
        url: The database, without a password.
        table: The table.
        column: The column whose values grow from row to row.
        start: Rows above this value are read, in PostgreSQL's notation. Empty: all rows.
        poll_s: Time between two polls of a table without new rows.
        is_ending: End after the rows that exist at the start.
        patience_s: How long to retry an unreachable server.
        lock_timeout_s: How long to wait for another source that still runs.
        page_rows_max: Maximum number of rows with the same value of the column.
        page_rows: Rows per page, if their values differ.
    """

    url: str
    table: str
    column: str
    start: str = ""
    poll_s: float = 1.0
    is_ending: bool = False
    patience_s: float = PATIENCE_S
    lock_timeout_s: float = LOCK_TIMEOUT_S
    page_rows_max: int = PAGE_ROWS_MAX
    page_rows: int = PAGE_ROWS


@dataclass(frozen=True, slots=True)
class TablePage:
    """A page of rows as JSON objects, with the column's value in the last row."""

    last: str
    rows: list[str]


class PolledTable(SourceSession):
    """The table, read page by page. All methods run in one thread."""

    def __init__(self, options: PollingOptions) -> None:
        patience_s, lock_timeout_s = options.patience_s, options.lock_timeout_s
        super().__init__(options.url, options.table, patience_s=patience_s, lock_timeout_s=lock_timeout_s)
        self._options = options
        self._type = ""
        self.identity: dict[str, str] = {}

    def open(self) -> None:
        with self.opened():
            self._check()

    def _check(self) -> None:
        options, name = self._options, table_name(self._options.table).as_string(self.session)
        if not value(self.session, "SELECT to_regclass(%s)::text", (name,)):
            raise ConfigError(f"There is no table {options.table}.", next_step="Create it, or name another one.")
        self._type = value(
            self.session,
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass"
            " AND attname = %s AND attnum > 0 AND NOT attisdropped",
            (name, options.column),
        )
        if not self._type:
            raise ConfigError(
                f"Table {options.table} has no column {options.column!r}.",
                next_step="Name a column whose values grow from row to row with --poll-column.",
            )
        if not value(self.session, "SELECT has_table_privilege(%s::regclass, 'SELECT')", (name,)):
            user = self.session.info.user
            raise ConfigError(
                f"User {user} may not SELECT from table {options.table}.",
                next_step=f"Grant it: GRANT SELECT ON {name} TO {user}.",
            )
        if not try_lock(self.session, lock_number("polling", options.table, options.column)):
            raise StorageError(
                f"Another source polls table {options.table} by {options.column}.",
                next_step="Stop that source, or continue with its directory, which contains its position.",
            )
        system = value(self.session, "SELECT system_identifier FROM pg_control_system()")
        self.identity = {
            "system": str(system),
            "database": self.session.info.dbname,
            "table": options.table,
            "column": options.column,
        }

    def page(self, after: str | None) -> TablePage | None:
        """Return the next rows whose value is above `after`; None if there are no such rows. Raises ConfigError if
        too many rows have the same value."""
        rows_max = max(self._options.page_rows, self._options.page_rows_max)
        above = sql.SQL("")
        if after is not None:
            above = sql.SQL("AND t.{column} > {after}::{kind}").format(  # type: ignore[assignment]
                column=sql.Identifier(self._options.column), after=after, kind=sql.SQL(self._type)
            )
        rows = self.session.execute(
            sql.SQL(
                "SELECT * FROM (SELECT t.{column}::text, row_to_json(t)::text FROM {table} t"
                " WHERE t.{column} IS NOT NULL {above} ORDER BY t.{column} FETCH FIRST {count} ROWS WITH TIES) page"
                " LIMIT {limit}"
            ).format(
                column=sql.Identifier(self._options.column),
                table=table_name(self._options.table),
                above=above,
                count=sql.Literal(self._options.page_rows),
                limit=sql.Literal(rows_max + 1),
            )
        ).fetchall()
        if len(rows) > rows_max:
            raise ConfigError(
                f"More than {rows_max} rows of table {self._options.table} have the value {rows[-1][0]} in column"
                f" {self._options.column}; they are read at once.",
                next_step="Poll by a column whose values differ, or raise --page-rows-max, which costs memory; then"
                " start this again: nothing is lost.",
            )
        return TablePage(rows[-1][0], [row for _, row in rows]) if rows else None


class PollingMedium(PostgresMedium):
    """Puts rows into the spool, page by page. With `is_ending`, ends when the table has no further rows."""

    def __init__(self, options: PollingOptions, directory: Path, spool: Spool) -> None:
        super().__init__(options.url)
        self._options = options
        self._spool = spool
        self._table = PolledTable(options)
        self._file = PositionFile(directory)
        self._value: str | None = options.start or None

    def close(self) -> None:
        self._table.close()

    async def step(self, pushed: PushStream) -> bool:
        page = await self.call(self._table.page, self._value)
        if page is not None:
            await self._keep(page, pushed)
        elif not self._options.is_ending:
            await asyncio.sleep(self._options.poll_s)  # a table sends no signal for new rows
        return page is None and self._options.is_ending

    def begin(self) -> None:
        self._table.open()
        found = self._file.read(self._table.identity)
        if found is None:
            if self._spool.next_id:
                raise StorageError(
                    f"{self._spool.directory} has records, but the file position.json beside it is missing.",
                    next_step="Put position.json back, or begin again with a new directory.",
                )
            return
        # The announced page is in the spool completely, or not at all.
        is_there = self._spool.next_id >= int(found["records"])
        self._value = found["value"] if is_there else found["before"]

    async def _keep(self, page: TablePage, pushed: PushStream) -> None:
        batch = self._batch(page)
        position = {"before": self._value, "value": page.last, "records": self._spool.next_id + len(batch)}
        await self.call(lambda: self._file.write(self._table.identity, **position))
        faults.point("source:postgres-before-page")
        await pushed.put(batch)
        await pushed.flush()
        faults.point("source:postgres-after-page")
        self._value = page.last

    def _batch(self, page: TablePage) -> Batch:
        head = f'{{"op":"read","table":{json.dumps(self._options.table)},"after":'
        payloads: list[Any] = [f"{head}{row}}}" for row in page.rows]
        count = len(payloads)
        return Batch(
            np.arange(count, dtype=np.uint64),
            np.zeros(count, np.int64),
            pa.array(payloads, pa.string()).cast(pa.binary()),
        )
