"""The PostgreSQL sink on a real server: what becomes of records, of crashes, and of what the database refuses."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from procession.chaos.postgres_server import PostgresServer
from procession.connectors.postgres_session import CommitMode
from procession.connectors.postgres_sink import chosen_mode
from procession.connectors.postgres_token import GID_BYTES_MAX, OutputToken
from procession.errors import ConfigError, RecordError, StorageError, UsageError
from procession.operators.codecs import to_arrow
from procession.sdk.record_blocks import RecordForm, block_batch, encode_block
from tests.connectors.postgres_outputs import INSTANCE, Sink, sentence
from tests.systems.postgres_server import Database, needs_postgres, new_database, running

pytestmark = needs_postgres

BOTH = pytest.mark.parametrize("mode", [CommitMode.PREPARED, CommitMode.TOKEN])


@pytest.fixture
def database(postgres: PostgresServer) -> Database:
    database = new_database(postgres)
    database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, item text, price numeric(10, 2) CHECK (price >= 0))")
    return database


@pytest.fixture(scope="module")
def unchanged(postgres: PostgresServer) -> Database:
    """A database for tests that commit nothing."""
    database = new_database(postgres)
    database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, item text, price numeric(10, 2) CHECK (price >= 0))")
    database.execute("CREATE TABLE strange (id int, wide int GENERATED ALWAYS AS (id * 2) STORED)")
    return database


def orders(database: Database) -> list[tuple[object, ...]]:
    return database.execute("SELECT id, item FROM orders ORDER BY id")


# Records and rows


@BOTH
def test_rows_appear_when_the_epoch_is_committed_and_not_before(
    database: Database, tmp_path: Path, mode: CommitMode
) -> None:
    sink = Sink(database, tmp_path, mode=mode).start()
    txn_id = sink.prepare({"id": 1, "item": "tea", "price": 2.5}, {"id": 2, "item": None})
    assert orders(database) == []
    sink.participant.phase2(txn_id, commit=True)
    assert orders(database) == [(1, "tea"), (2, None)]
    sink.epoch({"id": 3, "item": "jam"}, commit=False)
    sink.epoch({"id": 3, "item": "salt"})
    assert orders(database) == [(1, "tea"), (2, None), (3, "salt")]


@BOTH
def test_an_epoch_of_empty_records_alone_is_refused_before_the_vote(
    database: Database, tmp_path: Path, mode: CommitMode
) -> None:
    sink = Sink(database, tmp_path, mode=mode).start()
    sink.epoch()
    with pytest.raises(RecordError, match="All records of an epoch are empty"):
        sink.prepare(b"", b"")


@BOTH
def test_with_a_key_the_last_record_of_a_key_counts(database: Database, tmp_path: Path, mode: CommitMode) -> None:
    sink = Sink(database, tmp_path, mode=mode, key=("id",), delete_when="op=delete").start()
    sink.epoch({"id": 1, "item": "a"}, {"id": 2, "item": "b"}, {"id": 1, "item": "c"}, {"id": 3, "item": "d"})
    assert orders(database) == [(1, "c"), (2, "b"), (3, "d")]
    sink.epoch(
        {"op": "delete", "id": 1},
        {"op": "delete", "id": 2},
        {"op": "insert", "id": 2, "item": "again"},
        {"op": "update", "id": 3, "item": "e"},
        {"op": "delete", "id": 3},
        {"op": "delete", "id": 99},
    )
    assert orders(database) == [(2, "again")]


def test_a_staging_table_is_emptied_however_many_rows_it_had(database: Database, tmp_path: Path) -> None:
    sink = Sink(database, tmp_path, key=("id",)).start()
    sink.epoch(*({"id": number % 1500, "item": str(number)} for number in range(3000)))
    assert len(orders(database)) == 1500
    assert orders(database)[7] == (7, "1507")
    (name,) = database.execute(
        "SELECT relname FROM pg_class WHERE relname LIKE 'procession_staging%' AND relkind = 'r'"
    )
    assert database.execute(f"SELECT count(*) FROM {name[0]}") == [(0,)]


def test_blocks_bring_keys_and_event_times(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE events (k text, at timestamptz, position bigint, instance text, body jsonb)")
    column = ("k=$key", "at=$event_time", "position=$position", "instance=$instance", "body=$payload")
    sink = Sink(database, tmp_path, table="events", column=column, form=RecordForm.BLOCKS).start()
    block = encode_block(
        block_batch([b'{"n": 1}', b'{"n": 2}'], keys=[b"a", None], event_times_ns=[1_500_000_000, None])
    )
    sink.epoch(block, block)
    rows = database.execute("SELECT k, extract(epoch FROM at)::float8, position, instance, body->>'n' FROM events")
    assert sorted(rows, key=lambda row: row[2]) == [
        ("a", 1.5, 0, INSTANCE, "1"),
        (None, None, 1, INSTANCE, "2"),
        ("a", 1.5, len(block), INSTANCE, "1"),
        (None, None, len(block) + 1, INSTANCE, "2"),
    ]


def test_arrow_tables_become_rows(database: Database, tmp_path: Path) -> None:
    sink = Sink(database, tmp_path, is_arrow=True).start()
    sink.epoch(
        to_arrow(pa.table({"id": [1, 2], "item": ["a", None], "price": pa.array([1, 2], pa.int32()), "more": [0, 0]})),
        to_arrow(pa.table({"item": ["c"], "id": pa.array([3], pa.uint8())})),
    )
    assert orders(database) == [(1, "a"), (2, None), (3, "c")]
    with pytest.raises(StorageError) as error:
        sink.prepare(to_arrow(pa.table({"id": ["x"]})))
    assert "position" in sentence(error)


def test_every_type_keeps_its_value(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
    database.execute("CREATE DOMAIN positive AS integer CHECK (VALUE > 0)")
    columns = {
        "b": ("boolean", True, "true"),
        "i2": ("smallint", -32768, "-32768"),
        "i8": ("bigint", 9223372036854775807, "9223372036854775807"),
        "f4": ("real", 0.5, "0.5"),
        "f8": ("double precision", 1e-300, "1e-300"),
        "n": ("numeric", "12345678901234567890.123456789", "12345678901234567890.123456789"),
        "n2": ("numeric(6,2)", 1234.5, "1234.50"),
        "t": ("text", 'tab\there "quoted" \\ back\nslash ü', 'tab\there "quoted" \\ back\nslash ü'),
        "v": ("varchar(5)", "fünfe", "fünfe"),
        "d": ("date", "1969-12-31", "1969-12-31"),
        "ts": ("timestamp", "2026-11-17T09:00:00.123456", "2026-11-17 09:00:00.123456"),
        "tz": ("timestamptz", "2026-11-17T09:00:00.5+01:00", "2026-11-17 08:00:00.5+00"),
        "u": ("uuid", "0F1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"),
        "j": ("jsonb", {"a": [1, None, "x"]}, '{"a": [1, null, "x"]}'),
        "m": ("mood", "happy", "happy"),
        "p": ("positive", 7, "7"),
        "a": ("integer[]", "{1,2,NULL}", "{1,2,NULL}"),
        "iv": ("interval", "1 day 02:00:00", "1 day 02:00:00"),
        "by": ("bytea", "\\x00ff", "\\x00ff"),
        "ip": ("inet", "10.0.0.1", "10.0.0.1/32"),
    }
    database.execute("SET TIMEZONE = 'UTC'")
    for names in ([name for name in columns if name not in ("n", "n2", "a", "iv", "by", "ip")], list(columns)):
        shape = ", ".join(f"{name} {columns[name][0]}" for name in names)
        database.execute("DROP TABLE IF EXISTS shapes")
        database.execute(f"CREATE TABLE shapes ({shape})")
        sink = Sink(database, tmp_path / str(len(names)), table="shapes").start()
        database.execute("DELETE FROM procession_sink_tokens")
        sink.epoch({name: columns[name][1] for name in names}, {})
        sink.crash()
        texts = ", ".join(f"{name}::text" for name in names)
        with database.connect() as connection:
            connection.execute("SET TIMEZONE = 'UTC'")
            found = connection.execute(f"SELECT {texts} FROM shapes ORDER BY {names[0]} NULLS LAST").fetchall()
        assert found[0] == tuple(columns[name][2] for name in names)
        assert found[1] == (None,) * len(names)
        database.execute("DELETE FROM procession_sink_tokens")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"id": "one"}, "field 'id' is of type string, not number"),
        ({"id": 1.5}, "1.5"),
        ({"id": 2**63}, "9223372036854775808"),
        ({"id": 1, "item": 5}, "field 'item' is of type number, not string"),
        ({"id": 1, "price": "1.234"}, "1.234"),
        ({"id": 1, "item": "nul \0"}, "0x00"),
        (b"[1]", "no JSON object"),
        (b'{"id": 1}{"id": 2}', "more than one JSON object"),
        (b"\xff", "UTF8"),
        ({"item": "no key"}, "null value in column"),
        ({"id": 1, "price": -1}, "orders_price_check"),
    ],
)
def test_a_record_that_does_not_fit_is_named_with_its_reason(
    unchanged: Database, tmp_path: Path, record: bytes | dict[str, object], reason: str
) -> None:
    sink = Sink(unchanged, tmp_path).start()
    good = b'{"id": 100, "item": "good"}'
    with pytest.raises(StorageError) as error:
        sink.prepare(good, record, {"id": 101})
    assert reason in sentence(error)
    assert f"position {len(good)} of {INSTANCE}" in sentence(error)
    sink.crash()
    assert orders(unchanged) == []


@BOTH
def test_what_a_constraint_refuses_is_found_before_the_vote(
    database: Database, tmp_path: Path, mode: CommitMode
) -> None:
    database.execute("INSERT INTO orders VALUES (2, 'theirs')")
    sink = Sink(database, tmp_path, mode=mode).start()
    with pytest.raises(StorageError, match="orders_pkey"):
        sink.prepare({"id": 1}, {"id": 2})
    sink.crash()
    assert sink.start().listed == ()
    sink.epoch({"id": 1})
    assert orders(database) == [(1, None), (2, "theirs")]


@BOTH
def test_refused_records_go_to_the_dead_letters_in_the_same_transaction(
    database: Database, tmp_path: Path, mode: CommitMode
) -> None:
    database.execute("CREATE TABLE items (name text PRIMARY KEY)")
    database.execute("INSERT INTO items VALUES ('tea')")
    database.execute("ALTER TABLE orders ADD FOREIGN KEY (item) REFERENCES items DEFERRABLE INITIALLY DEFERRED")
    sink = Sink(database, tmp_path, mode=mode, dead_letters="refused").start()
    txn_id = sink.prepare({"id": 1}, {"id": 1, "item": "tea"}, {"id": 2, "item": "ink"}, b"?", {"id": 3, "item": "tea"})
    assert database.execute("SELECT * FROM refused") == []
    sink.participant.phase2(txn_id, commit=True)
    assert orders(database) == [(1, None), (3, "tea")]
    letters = database.execute("SELECT position, constraint_name, payload, transaction FROM refused ORDER BY position")
    assert [letter[1:] for letter in letters] == [
        ("orders_pkey", b'{"id": 1, "item": "tea"}', txn_id),
        ("orders_item_fkey", b'{"id": 2, "item": "ink"}', txn_id),
        (None, b"?", txn_id),
    ]
    sink.epoch(b"never", commit=False)
    assert len(database.execute("SELECT * FROM refused")) == 3


@BOTH
def test_a_record_that_a_trigger_refuses_is_one_dead_letter(
    database: Database, tmp_path: Path, mode: CommitMode
) -> None:
    database.execute(
        "CREATE FUNCTION no_ink() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF NEW.item = 'ink' THEN RAISE 'no ink here'; END IF; RETURN NEW; END $$"
    )
    database.execute("CREATE TRIGGER no_ink BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION no_ink()")
    sink = Sink(database, tmp_path, mode=mode, dead_letters="refused").start()
    sink.epoch({"id": 1, "item": "tea"}, {"id": 2, "item": "ink"}, {"id": 3, "item": "jam"})
    assert orders(database) == [(1, "tea"), (3, "jam")]
    assert database.execute("SELECT reason FROM refused") == [("no ink here",)]


# What is checked when the sink starts


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"table": "nothing"}, "no table nothing"),
        ({"table": "nowhere.orders"}, "no table nowhere.orders"),
        ({"column": ("colour",)}, "no column 'colour'"),
        ({"column": ("id=$instance",)}, "is of type bigint, which cannot hold $instance"),
        ({"column": ("id=$nothing",)}, "no '$nothing'"),
        ({"key": ("item",)}, "no primary key or unique index on item"),
        ({"key": ("colour",)}, "no column 'colour'"),
        ({"delete_when": "op=delete"}, "by key, but there is none"),
        ({"table": "strange"}, "'wide' of strange is generated"),
    ],
)
def test_a_sink_that_cannot_work_does_not_start(
    unchanged: Database, tmp_path: Path, words: dict[str, object], said: str
) -> None:
    if words.get("table") == "strange":
        words = words | {"column": ("wide",)}
    with pytest.raises((ConfigError, UsageError)) as error:
        Sink(unchanged, tmp_path, **words).start()  # type: ignore[arg-type]
    assert said in sentence(error)
    assert "Next:" in sentence(error)


def test_what_a_user_may_not_do_is_said_with_the_grant_that_helps(database: Database, tmp_path: Path) -> None:
    database.execute("DROP ROLE IF EXISTS clerk")
    database.execute("CREATE ROLE clerk LOGIN")
    url = database.server.url(database.name, "clerk")
    with pytest.raises(ConfigError) as error:
        Sink(database, tmp_path, url=url).start()
    assert "clerk may not create the table procession_sink_tokens" in sentence(error)
    database.execute("GRANT CREATE ON SCHEMA public TO clerk")
    with pytest.raises(ConfigError) as error:
        Sink(database, tmp_path, url=url).start()
    assert "User clerk may not INSERT in table orders" in sentence(error)
    database.execute("GRANT INSERT ON orders TO clerk")
    Sink(database, tmp_path, url=url).start().epoch({"id": 1})
    assert orders(database) == [(1, None)]
    database.execute("REASSIGN OWNED BY clerk TO procession; DROP OWNED BY clerk")


def test_columns_with_a_default_are_left_to_the_database_unless_they_are_named(
    database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE notes (id bigserial PRIMARY KEY, text text, at int DEFAULT 7)")
    sink = Sink(database, tmp_path, table="notes", column=("text=body.text",)).start()
    sink.epoch({"id": 50, "body": {"text": "one"}, "at": 1}, {"body": {"text": "two"}})
    assert database.execute("SELECT * FROM notes ORDER BY id") == [(1, "one", 7), (2, "two", 7)]


def test_a_table_that_changes_while_the_sink_runs_stops_it(database: Database, tmp_path: Path) -> None:
    sink = Sink(database, tmp_path, dead_letters="refused").start()
    sink.epoch({"id": 1})
    database.execute("ALTER TABLE orders ALTER COLUMN id TYPE integer")
    with pytest.raises(ConfigError) as error:
        sink.prepare({"id": 2})
    assert "columns of orders were changed" in sentence(error)
    sink.crash()
    sink.start().epoch({"id": 2})
    assert orders(database) == [(1, None), (2, None)]


# Crashes and races


@BOTH
def test_a_commit_goes_on_when_the_connection_is_cut_before_it(
    database: Database, tmp_path: Path, mode: CommitMode
) -> None:
    sink = Sink(database, tmp_path, mode=mode).start()
    txn_id = sink.prepare({"id": 1})
    cut(database)
    sink.participant.phase2(txn_id, commit=True)
    assert orders(database) == [(1, None)]
    sink.epoch({"id": 2})
    assert orders(database) == [(1, None), (2, None)]


def test_a_connection_that_is_cut_within_an_epoch_ends_the_sink_and_the_epoch_comes_again(
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


def test_what_was_prepared_and_not_voted_for_is_rolled_back(database: Database, tmp_path: Path) -> None:
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
def test_a_directory_that_is_not_that_of_the_output_is_refused(
    database: Database, tmp_path: Path, mode: CommitMode
) -> None:
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


def test_a_prepared_transaction_that_somebody_rolled_back_is_missed(database: Database, tmp_path: Path) -> None:
    sink = Sink(database, tmp_path).start()
    sink.prepare({"id": 1})
    (gid,) = prepared(database)
    database.execute(f"ROLLBACK PREPARED '{gid}'")
    sink.crash()
    with pytest.raises(StorageError) as error:
        sink.start()
    assert "is gone from the database" in sentence(error)


def test_a_decision_that_somebody_else_carried_out_is_taken_or_told(database: Database, tmp_path: Path) -> None:
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


def test_in_mode_token_a_row_that_breaks_the_commit_stops_it_until_it_is_gone(
    database: Database, tmp_path: Path
) -> None:
    sink = Sink(database, tmp_path, mode=CommitMode.TOKEN).start()
    txn_id = sink.prepare({"id": 1, "item": "ours"}, {"id": 2})
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


def test_a_locked_table_is_told_and_nothing_is_lost(database: Database, tmp_path: Path) -> None:
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
def test_a_killed_database_keeps_what_was_voted_for(
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


def prepared(database: Database) -> list[str]:
    rows = database.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    return [gid for (gid,) in rows]


def cut(database: Database) -> None:
    """End the sink's connection from the server's side."""
    database.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'procession sink%%'"
    )
