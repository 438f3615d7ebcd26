"""The PostgreSQL sink after crashes, lost connections and races: it keeps every transaction it voted for, once, and a
wrong copy of its directory is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.chaos.postgres_server import PostgresServer
from procession.connectors.postgres_session import CommitMode
from procession.connectors.postgres_sink import chosen_mode
from procession.connectors.postgres_token import GID_BYTES_MAX, OutputToken
from procession.errors import ConfigError, StorageError
from procession.exit_status import Status
from tests.connectors.postgres_outputs import BOTH, INSTANCE, Sink, cut, orders, prepared, sentence
from tests.systems.postgres_server import Database, needs_postgres, new_database, running

pytestmark = needs_postgres


# Crashes and races


@BOTH
def test_a_commit_continues_when_the_connection_is_lost_before_it(
    database: Database, tmp_path: Path, mode: CommitMode
) -> None:
    sink = Sink(database, tmp_path, mode=mode).start()
    txn_id = sink.prepare({"id": 1})
    cut(database)
    sink.participant.phase2(txn_id, commit=True)
    assert orders(database) == [(1, None)]
    sink.epoch({"id": 2})
    assert orders(database) == [(1, None), (2, None)]


def test_a_connection_that_is_lost_within_an_epoch_ends_the_sink_and_the_epoch_is_sent_again(
    database: Database, tmp_path: Path
) -> None:
    sink = Sink(database, tmp_path).start()
    sink.send({"id": 1, "item": "x" * 5_000_000})
    cut(database)
    with pytest.raises(StorageError) as error:
        sink.participant.phase1("shop-w-orders-id-a1.e9.f1:c_id=1", [(1, 0, sink.participant._end)])
    assert "connection" in sentence(error)
    sink.start().epoch({"id": 1})
    assert orders(database) == [(1, None)]


def test_a_prepared_transaction_without_a_vote_is_rolled_back(database: Database, tmp_path: Path) -> None:
    sink = Sink(database, tmp_path).start()
    lost = Sink(database, tmp_path / "elsewhere")
    sink.crash()
    lost.start().prepare({"id": 1})
    lost.crash()
    assert len(prepared(database)) == 1
    sink.start()
    assert prepared(database) == []
    sink.epoch({"id": 1})
    assert orders(database) == [(1, None)]


def test_a_second_sink_is_refused_while_the_first_runs(database: Database, tmp_path: Path) -> None:
    first = Sink(database, tmp_path / "one").start()
    first.epoch({"id": 1})
    txn_id = first.prepare({"id": 2})
    with pytest.raises(StorageError) as error:
        Sink(database, tmp_path / "two", lock_timeout_s=0.2).start()
    assert f"Another sink writes the output {INSTANCE}" in sentence(error)
    first.participant.phase2(txn_id, commit=True)
    assert orders(database) == [(1, None), (2, None)]


@BOTH
def test_the_directory_of_another_output_is_refused(database: Database, tmp_path: Path, mode: CommitMode) -> None:
    sink = Sink(database, tmp_path / "one", mode=mode).start()
    sink.epoch({"id": 1})
    sink.crash()
    with pytest.raises(StorageError) as error:
        Sink(database, tmp_path / "new", mode=mode).start()
    assert "DELETE FROM" in sentence(error)
    database.execute("DELETE FROM procession_sink_tokens")
    with pytest.raises(StorageError) as error:
        sink.start()
    assert "restored from an old copy" in sentence(error)


@BOTH
def test_an_old_copy_whose_transaction_was_redone_up_to_the_same_end_is_refused(
    database: Database, tmp_path: Path, mode: CommitMode
) -> None:
    sink = Sink(database, tmp_path / "one", mode=mode).start()
    aborted = sink.prepare({"id": 1})
    shutil.copytree(sink.directory, tmp_path / "copy")
    sink.participant.phase2(aborted, commit=False)
    sink.epoch({"id": 2})
    sink.crash()
    with pytest.raises(StorageError) as error:
        Sink(database, tmp_path / "copy", mode=mode).start()
    assert "is not the directory that this output was written from" in sentence(error)


def test_a_prepared_transaction_that_was_rolled_back_manually_is_noticed(database: Database, tmp_path: Path) -> None:
    sink = Sink(database, tmp_path).start()
    sink.prepare({"id": 1})
    (gid,) = prepared(database)
    database.execute(f"ROLLBACK PREPARED '{gid}'")
    sink.crash()
    with pytest.raises(StorageError) as error:
        sink.start()
    assert "is missing in the database" in sentence(error)


def test_a_decision_that_was_performed_manually_is_accepted_or_reported(database: Database, tmp_path: Path) -> None:
    sink = Sink(database, tmp_path).start()
    txn_id = sink.prepare({"id": 1})
    (gid,) = prepared(database)
    database.execute(f"COMMIT PREPARED '{gid}'")
    with pytest.raises(StorageError) as error:
        sink.participant.phase2(txn_id, commit=False)
    assert "was committed in the database, against the decision" in sentence(error)
    second = Sink(database, tmp_path / "two")
    database.execute("DELETE FROM procession_sink_tokens")
    sink.crash()
    txn_id = second.start().prepare({"id": 2})
    (gid,) = prepared(database)
    database.execute(f"COMMIT PREPARED '{gid}'")
    second.participant.phase2(txn_id, commit=True)
    assert orders(database) == [(1, None), (2, None)]


def test_in_token_mode_a_conflicting_row_stops_the_commit_until_it_is_removed(
    database: Database, tmp_path: Path
) -> None:
    sink = Sink(database, tmp_path, mode=CommitMode.TOKEN).start()
    txn_id = sink.prepare({"id": 1, "item": "ours"}, {"id": 2})
    cut(database)  # until then the transaction holds its locks
    database.execute("INSERT INTO orders VALUES (1, 'theirs')")
    with pytest.raises(StorageError) as error:
        sink.participant.phase2(txn_id, commit=True)
    assert "position 0" in sentence(error)
    assert "orders_pkey" in sentence(error)
    sink.crash()
    assert orders(database) == [(1, "theirs")]
    database.execute("DELETE FROM orders")
    sink.start()
    assert sink.listed == (txn_id,)
    sink.participant.phase2(txn_id, commit=True)
    assert orders(database) == [(1, "ours"), (2, None)]


def test_in_token_mode_each_row_is_written_once(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE numbered (id bigint, number bigserial)")
    sink = Sink(database, tmp_path, table="numbered", mode=CommitMode.TOKEN).start()
    sink.epoch({"id": 1}, {"id": 2})
    sink.epoch({"id": 3})
    assert database.execute("SELECT id, number FROM numbered ORDER BY id") == [(1, 1), (2, 2), (3, 3)]


def test_in_token_mode_a_transaction_that_was_lost_after_the_vote_is_run_again(
    database: Database, tmp_path: Path
) -> None:
    sink = Sink(database, tmp_path, mode=CommitMode.TOKEN).start()
    txn_id = sink.prepare({"id": 1}, {"id": 2})
    cut(database)
    sink.participant.phase2(txn_id, commit=True)
    sink.epoch({"id": 3})
    assert orders(database) == [(1, None), (2, None), (3, None)]


@pytest.mark.parametrize(
    ("first", "other"), [(CommitMode.PREPARED, CommitMode.TOKEN), (CommitMode.TOKEN, CommitMode.PREPARED)]
)
def test_the_mode_does_not_change_while_a_transaction_waits(
    database: Database, tmp_path: Path, first: CommitMode, other: CommitMode
) -> None:
    sink = Sink(database, tmp_path, mode=first).start()
    txn_id = sink.prepare({"id": 1})
    sink.crash()
    with pytest.raises(StorageError) as error:
        Sink(database, tmp_path, mode=other).start()
    assert f"voted for in mode {first}" in sentence(error)
    sink.start().participant.phase2(txn_id, commit=True)
    sink.crash()
    Sink(database, tmp_path, mode=other).start().epoch({"id": 2})
    assert orders(database) == [(1, None), (2, None)]


def test_a_locked_table_is_reported_and_nothing_is_lost(database: Database, tmp_path: Path) -> None:
    sink = Sink(database, tmp_path, lock_timeout_s=0.2).start()
    with database.connect() as other, other.transaction():
        other.execute("LOCK TABLE orders IN EXCLUSIVE MODE")
        with pytest.raises(StorageError) as error:
            sink.prepare({"id": 1})
        assert "did not give a lock in time" in sentence(error)
    sink.crash()
    sink.start().epoch({"id": 1})
    assert orders(database) == [(1, None)]


def test_names_of_prepared_transactions_stay_below_the_limit(database: Database) -> None:
    with database.connect() as connection:
        token = OutputToken(connection, "tokens", INSTANCE)
        long = [token.gid(f"{'ü' * 300}-w-out-id-1.e{epoch}.f1:c_id=1") for epoch in (1, 2)]
        assert len(set(long)) == 2
        assert all(len(gid.encode()) <= GID_BYTES_MAX for gid in long)
        other = OutputToken(connection, "tokens", "other")
        assert other.gid("a") != token.gid("a")


# A server of its own


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


@BOTH
def test_a_killed_database_keeps_transactions_with_a_vote(
    own_server: PostgresServer, tmp_path: Path, mode: CommitMode
) -> None:
    database = new_database(own_server)
    database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, item text)")
    sink = Sink(database, tmp_path, mode=mode).start()
    sink.epoch({"id": 1})
    txn_id = sink.prepare({"id": 2})
    own_server.kill()
    own_server.start()
    sink.participant.phase2(txn_id, commit=True)
    assert orders(database) == [(1, None), (2, None)]
    txn_id = sink.prepare({"id": 3})
    own_server.kill()
    own_server.start()
    sink.start()
    assert sink.listed == (txn_id,)
    sink.participant.phase2(txn_id, commit=False)
    sink.epoch({"id": 4})
    assert orders(database) == [(1, None), (2, None), (4, None)]


def test_without_prepared_transactions_the_mode_is_token(own_server: PostgresServer, tmp_path: Path) -> None:
    database = new_database(own_server)
    database.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
    auto = Sink(database, tmp_path, mode=CommitMode.AUTO).options
    assert chosen_mode(auto) is CommitMode.PREPARED
    own_server.stop()
    own_server.start(max_prepared_transactions="0")
    assert chosen_mode(auto) is CommitMode.TOKEN
    with pytest.raises(ConfigError) as error:
        chosen_mode(Sink(database, tmp_path).options)
    assert "--mode token" in sentence(error)
    with pytest.raises(ConfigError) as error:
        Sink(database, tmp_path).start().prepare({"id": 1})
    assert "Prepared transactions are switched off" in sentence(error)


def test_the_command_refuses_the_mode_prepared_if_prepared_transactions_are_switched_off(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    own_server.stop()
    own_server.start(max_prepared_transactions="0")
    database = new_database(own_server)
    database.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
    command = [sys.executable, "-m", "procession", "sink", "postgres", database.url, str(tmp_path / "state")]
    options = ["--table", "orders", "--mode", "prepared", "--listen", "127.0.0.1:0"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == Status.ACT, done.stderr
    assert "Prepared transactions are switched off in the database." in done.stderr
    assert "give --mode token" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
