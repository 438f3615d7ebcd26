"""Manages the replication slot of a source: creates it with its publication, reads it and advances it.

Invariant: reading the slot changes nothing, so it can be repeated; only `advance` lets the server drop changes.
Upstream: `connectors/postgres_source`; downstream: the database.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import structlog
from psycopg import sql

from procession.connectors.postgres_changes import Change, ChangeDecoder, lsn_number, lsn_text
from procession.connectors.postgres_connection import (
    LOCK_TIMEOUT_S,
    PATIENCE_S,
    lock_number,
    table_name,
    try_lock,
    value,
)
from procession.connectors.postgres_medium import SourceSession
from procession.errors import ConfigError, StorageError, UsageError

MESSAGES_MAX = 20_000
"""Number of messages of the output plugin per request. The server always sends whole transactions."""
FETCH_ROWS = 2_000
_NAME = re.compile(r"[a-z0-9_]{1,63}")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ChangesOptions:
    """Which changes a source reads.

    Args:
        url: The database, without a password.
        tables: The tables. Empty: those of an existing publication.
        slot: Name of the replication slot. It is created.
        publication: Name of the publication. It is created for the tables, if there is none.
        poll_s: Time between two polls of a slot without new changes.
        is_ending: End after the changes that were committed when the source started.
        patience_s: How long to retry an unreachable server.
        lock_timeout_s: How long to wait for another source that still runs.
    """

    url: str
    tables: tuple[str, ...] = ()
    slot: str = "procession"
    publication: str = ""
    poll_s: float = 0.2
    is_ending: bool = False
    patience_s: float = PATIENCE_S
    lock_timeout_s: float = LOCK_TIMEOUT_S

    @property
    def publication_name(self) -> str:
        return self.publication or self.slot


class ReplicationSlot(SourceSession):
    """The slot and the publication of a source. All methods run in one thread."""

    def __init__(self, options: ChangesOptions) -> None:
        for name in (options.slot, options.publication_name):
            if not _NAME.fullmatch(name):
                raise UsageError(
                    f"{name!r} cannot name a replication slot.", next_step="Use lower-case letters, digits and _."
                )
        patience_s, lock_timeout_s = options.patience_s, options.lock_timeout_s
        super().__init__(options.url, options.slot, patience_s=patience_s, lock_timeout_s=lock_timeout_s)
        self._options = options
        self.identity: dict[str, str] = {}
        self._primary_keys: dict[str, set[str]] = {}
        self._decoder = ChangeDecoder(self._primary_keys)
        self.messages = 0
        """Number of messages that the last pass has read. If fewer than `MESSAGES_MAX`, the pass has read all."""

    def open(self, *, is_new: bool) -> int:
        """Connect, and create the publication if it is missing, and the slot if the source is new. Return the slot's
        position."""
        options = self._options
        with self.opened():
            if not try_lock(self.session, lock_number("source", options.slot)):
                raise StorageError(
                    f"Another source reads the replication slot {options.slot}.",
                    next_step="Stop that one, or give this one another --slot.",
                )
            self.identity = {
                "system": str(value(self.session, "SELECT system_identifier FROM pg_control_system()")),
                "database": self.session.info.dbname,
                "slot": options.slot,
            }
            self._ensure_publication()
            return self._ensure_slot(is_new=is_new)

    def end_lsn(self) -> int:
        """Return the end of the server's durable log."""
        return lsn_number(value(self.session, "SELECT pg_current_wal_flush_lsn()::text"))

    def changes(self, upto: int) -> Generator[Change, None, None]:
        """Yield changes after the slot's position, in transactions that were committed below `upto`. May stop before
        the last one. The slot does not move."""
        self.messages = 0
        with self.session.transaction(), self.session.cursor("changes", binary=True) as cursor:
            cursor.itersize = FETCH_ROWS
            cursor.execute(
                "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, %s,"
                " 'proto_version', '1', 'publication_names', %s)",
                (self._options.slot, lsn_text(upto), MESSAGES_MAX, f'"{self._options.publication_name}"'),
            )
            for (message,) in cursor:
                self.messages += 1
                yield from self._decoder.decode(message)

    def advance(self, lsn: int) -> None:
        """Advance the slot: all changes of transactions below `lsn` are stored here, so the server may delete
        them."""
        self.session.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (self._options.slot, lsn_text(lsn)))

    def _ensure_slot(self, *, is_new: bool) -> int:
        found = self.session.execute(
            "SELECT plugin, database, confirmed_flush_lsn::text, wal_status FROM pg_replication_slots"
            " WHERE slot_name = %s",
            (self._options.slot,),
        ).fetchone()
        if found is None and not is_new:
            raise StorageError(
                f"The replication slot {self._options.slot} is gone. The changes that were not read are lost.",
                next_step="Begin again with a new --slot and a new directory; changes in between are missing.",
            )
        if found is None:
            created = value(
                self.session,
                "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')",
                (self._options.slot,),
            )
            log.info("source.slot_created", slot=self._options.slot, lsn=created)
            return lsn_number(created)
        plugin, database, lsn, status = found
        if plugin != "pgoutput" or database != self.session.info.dbname:
            raise ConfigError(
                f"The replication slot {self._options.slot} is one of {plugin} in database {database}.",
                next_step="Give this source another --slot.",
            )
        if status == "lost":
            raise StorageError(
                f"The server has deleted changes that the replication slot {self._options.slot} needs.",
                next_step="Raise max_slot_wal_keep_size. Begin again with a new --slot and a new directory; changes in"
                " between are missing.",
            )
        return lsn_number(lsn)

    def _ensure_publication(self) -> None:
        name, tables = self._options.publication_name, [self._table(text) for text in self._options.tables]
        level = value(self.session, "SELECT current_setting('wal_level')")
        if level != "logical":
            raise ConfigError(
                f"The server has wal_level={level}, which keeps no changes.",
                next_step="Set wal_level=logical and restart the server.",
            )
        if not value(self.session, "SELECT 1 FROM pg_publication WHERE pubname = %s", (name,)):
            if not tables:
                raise UsageError(
                    f"There is no publication {name!r}, and no table is named.",
                    next_step="Name tables with --table, or a publication that exists with --publication.",
                )
            self._check_identities(tables)
            self.session.execute(
                sql.SQL("CREATE PUBLICATION {} FOR TABLE {}").format(
                    sql.Identifier(name), sql.SQL(", ").join(table_name(table) for table in tables)
                )
            )
        rows = self.session.execute(
            "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = %s", (name,)
        ).fetchall()
        published = {table for (table,) in rows}
        for table in tables:
            if table not in published:
                raise ConfigError(
                    f"The publication {name} does not have the table {table}.",
                    next_step=f"Run ALTER PUBLICATION {name} ADD TABLE {table}, or name another with --publication.",
                )
        for table in published:
            self._primary_keys[table] = self._primary_key(table)

    def _table(self, text: str) -> str:
        """Return the table's name with its schema."""
        found = self.session.execute(
            "SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.oid = to_regclass(%s)",
            (table_name(text).as_string(self.session),),
        ).fetchone()
        if found is None:
            raise ConfigError(f"There is no table {text} in the database.", next_step="Create it, or name another.")
        return str(found[0])

    def _check_identities(self, tables: Sequence[str]) -> None:
        """Raise ConfigError if a table has no replica identity: once it is published, it would refuse updates and
        deletes."""
        for table in tables:
            identity = value(
                self.session, "SELECT relreplident FROM pg_class WHERE oid = %s::regclass", (self._quoted(table),)
            )
            if identity == "n" or (identity == "d" and not self._primary_key(table)):
                raise ConfigError(
                    f"Table {table} has no primary key: if it were published, its rows could not be updated or"
                    " deleted.",
                    next_step=f"Add a primary key, or run ALTER TABLE {table} REPLICA IDENTITY FULL.",
                )

    def _primary_key(self, table: str) -> set[str]:
        rows = self.session.execute(
            "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid"
            " AND a.attnum = ANY(i.indkey) WHERE i.indrelid = %s::regclass AND i.indisprimary",
            (self._quoted(table),),
        ).fetchall()
        return {name for (name,) in rows}

    def _quoted(self, table: str) -> str:
        return sql.Identifier(*table.split(".", 1)).as_string(self.session)
