"""The table that a sink writes to: checked when the sink starts, and written within the caller's transaction.

Invariant: a record that the database refuses is found by halving its chunk, each half under a savepoint; then it goes
to the dead letters in the same transaction, or stops the sink with an error that names it. Upstream:
`connectors/postgres_sink`; downstream: the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import psycopg
import pyarrow as pa
import structlog
from psycopg import errors, sql

from procession.connectors.postgres_connection import Session, lock_number, table_name, value
from procession.connectors.postgres_rows import (
    IS_DELETE,
    ORDINAL,
    DeleteRule,
    FieldMapping,
    RecordEncoder,
    RecordRefused,
    TableRecords,
    mapped,
)
from procession.connectors.postgres_types import BINARY_HEADER, BINARY_TRAILER, Column
from procession.errors import ConfigError, StorageError, UsageError
from procession.sdk.payloads import Payloads

TRUNCATE_FROM_ROWS = 1000
"""A staging table with fewer rows is emptied row by row: cheaper than a new file."""

log = structlog.get_logger()

EncodedRows: TypeAlias = pa.Array | RecordRefused
"""Rows as COPY takes them, or why a record cannot become one."""

COLUMNS = """
WITH RECURSIVE base AS (
    SELECT a.attnum, a.atttypid AS oid, a.atttypmod AS modifier FROM pg_attribute a
    WHERE a.attrelid = %(table)s::regclass AND a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
    SELECT base.attnum, t.typbasetype, t.typtypmod FROM base JOIN pg_type t ON t.oid = base.oid WHERE t.typtype = 'd'
)
SELECT a.attname, format_type(a.atttypid, a.atttypmod), t.typname, t.typtype = 'e', base.modifier,
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',
       a.atthasdef OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_attribute a JOIN base USING (attnum) JOIN pg_type t ON t.oid = base.oid
WHERE a.attrelid = %(table)s::regclass AND t.typtype <> 'd' ORDER BY a.attnum
"""
REFUSALS = (psycopg.DataError, psycopg.IntegrityError, errors.RaiseException, errors.WithCheckOptionViolation)
"""What may be due to one record: its values, a constraint, a trigger that raises, the condition of a view."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The table that a sink writes to, and how.

    Args:
        table: The table, as TABLE or SCHEMA.TABLE.
        columns: COLUMN or COLUMN=FIELD, in addition to the default: the field of the same name.
        key: The columns of a unique key. With it a record replaces the row of its key; without it, it is inserted.
        delete_when: Which records delete the row of their key.
        dead_letters: The table for records that are refused. None: such a record stops the sink.
        is_arrow: Payloads are Arrow tables instead of JSON objects.
    """

    table: str
    columns: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    delete_when: DeleteRule | None = None
    dead_letters: str | None = None
    is_arrow: bool = False


class TargetTable:
    """The table of one instance. All methods need an open session; those that write, an open transaction."""

    def __init__(self, session: Session, options: TableOptions, instance: str) -> None:
        """Check that the table can take what will come. Raises ConfigError."""
        self._session = session
        self._options = options
        self._instance = instance
        self._name = table_name(options.table)
        self._text = self._name.as_string(session)
        self.columns = self._read_columns()
        mappings = mapped(self.columns, options.columns, options.table, options.key)
        self._check_key(mappings)
        self._check_rights()
        self._encoder = RecordEncoder(
            mappings,
            instance,
            is_arrow=options.is_arrow,
            delete=options.delete_when,
            is_staged=bool(options.key),
        )
        self._mappings = mappings
        number = lock_number("staging", self._text, instance) % 2**64
        self._staging = sql.Identifier(*self._name._obj[:-1], f"procession_staging_{number:016x}")
        self._letters = table_name(options.dead_letters) if options.dead_letters else None

    def make(self) -> None:
        """Create the tables that belong to it, if they are missing."""
        if self._options.key:
            self._make_staging()
        if self._letters:
            self._make_letters(self._letters)

    def begin(self) -> None:
        """Called first in each transaction: takes the lock for writing, and checks that the table has not changed.

        Makes deferred constraints immediate, so that no record is refused after the vote."""
        self._session.execute(sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(self._name))
        self._session.execute("SET CONSTRAINTS ALL IMMEDIATE")
        if self._read_columns() != self.columns:
            raise ConfigError(
                f"The columns of {self._options.table} were changed while the sink ran.",
                next_step="Start the sink again: it then checks the new columns, and nothing is lost.",
            )

    def encode(self, records: TableRecords) -> EncodedRows:
        """The rows of these records. May run beside the other methods."""
        try:
            return self._encoder.rows(records)
        except RecordRefused as error:
            return error

    def write(self, records: TableRecords, rows: EncodedRows, txn_id: str = "") -> None:
        """Writes the rows of these records, in order. Raises StorageError for a refused record, unless there is a
        dead-letter table."""
        waiting = [(records, rows)]
        while waiting:
            some, encoded = waiting.pop()
            error = encoded if isinstance(encoded, RecordRefused) else self._try(encoded)
            if error is None:
                continue
            if len(some) > 1:
                half = len(some) // 2
                halves = some.slice(half, len(some) - half), some.slice(0, half)
                waiting += [(one, self.encode(one)) for one in halves]
            else:
                self._refuse(some, error, txn_id)

    def _try(self, rows: pa.Array) -> psycopg.Error | None:
        """Write all rows or none. The error, if it may be due to one of them."""
        self._session.execute("SAVEPOINT records")
        try:
            self._write_rows(rows)
        except REFUSALS as error:
            self._session.execute("ROLLBACK TO SAVEPOINT records")
            return error
        self._session.execute("RELEASE SAVEPOINT records")
        return None

    def _write_rows(self, rows: pa.Array) -> None:
        if not len(rows):
            return
        if not self._options.key:
            self._copy(self._name, rows)
            return
        self._copy(self._staging, rows)
        for statement in self._merge():
            self._session.execute(statement)
        if len(rows) < TRUNCATE_FROM_ROWS:
            self._session.execute(sql.SQL("DELETE FROM {}").format(self._staging))
        else:
            self._session.execute(sql.SQL("TRUNCATE {}").format(self._staging))

    def _copy(self, into: sql.Identifier, rows: pa.Array) -> None:
        is_binary = self._encoder.is_binary
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT {})").format(
            into,
            sql.SQL(", ").join(map(sql.Identifier, self._encoder.columns)),
            sql.SQL("binary" if is_binary else "text"),
        )
        with self._session.cursor() as cursor, cursor.copy(statement) as copy:
            if is_binary:
                copy.write(BINARY_HEADER)
            copy.write(Payloads(rows).joined)
            if is_binary:
                copy.write(BINARY_TRAILER)

    def _merge(self) -> list[sql.Composed]:
        """Of each key the last record counts: it deletes the row, or becomes it."""
        key = sql.SQL(", ").join(map(sql.Identifier, self._options.key))
        names = [mapping.column.name for mapping in self._mappings]
        others = [name for name in names if name not in self._options.key]
        latest = sql.SQL("(SELECT DISTINCT ON ({key}) * FROM {staging} ORDER BY {key}, {ordinal} DESC)").format(
            key=key, staging=self._staging, ordinal=sql.Identifier(ORDINAL.name)
        )
        same = sql.SQL(" AND ").join(
            sql.SQL("t.{0} = s.{0}").format(sql.Identifier(name)) for name in self._options.key
        )
        change: sql.Composable = sql.SQL("NOTHING")
        if others:
            change = sql.SQL("UPDATE SET {}").format(
                sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in others)
            )
        is_delete = sql.Identifier(IS_DELETE.name)
        insert = sql.SQL(
            "INSERT INTO {table} ({names}) SELECT {names} FROM {latest} s WHERE NOT {is_delete}"
            " ON CONFLICT ({key}) DO {change}"
        ).format(
            table=self._name,
            names=sql.SQL(", ").join(map(sql.Identifier, names)),
            latest=latest,
            is_delete=is_delete,
            key=key,
            change=change,
        )
        if self._options.delete_when is None:
            return [insert]
        delete = sql.SQL("DELETE FROM {table} t USING {latest} s WHERE s.{is_delete} AND {same}").format(
            table=self._name, latest=latest, is_delete=is_delete, same=same
        )
        return [delete, insert]

    def _refuse(self, record: TableRecords, error: RecordRefused | psycopg.Error, txn_id: str) -> None:
        position = int(record.positions[0])
        if self._letters is None:
            raise self._stopped(position, error) from error
        diag = error.diag if isinstance(error, psycopg.Error) else None
        self._session.execute(
            sql.SQL(
                "INSERT INTO {} (instance, position, transaction, reason, sqlstate, constraint_name, payload)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s)"
            ).format(self._letters),
            (
                self._instance,
                position,
                txn_id,
                _reason(error),
                diag.sqlstate if diag else None,
                diag.constraint_name if diag else None,
                record.payloads[0].as_py(),
            ),
        )
        log.warning("sink.record_refused", instance=self._instance, position=position, reason=_reason(error))

    def _stopped(self, position: int, error: RecordRefused | psycopg.Error) -> StorageError:
        constraint = error.diag.constraint_name if isinstance(error, psycopg.Error) else None
        by = f" by constraint {constraint}" if constraint else ""
        return StorageError(
            f"The record at position {position} of {self._instance} is refused{by} for table {self._options.table}:"
            f" {_reason(error)}.",
            next_step="Change the table or the app, or give --dead-letters TABLE; then start again: nothing is lost.",
            position=position,
            constraint=constraint,
        )

    # When the sink starts

    def _read_columns(self) -> dict[str, Column]:
        try:
            rows = self._session.execute(COLUMNS, {"table": self._text}).fetchall()
        except (errors.UndefinedTable, errors.InvalidSchemaName):
            raise ConfigError(
                f"There is no table {self._options.table} in the database.",
                next_step="Create the table, or name another one with --table.",
            ) from None
        return {row[0]: Column(*row) for row in rows}

    def _check_key(self, mappings: Sequence[FieldMapping]) -> None:
        names = {mapping.column.name for mapping in mappings}
        if self._options.delete_when and not self._options.key:
            raise UsageError(
                "TableRecords delete by key, but there is none.", next_step="Name the key's columns with --key."
            )
        for name in self._options.key:
            if name not in names:
                raise UsageError(
                    f"Table {self._options.table} has no column {name!r} that could be its key.",
                    next_step=f"Name some of {', '.join(sorted(names))} with --key.",
                )
        if not self._options.key:
            return
        probe = sql.SQL("EXPLAIN INSERT INTO {table} ({key}) SELECT {key} FROM {table} ON CONFLICT ({key}) DO NOTHING")
        key = sql.SQL(", ").join(map(sql.Identifier, self._options.key))
        try:
            self._session.execute(probe.format(table=self._name, key=key))
        except errors.InvalidColumnReference:
            raise ConfigError(
                f"Table {self._options.table} has no primary key or unique index on {', '.join(self._options.key)}.",
                next_step=f"Create one: CREATE UNIQUE INDEX ON {self._text} ({key.as_string(self._session)}).",
            ) from None
        except errors.InsufficientPrivilege:
            return  # said better by the check of rights

    def _check_rights(self) -> None:
        needed = ["INSERT"] + (["SELECT", "UPDATE"] if self._options.key else [])
        needed += ["DELETE"] if self._options.delete_when else []
        for right in needed:
            if not value(self._session, "SELECT has_table_privilege(%s::regclass, %s)", (self._text, right)):
                user = self._session.info.user
                raise ConfigError(
                    f"User {user} may not {right} in table {self._options.table}.",
                    next_step=f"Grant it: GRANT {', '.join(needed)} ON {self._text} TO {user}.",
                )

    def _make_staging(self) -> None:
        """Creates a regular table: a transaction that uses a temporary one cannot be prepared.

        Keeps an existing table that fits, because a prepared transaction may hold a lock on it."""
        wanted = [(ORDINAL.name, ORDINAL.type_name), (IS_DELETE.name, IS_DELETE.type_name)]
        wanted += [(mapping.column.name, mapping.column.type_name) for mapping in self._mappings]
        found = self._session.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (self._staging.as_string(self._session),),
        ).fetchall()
        if found == wanted:
            return
        names = sql.SQL(", ").join(sql.Identifier(mapping.column.name) for mapping in self._mappings)
        self._session.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._staging))
        self._session.execute(
            sql.SQL(
                "CREATE UNLOGGED TABLE {staging} AS SELECT 0::bigint AS {ordinal}, false AS {is_delete}, {names}"
                " FROM {table} WITH NO DATA"
            ).format(
                staging=self._staging,
                ordinal=sql.Identifier(ORDINAL.name),
                is_delete=sql.Identifier(IS_DELETE.name),
                names=names,
                table=self._name,
            )
        )

    def _make_letters(self, letters: sql.Identifier) -> None:
        with self._session.transaction():
            self._session.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number("dead letters"),))
            self._session.execute(
                sql.SQL(
                    "CREATE TABLE IF NOT EXISTS {} (instance text NOT NULL, position bigint NOT NULL,"
                    " transaction text NOT NULL, reason text NOT NULL, sqlstate text, constraint_name text,"
                    " payload bytea NOT NULL, rejected_at timestamptz NOT NULL DEFAULT now())"
                ).format(letters)
            )


def _reason(error: RecordRefused | psycopg.Error) -> str:
    if not isinstance(error, psycopg.Error):
        return str(error)
    said = error.diag.message_primary or str(error)
    detail = f" ({error.diag.message_detail.rstrip('.')})" if error.diag.message_detail else ""
    return f"{said}{detail}"
