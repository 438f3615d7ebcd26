"""Checks the table of a sink at its start, and writes to the table within the caller's transaction.

Invariant: one COPY takes as many chunks as fit into `STATEMENT_BYTES_MAX`, while they arrive. If the database refuses
one of their records, all of them are written again, each chunk by halves under a savepoint, until the record is found;
it goes to the dead letters in the same transaction, or stops the sink with an error that names it. Upstream:
`connectors/postgres_session`; downstream: the database.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import psycopg
import pyarrow as pa
import structlog
from psycopg import errors, sql

from procession.connectors.postgres_connection import Session, lock_number, table_name, value
from procession.connectors.postgres_rows import (
    DeleteRule,
    FieldMapping,
    RecordEncoder,
    RecordRefused,
    TableRecords,
    mapped,
)
from procession.connectors.postgres_staging import StagingTable
from procession.connectors.postgres_types import BINARY_HEADER, BINARY_TRAILER, Column
from procession.errors import ConfigError, StorageError, UsageError
from procession.sdk.payloads import Payloads

STATEMENT_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of records after which a COPY ends. Until then the records stay in memory, to be written again if one is
refused.
"""

log = structlog.get_logger()

EncodedRows: TypeAlias = pa.Array | RecordRefused
"""Rows in the format of COPY, or the error of a record that cannot become a row."""

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
REFUSALS = (psycopg.DataError, psycopg.IntegrityError, errors.WithCheckOptionViolation)
"""Errors that one record may have caused: by its values, a constraint or the condition of a view."""
TRIGGER_SQLSTATE = "P0"
"""Class of errors that triggers in PL/pgSQL raise. They may also raise codes that PostgreSQL does not know."""


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """Records, their rows, and their transaction if it is known."""

    records: TableRecords
    rows: EncodedRows
    txn_id: str = ""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of a sink's table.

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
        """Check that the table can store the records. Raises ConfigError."""
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
        self._staging: StagingTable | None = None
        if options.key:
            columns = [mapping.column for mapping in mappings]
            self._staging = StagingTable(
                session, self._name, instance, columns, options.key, is_deleting=options.delete_when is not None
            )
        self._letters = table_name(options.dead_letters) if options.dead_letters else None
        self._has_savepoint = False

    def make(self) -> None:
        """Create the staging and dead-letter tables if they are missing."""
        if self._staging:
            self._staging.make()
        if self._letters:
            self._make_letters(self._letters)

    def begin(self) -> None:
        """Begin a transaction: lock the table for writing, and check that it has not changed. Make deferred
        constraints immediate, so that no record is refused after the vote."""
        self._has_savepoint = False
        self._session.execute(
            sql.SQL(
                "BEGIN ISOLATION LEVEL READ COMMITTED; LOCK TABLE {} IN ROW EXCLUSIVE MODE;"
                " SET CONSTRAINTS ALL IMMEDIATE"
            ).format(self._name)
        )
        if self._read_columns() != self.columns:
            raise ConfigError(
                f"The columns of {self._options.table} were changed while the sink ran.",
                next_step="Start the sink again: it then checks the new columns, and nothing is lost.",
            )

    def encode(self, records: TableRecords, first_ordinal: int = 0) -> EncodedRows:
        """Return the rows of these records. May run concurrently with the other methods."""
        try:
            return self._encoder.rows(records, first_ordinal)
        except RecordRefused as error:
            return error

    def write(self, chunks: Iterator[EncodedChunk]) -> None:
        """Write the rows of these chunks, in order, while they arrive. Raises StorageError for a refused record
        unless there is a dead-letter table."""
        chunk = next(chunks, None)
        while chunk is not None:
            if isinstance(chunk.rows, RecordRefused):
                self._find_refused(chunk)
                chunk = next(chunks, None)
            else:
                chunk = self._write_together(chunk, chunks)

    def _write_together(self, chunk: EncodedChunk, chunks: Iterator[EncodedChunk]) -> EncodedChunk | None:
        """Write this chunk and the following ones with one statement. Return the next chunk."""
        sent: list[EncodedChunk] = []
        following: EncodedChunk | None = chunk
        size = count = 0
        self._savepoint()
        try:
            with self._copying() as copy:
                while following is not None and not isinstance(following.rows, RecordRefused):
                    # Only the records are kept, not their rows.
                    sent.append(EncodedChunk(following.records, RecordRefused(), following.txn_id))
                    size += following.records.payloads.nbytes
                    count += len(following.rows)
                    copy.write(Payloads(following.rows).joined)
                    following = None
                    if size >= STATEMENT_BYTES_MAX:
                        break
                    following = next(chunks, None)
            if self._staging:
                self._staging.apply(count)
        except psycopg.DatabaseError as error:
            if not _is_refusal(error):
                raise
            self._session.execute("ROLLBACK TO SAVEPOINT records")
            for again in sent:
                self._find_refused(again)
        return following or next(chunks, None)

    def _find_refused(self, chunk: EncodedChunk) -> None:
        """Write all records of a chunk except those that are refused."""
        waiting = [chunk.records]
        while waiting:
            some = waiting.pop()
            rows = self.encode(some)
            error = rows if isinstance(rows, RecordRefused) else self._try(rows)
            if error is None:
                continue
            if len(some) > 1:
                half = len(some) // 2
                waiting += [some.slice(half, len(some) - half), some.slice(0, half)]
            else:
                self._refuse(some, error, chunk.txn_id)

    def _try(self, rows: pa.Array) -> psycopg.Error | None:
        """Write all rows or none. Return the error if one of the rows may have caused it."""
        self._savepoint()
        try:
            with self._copying() as copy:
                copy.write(Payloads(rows).joined)
            if self._staging:
                self._staging.apply(len(rows))
        except psycopg.DatabaseError as error:
            if not _is_refusal(error):
                raise
            self._session.execute("ROLLBACK TO SAVEPOINT records")
            return error
        return None

    def _savepoint(self) -> None:
        self._session.execute(f"{'RELEASE SAVEPOINT records; ' if self._has_savepoint else ''}SAVEPOINT records")
        self._has_savepoint = True

    @contextmanager
    def _copying(self) -> Iterator[psycopg.Copy]:
        """Yield a COPY that takes rows until it is left."""
        is_binary = self._encoder.is_binary
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT {})").format(
            self._staging.name if self._staging else self._name,
            sql.SQL(", ").join(map(sql.Identifier, self._encoder.columns)),
            sql.SQL("binary" if is_binary else "text"),
        )
        with self._session.cursor() as cursor, cursor.copy(statement) as copy:
            if is_binary:
                copy.write(BINARY_HEADER)
            yield copy
            if is_binary:
                copy.write(BINARY_TRAILER)

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
                next_step="Create the table, or name another one: --table, or table= in the URL.",
            ) from None
        return {row[0]: Column(*row) for row in rows}

    def _check_key(self, mappings: Sequence[FieldMapping]) -> None:
        names = {mapping.column.name for mapping in mappings}
        if self._options.delete_when and not self._options.key:
            raise UsageError(
                "Records delete by key, but there is no key.", next_step="Name the key's columns with --key."
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
            return  # the check of privileges has a better message

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


def _is_refusal(error: psycopg.DatabaseError) -> bool:
    """Return whether one record may have caused this error."""
    code = error.sqlstate or ""
    is_raised = code.startswith(TRIGGER_SQLSTATE) or (bool(code) and type(error) is psycopg.DatabaseError)
    return isinstance(error, REFUSALS) or is_raised


def _reason(error: RecordRefused | psycopg.Error) -> str:
    if not isinstance(error, psycopg.Error):
        return str(error)
    message = error.diag.message_primary or str(error)
    detail = f" ({error.diag.message_detail.rstrip('.')})" if error.diag.message_detail else ""
    return f"{message}{detail}"
