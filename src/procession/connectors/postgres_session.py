"""Manages one output's session with PostgreSQL, and defines the options of a sink.

Invariant: while a session is open, no other sink writes the same output. All records are written in one transaction,
which begins with the first record and is ended by the output. Upstream: `connectors/postgres_sink`; downstream:
`connectors/postgres_table` and `connectors/postgres_token`.
"""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from queue import Queue

import numpy as np
import psycopg
import pyarrow as pa
import structlog
from psycopg import sql

from procession.connectors.postgres_connection import LOCK_TIMEOUT_S, PATIENCE_S, Session, connect, named
from procession.connectors.postgres_rows import RecordRefused, TableRecords
from procession.connectors.postgres_table import EncodedChunk, TableOptions, TargetTable
from procession.connectors.postgres_token import TOKENS, OutputToken
from procession.errors import ProcessionError, StorageError
from procession.sdk.payloads import Payloads
from procession.sdk.record_blocks import BLOCK_SCHEMA, RecordForm, record_batches

OLD_S = 3600.0
"""Age from which a prepared transaction is logged as a warning."""
WARN_INTERVAL_S = 60.0
CHUNKS_WAITING_MAX = 2
"""Maximum number of converted chunks that wait to be written."""

log = structlog.get_logger()


class CommitMode(enum.StrEnum):
    """How an output takes part in two-phase commit."""

    AUTO = "auto"
    """`prepared` if the server allows prepared transactions, else `token`."""
    PREPARED = "prepared"
    TOKEN = "token"


@dataclass(frozen=True, slots=True)
class PostgresOptions:
    """The options of a sink.

    Args:
        url: The database, without a password.
        table: The table, and what goes into it.
        mode: How it takes part in two-phase commit.
        tokens: The table of tokens.
        lock_timeout_s: How long a statement waits for a lock, and a starting sink for one that still runs.
        patience_s: How long to retry an unreachable server.
        is_pooler_allowed: There is a connection pooler, and it gives each client its own session.
        form: How records arrive.
    """

    url: str
    table: TableOptions
    mode: CommitMode = CommitMode.AUTO
    tokens: str = TOKENS
    lock_timeout_s: float = LOCK_TIMEOUT_S
    patience_s: float = PATIENCE_S
    is_pooler_allowed: bool = False
    form: RecordForm = RecordForm.MESSAGES


class PostgresSession:
    """The session of one output. While the session is open, the output is locked against a second sink and its table
    is checked."""

    def __init__(self, options: PostgresOptions, instance: str) -> None:
        self.url = options.url
        self._options = options
        self._instance = instance
        self._session: Session | None = None
        self._warned_s = 0.0
        self._is_open = False
        """A transaction is open."""
        self._thread = ThreadPoolExecutor(1, "postgres")
        self._writing: Future[None] | None = None
        """The thread that writes until `_wait`. Meanwhile no other thread may use the connection."""
        self._has_failed = False
        """Whether the thread has stopped because of an error, which `_wait` raises."""
        self._chunks: Queue[EncodedChunk | None] = Queue(CHUNKS_WAITING_MAX)
        """The chunks for the thread to write; None marks the end."""
        self._ordinal = 0
        """Number of rows passed to the thread since it started."""
        self.token: OutputToken
        self.table: TargetTable

    @property
    def session(self) -> Session:
        assert self._session is not None, "it is open"
        return self._session

    def open(self) -> None:
        """End any open transaction; connect if there is no usable connection."""
        if self._session is not None and not self._session.closed and not self._session.broken:
            with suppress(psycopg.OperationalError):
                self.rollback()
                return
        self.close()
        self._session = connect(
            self.url,
            f"sink {self._instance}",
            patience_s=self._options.patience_s,
            lock_timeout_s=self._options.lock_timeout_s,
            is_pooler_allowed=self._options.is_pooler_allowed,
        )
        try:
            with named(self.url):
                self.token = OutputToken(self.session, self._options.tokens, self._instance)
                self.token.lock()
                self.token.make()
                self.table = TargetTable(self.session, self._options.table, self._instance)
                self.table.make()
                self.warn_of_old()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with suppress(psycopg.Error, ProcessionError):
            self._wait()
        if self._session is not None:
            self._session.close()
        self._session, self._is_open = None, False

    def begin(self) -> None:
        """Wait until all earlier chunks are written, then open a transaction unless one is open."""
        self._wait()
        self._begin()

    def _begin(self) -> None:
        if not self._is_open:
            self._is_open = True
            self.table.begin()

    def write(self, position: int, payloads: Payloads, txn_id: str) -> None:
        """Write the records of messages, the first of which is at `position`, within the transaction. This thread
        converts them while another thread writes the previous records. An error of the write is raised by a later
        call."""
        if self._has_failed:
            self._wait()
        records = records_of(position, payloads, self._options.form)
        rows = self.table.encode(records, self._ordinal)
        self._ordinal += 0 if isinstance(rows, RecordRefused) else len(rows)
        if self._writing is None:
            self._has_failed = False
            self._writing = self._thread.submit(self._write)
        self._chunks.put(EncodedChunk(records, rows, txn_id))

    @property
    def is_idle(self) -> bool:
        """Whether the thread and the server both wait for more data."""
        return self._chunks.empty()

    def _write(self) -> None:
        """Write chunks up to the end mark. Called in a thread."""
        chunks = iter(self._chunks.get, None)
        try:
            self._begin()
            self.table.write(chunks)
        except BaseException:
            self._has_failed = True
            deque(chunks, maxlen=0)  # so that no call waits for room in the queue
            raise

    def _wait(self) -> None:
        """Wait until all chunks are written. Raise the thread's error."""
        writing, self._writing = self._writing, None
        self._ordinal = 0
        if writing is not None:
            self._chunks.put(None)
            self._has_failed = False
            writing.result()

    @property
    def is_in_transaction(self) -> bool:
        """A transaction is open and has not failed, as far as the client knows."""
        return self.session.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS

    def end(self, statement: str | sql.Composed) -> None:
        """End the transaction by this statement."""
        self._wait()
        self.session.execute(statement)
        self._is_open = False

    def rollback(self) -> None:
        with suppress(psycopg.Error, ProcessionError):
            self._wait()
        if self.session.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            self.session.execute("ROLLBACK")
        self._is_open = False

    def again(self, function: Callable[[], None]) -> None:
        """Call a function that may be repeated. If the connection is lost, call it again on a new connection."""
        try:
            if self._session is None or self._session.broken:
                self.open()
            with named(self.url):
                function()
        except StorageError as error:
            if self._session is None or not (self._session.broken or self._session.closed):
                raise
            log.warning("sink.connection_lost", instance=self._instance, reason=error.sentence)
            self.open()
            with named(self.url):
                function()

    def warn_of_old(self) -> None:
        """Warn about old prepared transactions, which hold locks and prevent vacuum."""
        if time.monotonic() < self._warned_s + WARN_INTERVAL_S and self._warned_s:
            return
        self._warned_s = time.monotonic()
        for gid, age_s in self.session.execute(
            "SELECT gid, extract(epoch FROM now() - prepared)::float8 FROM pg_prepared_xacts"
            " WHERE now() - prepared > make_interval(secs => %s) ORDER BY prepared LIMIT 10",
            (OLD_S,),
        ):
            log.warning("sink.prepared_transaction_old", gid=gid, age_s=round(age_s))


def records_of(position: int, payloads: Payloads, form: RecordForm) -> TableRecords:
    """Return the records of messages, the first of which is at `position`. The position of a record in a block is the
    block's position plus its index. A block has more bytes than records, so positions are unique."""
    if form is RecordForm.MESSAGES:
        return TableRecords(payloads.array, position + payloads.edges[:-1])
    batches = list(record_batches(payloads, form))
    starts = position + payloads.edges[:-1]
    places = [start + np.arange(batch.num_rows) for start, batch in zip(starts, batches, strict=True)]
    columns = (pa.concat_arrays([batch.column(name) for batch in batches]) for name in BLOCK_SCHEMA.names)
    payload, key, event_time = columns
    return TableRecords(payload, np.concatenate(places), key, event_time)
