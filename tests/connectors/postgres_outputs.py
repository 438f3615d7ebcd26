"""Runs outputs to PostgreSQL inside a test, driven as by a driver, and crashes them without a clean close."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from procession.connectors.postgres_rows import DeleteRule
from procession.connectors.postgres_session import CommitMode, PostgresOptions, PostgresSession
from procession.connectors.postgres_sink import PreparedOutput, TokenOutput
from procession.connectors.postgres_table import TableOptions
from procession.errors import ProcessionError
from procession.sdk.participant import SinkParticipant
from procession.sdk.record_blocks import RecordForm
from procession.sdk.transaction_log import TransactionLog
from procession.wire.messages import DATA_STREAM
from tests.systems.postgres_server import Database

INSTANCE = "shop-orders-0"
BOTH = pytest.mark.parametrize("mode", [CommitMode.PREPARED, CommitMode.TOKEN])
ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY, item text, price numeric(10, 2) CHECK (price >= 0))"


def orders(database: Database) -> list[tuple[object, ...]]:
    return database.execute("SELECT id, item FROM orders ORDER BY id")


def prepared(database: Database) -> list[str]:
    """Return the ids of the prepared transactions of this database."""
    rows = database.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    return [gid for (gid,) in rows]


def cut(database: Database) -> None:
    """End the sink's connection from the server's side."""
    database.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'procession sink%%'"
    )


class Sink:
    """One instance, over several runs in the same directory. Call `start` first."""

    def __init__(
        self,
        database: Database,
        directory: Path,
        *,
        table: str = "orders",
        column: tuple[str, ...] = (),
        key: tuple[str, ...] = (),
        delete_when: str = "",
        dead_letters: str | None = None,
        is_arrow: bool = False,
        mode: CommitMode = CommitMode.PREPARED,
        form: RecordForm = RecordForm.MESSAGES,
        url: str = "",
        lock_timeout_s: float = 5.0,
    ) -> None:
        rule = DeleteRule.parse(delete_when) if delete_when else None
        self.options = PostgresOptions(
            url or database.url,
            TableOptions(table, column, key, rule, dead_letters, is_arrow),
            mode,
            lock_timeout_s=lock_timeout_s,
            patience_s=20.0,
            form=form,
        )
        self.directory = directory
        self._numbers = itertools.count(1)
        self.session = PostgresSession(self.options, INSTANCE)
        self.participant: SinkParticipant
        self.listed: tuple[str, ...] = ()

    def start(self) -> Sink:
        """Start the sink, and list its uncommitted transactions as a driver does first."""
        self.directory.mkdir(exist_ok=True)
        self.session = PostgresSession(self.options, INSTANCE)
        kind = PreparedOutput if self.options.mode is CommitMode.PREPARED else TokenOutput
        log = TransactionLog(self.directory / f"{INSTANCE}.txnlog")
        log.open()
        self.participant = SinkParticipant(kind(self.session, self.directory / INSTANCE), log)
        try:
            self.participant.begin()
        except ProcessionError:
            self.crash()
            raise
        self.listed = self.participant.list_uncommitted()
        return self

    def crash(self) -> None:
        """Close the connection: the server sees nothing else of a crash."""
        self.session.close()

    @property
    def end(self) -> int:
        return self.participant.committed_end

    def send(self, *payloads: bytes | dict[str, Any]) -> int:
        """Send records, and return the position after them."""
        end = self.end
        for payload in payloads:
            data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
            self.participant.append([end], [data])
            end += len(data)
        return end

    def prepare(self, *payloads: bytes | dict[str, Any]) -> str:
        """Send records, perform phase 1, and return the transaction's id."""
        start = self.end
        end = self.send(*payloads)
        txn_id = f"shop-w-orders-id-a1.e{next(self._numbers)}.f1:c_id=1"
        where = [(DATA_STREAM, start, end)] if end > start else []
        assert self.participant.phase1(txn_id, where)
        return txn_id

    def epoch(self, *payloads: bytes | dict[str, Any], commit: bool = True) -> None:
        """Send the records of an epoch, and perform both phases."""
        self.participant.phase2(self.prepare(*payloads), commit)


def sentence(error: pytest.ExceptionInfo[ProcessionError]) -> str:
    """Return the text that the user reads."""
    return error.value.explain()
