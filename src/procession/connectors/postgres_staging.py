"""Writes rows by key: copies them into a staging table, then replaces and deletes rows of the target.

Invariant: if a key has several rows, the row with the greatest ordinal is used. The table is empty at the end of each
transaction. It is a regular table: a transaction that uses a temporary one cannot be prepared. Upstream:
`connectors/postgres_table`; downstream: the database.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from procession.connectors.postgres_connection import Session, lock_number
from procession.connectors.postgres_rows import IS_DELETE, ORDINAL
from procession.connectors.postgres_types import Column

TRUNCATE_FROM_ROWS = 1000
"""A staging table with fewer rows is emptied row by row: cheaper than a new file."""


class StagingTable:
    """The staging table of one instance.

    Args:
        session: An open session.
        target: The table whose rows are replaced.
        instance: The instance that writes.
        columns: The columns that are written.
        key: Names of the columns of the key.
        is_deleting: Whether some rows delete.
    """

    def __init__(
        self,
        session: Session,
        target: sql.Identifier,
        instance: str,
        columns: Sequence[Column],
        key: Sequence[str],
        *,
        is_deleting: bool,
    ) -> None:
        self._session = session
        self._target = target
        self._columns = columns
        self._key = key
        self._is_deleting = is_deleting
        number = lock_number("staging", target.as_string(session), instance) % 2**64
        self.name = sql.Identifier(*target._obj[:-1], f"procession_staging_{number:016x}")

    def make(self) -> None:
        """Create the staging table. Keep an existing one with the right columns, because a prepared transaction may
        lock it."""
        wanted = [(column.name, column.type_name) for column in (ORDINAL, IS_DELETE, *self._columns)]
        found = self._session.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (self.name.as_string(self._session),),
        ).fetchall()
        if found == wanted:
            return
        self._session.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self.name))
        self._session.execute(
            sql.SQL(
                "CREATE UNLOGGED TABLE {staging} AS SELECT 0::bigint AS {ordinal}, false AS {is_delete}, {names}"
                " FROM {table} WITH NO DATA"
            ).format(
                staging=self.name,
                ordinal=sql.Identifier(ORDINAL.name),
                is_delete=sql.Identifier(IS_DELETE.name),
                names=sql.SQL(", ").join(sql.Identifier(column.name) for column in self._columns),
                table=self._target,
            )
        )

    def apply(self, count: int) -> None:
        """Apply the `count` rows in the staging table to the target, then empty the staging table."""
        for statement in self._merge():
            self._session.execute(statement)
        way = "DELETE FROM {}" if count < TRUNCATE_FROM_ROWS else "TRUNCATE {}"
        self._session.execute(sql.SQL(way).format(self.name))

    def _merge(self) -> list[sql.Composed]:
        """Merge rows into the target. The last record of each key deletes or replaces the row."""
        key = sql.SQL(", ").join(map(sql.Identifier, self._key))
        names = [column.name for column in self._columns]
        others = [name for name in names if name not in self._key]
        latest = sql.SQL("(SELECT DISTINCT ON ({key}) * FROM {staging} ORDER BY {key}, {ordinal} DESC)").format(
            key=key, staging=self.name, ordinal=sql.Identifier(ORDINAL.name)
        )
        same = sql.SQL(" AND ").join(sql.SQL("t.{0} = s.{0}").format(sql.Identifier(name)) for name in self._key)
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
            table=self._target,
            names=sql.SQL(", ").join(map(sql.Identifier, names)),
            latest=latest,
            is_delete=is_delete,
            key=key,
            change=change,
        )
        if not self._is_deleting:
            return [insert]
        delete = sql.SQL("DELETE FROM {table} t USING {latest} s WHERE s.{is_delete} AND {same}").format(
            table=self._target, latest=latest, is_delete=is_delete, same=same
        )
        return [delete, insert]
