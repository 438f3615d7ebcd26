"""Reads and writes the token of an output: a row in the database with the committed end of the output.

Invariant: the token changes in the same transaction as the data, and only from the transaction's start to its end. So
after a crash it shows whether a transaction is committed. An advisory lock allows only one sink at a time to change
it. Upstream: `connectors/postgres_sink`; downstream: the database.
"""

from __future__ import annotations

import hashlib

from psycopg import errors, sql

from procession.connectors.postgres_connection import Session, lock_number, table_name, try_lock, value
from procession.errors import ConfigError, StorageError
from procession.sdk.transaction_log import Transaction

TOKENS = "procession_sink_tokens"
GID_BYTES_MAX = 199


class OutputToken:
    """The token of one instance. `lock` must be called first."""

    def __init__(self, session: Session, table: str, instance: str) -> None:
        self._session = session
        self._table = table
        self._name = table_name(table)
        self._instance = instance

    def lock(self) -> None:
        """Lock the output against other sinks until the session ends."""
        number = lock_number("sink", self._table, self._instance)
        if try_lock(self._session, number):
            return
        holder = self._session.execute(
            "SELECT a.pid, a.client_addr, a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
            " WHERE l.locktype = 'advisory' AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE"
            " datname = current_database()) AND l.classid = %s AND l.objid = %s",
            ((number % 2**64) >> 32, number % 2**32),
        ).fetchone()
        holder_text = f" (server process {holder[0]}, from {holder[1] or 'this machine'})" if holder else ""
        raise StorageError(
            f"Another sink writes the output {self._instance} to this database{holder_text}.",
            next_step="Stop that one, or give the pipeline another name; then start this again: nothing is lost.",
        )

    def make(self) -> None:
        """Create the table of tokens, if there is none."""
        if value(self._session, "SELECT to_regclass(%s)::text", (self._name.as_string(self._session),)):
            return
        try:
            with self._session.transaction():
                self._session.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number("tokens"),))
                self._session.execute(self._definition())
        except errors.InsufficientPrivilege:
            ddl = self._definition().as_string(self._session)
            user = self._session.info.user
            raise ConfigError(
                f"User {user} may not create the table {self._table}, which records the committed end.",
                next_step=f"Let an administrator run: {ddl};"
                f" GRANT SELECT, INSERT, UPDATE ON {self._name.as_string(self._session)} TO {user}.",
            ) from None

    def _definition(self) -> sql.Composed:
        return sql.SQL(
            "CREATE TABLE IF NOT EXISTS {} (instance text PRIMARY KEY, committed bigint NOT NULL,"
            " transaction text NOT NULL, committed_at timestamptz NOT NULL)"
        ).format(self._name)

    def read(self) -> int | None:
        """Return the committed end; None if nothing was ever committed."""
        row = self._row()
        return row[0] if row else None

    def is_committed(self, transaction: Transaction) -> bool:
        """Return whether this transaction is committed in the database. An end alone is not enough: a later attempt
        may have the same end."""
        end, txn_id = self._row() or (0, "")
        is_empty = transaction.start == transaction.end
        return bool(end == transaction.end and (is_empty or txn_id == transaction.txn_id))

    def _row(self) -> tuple[int, str] | None:
        statement = sql.SQL("SELECT committed, transaction FROM {} WHERE instance = %s").format(self._name)
        return self._session.execute(statement, (self._instance,)).fetchone()

    def advance(self, transaction: Transaction) -> None:
        """Set the token from the transaction's start to its end, within the transaction that writes the data."""
        if transaction.start == 0:
            self._session.execute(
                sql.SQL("INSERT INTO {} VALUES (%s, 0, '', now()) ON CONFLICT DO NOTHING").format(self._name),
                (self._instance,),
            )
        done = self._session.execute(
            sql.SQL(
                "UPDATE {} SET committed = %s, transaction = %s, committed_at = now()"
                " WHERE instance = %s AND committed = %s"
            ).format(self._name),
            (transaction.end, transaction.txn_id, self._instance, transaction.start),
        )
        if done.rowcount != 1:
            raise self.misplaced(transaction.start)

    def check(self, committed_end: int) -> None:
        """Raise StorageError if the committed end in the database differs from the sink's transaction log."""
        if (self.read() or 0) != committed_end:
            raise self.misplaced(committed_end)

    def misplaced(self, committed_end: int) -> StorageError:
        found = self.read()
        table = self._name.as_string(self._session)
        delete = f"DELETE FROM {table} WHERE instance = {sql.Literal(self._instance).as_string(self._session)}"
        if found is not None and found > committed_end:
            return StorageError(
                f"The database has {found} bytes of the output {self._instance}, but the sink's directory knows of"
                f" {committed_end}: it is not the directory that this output was written from.",
                next_step=f"Start the sink with that directory. If this is a new pipeline, run: {delete}.",
            )
        return StorageError(
            f"The database has {found or 0} bytes of the output {self._instance}, but {committed_end} are committed: it"
            " was restored from an old copy, or its token was deleted.",
            next_step="Restore a database that has them, or begin again with a new pipeline directory and a new table.",
        )

    # Prepared transactions

    def gid(self, txn_id: str) -> str:
        """Return the name of a prepared transaction: unique in the server, and below PostgreSQL's limit."""
        whole = f"{self._prefix}{_digest(txn_id)}:{txn_id}"
        return whole.encode()[:GID_BYTES_MAX].decode(errors="ignore")

    def prepared(self) -> list[str]:
        """Return the prepared transactions of this output."""
        rows = self._session.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)",
            (self._prefix,),
        ).fetchall()
        return [row[0] for row in rows]

    @property
    def _prefix(self) -> str:
        return f"procession:{_digest(self._session.info.dbname, self._table, self._instance)}:"


def _digest(*names: str) -> str:
    return hashlib.blake2b("\0".join(names).encode(), digest_size=8).hexdigest()
