"""Writes the records of an epoch to PostgreSQL as rows, in the transaction that also advances the token.

Invariant: everything that the database can refuse is done before the vote, and the commit is one atomic step in the
database. In mode `prepared` the vote is PREPARE TRANSACTION and the commit is COMMIT PREPARED. In mode `token`, for
servers without prepared transactions, messages are also kept in a file, and the transaction stays open from the vote
to the commit. If the connection or the sink is lost before the commit, the transaction is run again from the file.
Upstream: `sdk/participant`; downstream: `connectors/postgres_session`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import structlog
from psycopg import errors, sql

from procession import faults
from procession.connectors.pending_records import PendingRecords, empty_records
from procession.connectors.postgres_connection import checked_url, connect, named, value
from procession.connectors.postgres_session import CommitMode, PostgresOptions, PostgresSession
from procession.connectors.postgres_table import TargetTable
from procession.errors import ConfigError, StorageError
from procession.sdk.output import Output
from procession.sdk.payloads import Payloads
from procession.sdk.sink_directory import LISTEN, OnOutcome, run_sink
from procession.sdk.transaction_log import Transaction
from procession.tls import ServerTls

MESSAGES = pa.schema([pa.field("payload", pa.binary(), nullable=False)])
"""The columns of mode `token`'s file."""
CHUNK_BYTES_MAX = 2 * 1024 * 1024
"""Approximate maximum size of the chunks in which messages are converted and written. It bounds the memory."""
CHUNK_BYTES_MIN = 256 * 1024
"""Smallest chunk that is written before the end of an epoch, while the server is idle."""

log = structlog.get_logger()


class MessageBuffer:
    """Collects messages until there are enough to write."""

    def __init__(self) -> None:
        self._arrays: list[pa.Array] = []
        self._start = 0
        self._size_bytes = 0

    def add(self, position: int, payloads: Sequence[bytes], *, is_idle: bool) -> bool:
        """Add messages. Return whether there are enough to write; fewer are enough while the server is idle."""
        payloads = Payloads.of(payloads)
        if not self._arrays:
            self._start = position
        self._arrays.append(payloads.array.cast(pa.binary()))
        self._size_bytes += int(payloads.edges[-1])
        return self._size_bytes >= (CHUNK_BYTES_MIN if is_idle else CHUNK_BYTES_MAX)

    def take(self) -> tuple[int, Payloads] | None:
        if not self._arrays:
            return None
        payloads = Payloads(pa.concat_arrays(self._arrays))
        self.clear()
        return self._start, payloads

    def clear(self) -> None:
        self._arrays, self._size_bytes = [], 0

    def is_empty(self, transaction: Transaction) -> bool:
        """Return whether the transaction has no bytes. Raise RecordError if it has messages nevertheless."""
        if transaction.start == transaction.end and self._arrays:
            raise empty_records()
        return transaction.start == transaction.end


class PreparedOutput(Output):
    """An output in mode `prepared`."""

    def __init__(self, database: PostgresSession, base: Path) -> None:
        self._database = database
        self._pending_path = pending_path(base)
        """Checked only for a file that mode `token` has left."""
        self._buffer = MessageBuffer()

    def recover(self, committed_end: int, prepared: Transaction | None) -> None:
        self._buffer.clear()
        database = self._database
        database.open()
        with named(database.url):
            kept = database.token.gid(prepared.txn_id) if prepared else ""
            found = database.token.prepared()
            for gid in found:
                if gid != kept:
                    # The sink was killed after PREPARE TRANSACTION, before the vote was on disk.
                    log.info("sink.prepared_rolled_back", gid=gid)
                    database.session.execute(sql.SQL("ROLLBACK PREPARED {}").format(gid))
            is_committed = prepared is not None and database.token.is_committed(prepared)
            if not is_committed:
                database.token.check(committed_end)
        if prepared and prepared.start < prepared.end and not is_committed and kept not in found:
            raise self._missing(prepared)

    def _missing(self, prepared: Transaction) -> StorageError:
        if self._pending_path.exists():
            return StorageError(
                f"{prepared.txn_id} was voted for in mode token, and waits for its decision.",
                next_step="Start the sink with --mode token until it is committed, then with the other mode.",
            )
        return StorageError(
            f"The prepared transaction {prepared.txn_id} is missing in the database, although the sink voted for it.",
            next_step="It was rolled back by another program, or the database was restored from an old copy: restore"
            " a newer copy.",
        )

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        if self._buffer.add(position, payloads, is_idle=self._database.is_idle):
            self._write()

    def prepare(self, transaction: Transaction) -> None:
        if self._buffer.is_empty(transaction):
            return
        database = self._database
        with named(database.url):
            self._write(transaction.txn_id)
            database.begin()
            database.token.advance(transaction)
            gid = database.token.gid(transaction.txn_id)
            faults.point("sink:postgres-before-prepare")
            try:
                database.end(sql.SQL("PREPARE TRANSACTION {}").format(gid))
            except errors.ObjectNotInPrerequisiteState as error:
                raise ConfigError(
                    "Prepared transactions are switched off in the database.",
                    next_step="Set max_prepared_transactions to a number above 0 and restart the server, or give"
                    " --mode token.",
                ) from error
            except errors.OutOfMemory as error:
                raise ConfigError(
                    f"The database takes no more prepared transactions: {error.diag.message_primary}.",
                    next_step="Raise max_prepared_transactions, or settle old ones (pg_prepared_xacts).",
                ) from error

    def commit(self, transaction: Transaction) -> None:
        if transaction.start < transaction.end:
            self._database.again(lambda: self._settle(transaction, commit=True))

    def abort(self, transaction: Transaction) -> None:
        self._buffer.clear()
        if self._database.session.broken:
            self._database.open()
        with named(self._database.url):
            self._database.rollback()
        if transaction.start < transaction.end:
            self._database.again(lambda: self._settle(transaction, commit=False))

    def close(self) -> None:
        self._database.close()

    def _write(self, txn_id: str = "") -> None:
        if taken := self._buffer.take():
            with named(self._database.url):
                self._database.write(*taken, txn_id)

    def _settle(self, transaction: Transaction, *, commit: bool) -> None:
        """Run COMMIT PREPARED or ROLLBACK PREPARED. If the transaction no longer exists, check its outcome with the
        token."""
        database = self._database
        way = sql.SQL("COMMIT PREPARED {}" if commit else "ROLLBACK PREPARED {}")
        try:
            database.session.execute(way.format(database.token.gid(transaction.txn_id)))
        except errors.UndefinedObject:
            is_committed = database.token.is_committed(transaction)
            if is_committed != commit:
                done = "committed" if is_committed else "rolled back"
                raise StorageError(
                    f"The prepared transaction {transaction.txn_id} was {done} in the database, against the decision.",
                    next_step="Only the sink may end it. Compare the table with the pipeline's output.",
                ) from None
        database.warn_of_old()


class TokenOutput(Output):
    """An output in mode `token`."""

    def __init__(self, database: PostgresSession, base: Path) -> None:
        self._database = database
        self._pending = PendingRecords(pending_path(base), MESSAGES)
        self._buffer = MessageBuffer()
        self._is_done = False
        """Whether the transaction in the files is committed."""
        self._open_txn_id = ""
        """The transaction with a vote that is still open in the session; lost with the connection."""

    def recover(self, committed_end: int, prepared: Transaction | None) -> None:
        self._is_done = False
        self._open_txn_id = ""
        self._buffer.clear()
        database = self._database
        database.open()
        with named(database.url):
            found = database.token.prepared()
            kept = database.token.gid(prepared.txn_id) if prepared else ""
            if kept in found:
                raise StorageError(
                    f"A transaction of this output was voted for in mode prepared, and waits for its decision: {kept}.",
                    next_step="Start the sink with --mode prepared until it is committed, then with the other mode.",
                )
            for gid in found:
                database.session.execute(sql.SQL("ROLLBACK PREPARED {}").format(gid))
            is_committed = prepared is not None and database.token.is_committed(prepared)
            if not is_committed:
                database.token.check(committed_end)
        if prepared is None or is_committed:
            self._pending.drop()
        elif prepared.start < prepared.end:
            self._pending.keep(prepared)

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        if self._is_done:
            # Only now: until the log has the commit, the driver may request this transaction again.
            self._pending.drop()
            self._is_done = False
        if self._buffer.add(position, payloads, is_idle=self._database.is_idle):
            self._write()

    def prepare(self, transaction: Transaction) -> None:
        if self._buffer.is_empty(transaction):
            return
        with named(self._database.url):
            self._write(transaction.txn_id)
            self._pending.sync()
            self._database.begin()
            self._database.token.advance(transaction)
        self._open_txn_id = transaction.txn_id

    def commit(self, transaction: Transaction) -> None:
        if transaction.start < transaction.end:
            self._database.again(lambda: self._publish(transaction))
        self._is_done = True

    def abort(self, transaction: Transaction) -> None:
        self._open_txn_id = ""
        self._buffer.clear()
        self._pending.drop()
        if not self._database.session.broken:
            with named(self._database.url):
                self._database.rollback()

    def close(self) -> None:
        self._pending.close()
        self._database.close()

    def _write(self, txn_id: str = "") -> None:
        if taken := self._buffer.take():
            position, payloads = taken
            with named(self._database.url):
                self._database.write(position, payloads, txn_id)
            self._pending.append(pa.record_batch([payloads.array], schema=MESSAGES), int(payloads.edges[-1]))

    def _publish(self, transaction: Transaction) -> None:
        open_txn_id, self._open_txn_id = self._open_txn_id, ""
        if open_txn_id != transaction.txn_id or not self._database.is_in_transaction:
            self._database.rollback()
            if self._database.token.is_committed(transaction):
                return
            try:
                self._run(transaction)
            except StorageError:
                self._database.rollback()
                raise
        faults.point("sink:postgres-before-commit")
        self._database.end("COMMIT")

    def _run(self, transaction: Transaction) -> None:
        """Run the transaction from the file, without its COMMIT."""
        position = transaction.start
        for batch in self._pending.batches():
            payloads = Payloads(batch.column("payload"))
            self._database.write(position, payloads, transaction.txn_id)
            position += int(payloads.edges[-1])
        self._database.begin()
        self._database.token.advance(transaction)


def pending_path(base: Path) -> Path:
    return base.with_name(f"{base.name}.pending")


def chosen_mode(options: PostgresOptions) -> CommitMode:
    """Return the commit mode; for `auto`, choose it from the server's settings. Also checks that the server can be
    used."""
    with connect(
        options.url,
        "sink",
        patience_s=options.patience_s,
        lock_timeout_s=options.lock_timeout_s,
        is_pooler_allowed=options.is_pooler_allowed,
    ) as session:
        prepared_max = int(value(session, "SELECT current_setting('max_prepared_transactions')"))
        with named(options.url):
            TargetTable(session, options.table, "check")
    if options.mode is CommitMode.PREPARED and not prepared_max:
        raise ConfigError(
            "Prepared transactions are switched off in the database.",
            next_step="Set max_prepared_transactions to a number above 0 and restart the server, or give --mode token.",
        )
    if options.mode is not CommitMode.AUTO:
        return options.mode
    return CommitMode.PREPARED if prepared_max else CommitMode.TOKEN


def run_postgres_sink(
    directory: Path,
    options: PostgresOptions,
    listen: str = LISTEN,
    *,
    cookie: bytes | None = None,
    tls: ServerTls | None = None,
    on_outcome: OnOutcome | None = None,
) -> None:
    """Serve the sink until a signal stops it; raises the error that stopped it otherwise."""
    checked_url(options.url)
    mode = chosen_mode(options)
    log.info("sink.commit_mode", mode=str(mode), table=options.table.table)

    def open_output(instance: str) -> Output:
        database = PostgresSession(options, instance)
        base = directory / instance
        return PreparedOutput(database, base) if mode is CommitMode.PREPARED else TokenOutput(database, base)

    run_sink(open_output, directory, listen, cookie=cookie, tls=tls, on_outcome=on_outcome)
