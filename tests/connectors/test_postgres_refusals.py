"""Records that PostgreSQL refuses are found before the vote, in both modes; they stop the sink or become dead
letters."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession.connectors.postgres_session import CommitMode
from procession.errors import ConfigError, StorageError
from tests.connectors.postgres_outputs import BOTH, INSTANCE, Sink, orders, sentence
from tests.systems.postgres_server import Database, needs_postgres

pytestmark = needs_postgres


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"id": "one"}, "field 'id' is of type string, not number"),
        ({"id": 1.5}, "1.5"),
        ({"id": 2**63}, "9223372036854775808"),
        ({"id": 1, "item": 5}, "field 'item' is of type number, not string"),
        ({"id": 1, "price": "1.234"}, "1.234"),
        ({"id": 1, "item": "nul \0"}, "0x00"),
        (b"[1]", "not a JSON object"),
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
def test_a_record_that_a_constraint_refuses_is_found_before_the_vote(
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


@BOTH
@pytest.mark.parametrize("error", ["'no ink here'", "'no ink here' USING ERRCODE = '45001'"])
def test_a_deferred_trigger_runs_before_the_vote(
    database: Database, tmp_path: Path, mode: CommitMode, error: str
) -> None:
    database.execute(
        "CREATE FUNCTION no_ink() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN IF NEW.item = 'ink' THEN RAISE {error}; END IF; RETURN NULL; END $$"
    )
    database.execute(
        "CREATE CONSTRAINT TRIGGER no_ink AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION no_ink()"
    )
    sink = Sink(database, tmp_path, mode=mode, dead_letters="refused").start()
    sink.epoch({"id": 1, "item": "tea"}, {"id": 2, "item": "ink"}, {"id": 3, "item": "jam"})
    assert orders(database) == [(1, "tea"), (3, "jam")]
    assert database.execute("SELECT reason FROM refused") == [("no ink here",)]


@BOTH
def test_a_deferred_unique_key_is_checked_before_the_vote_within_the_epoch_and_against_old_rows(
    database: Database, tmp_path: Path, mode: CommitMode
) -> None:
    database.execute("ALTER TABLE orders ADD CONSTRAINT one_item UNIQUE (item) DEFERRABLE INITIALLY DEFERRED")
    sink = Sink(database, tmp_path, mode=mode, dead_letters="refused").start()
    sink.epoch({"id": 1, "item": "tea"}, {"id": 2, "item": "tea"})
    sink.epoch({"id": 3, "item": "tea"}, {"id": 4, "item": "jam"})
    assert orders(database) == [(1, "tea"), (4, "jam")]
    assert database.execute("SELECT constraint_name, count(*) FROM refused GROUP BY 1") == [("one_item", 2)]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write each record in its own chunk."""
    monkeypatch.setattr("procession.connectors.postgres_sink.CHUNK_BYTES_MAX", 1)
    monkeypatch.setattr("procession.connectors.postgres_sink.CHUNK_BYTES_MIN", 1)


@BOTH
@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("statement_bytes", [40, 10_000])
def test_a_refused_record_is_found_among_the_chunks_of_a_statement(
    database: Database, tmp_path: Path, mode: CommitMode, statement_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("procession.connectors.postgres_table.STATEMENT_BYTES_MAX", statement_bytes)
    sink = Sink(database, tmp_path, mode=mode, dead_letters="refused").start()
    sink.epoch(*({"id": number % 10, "item": str(number)} for number in range(15)), b"?", {"id": 20})
    assert orders(database) == [*((number, str(number)) for number in range(10)), (20, None)]
    assert [payload for (payload,) in database.execute("SELECT payload FROM refused ORDER BY position")] == [
        *(b'{"id": %d, "item": "%d"}' % (number, number + 10) for number in range(5)),
        b"?",
    ]


@BOTH
@pytest.mark.usefixtures("small_chunks")
def test_with_a_key_the_last_record_counts_over_all_chunks_of_a_statement(
    database: Database, tmp_path: Path, mode: CommitMode
) -> None:
    sink = Sink(database, tmp_path, mode=mode, key=("id",), delete_when="op=delete").start()
    sink.epoch({"id": 1, "item": "first"}, {"id": 2, "item": "a"}, {"id": 1, "item": "last"}, {"op": "delete", "id": 2})
    assert orders(database) == [(1, "last")]


@BOTH
def test_a_revoked_permission_stops_the_sink_before_the_vote_and_nothing_is_lost(
    database: Database, tmp_path: Path, mode: CommitMode
) -> None:
    database.execute("DROP ROLE IF EXISTS porter")
    database.execute("CREATE ROLE porter LOGIN")
    database.execute("GRANT CREATE ON SCHEMA public TO porter")
    database.execute("GRANT INSERT ON orders TO porter")
    sink = Sink(database, tmp_path, mode=mode, url=database.server.url(database.name, "porter")).start()
    sink.epoch({"id": 1})
    database.execute("REVOKE INSERT ON orders FROM porter")
    with pytest.raises(ConfigError) as error:
        sink.prepare({"id": 2})
    assert "permission denied for table orders" in sentence(error)
    assert "Grant the user what it lacks" in sentence(error)
    sink.crash()
    database.execute("GRANT INSERT ON orders TO porter")
    sink.start().epoch({"id": 2})
    assert orders(database) == [(1, None), (2, None)]
    sink.crash()
    database.execute("REASSIGN OWNED BY porter TO procession; DROP OWNED BY porter")


@BOTH
@pytest.mark.parametrize(
    ("change", "back", "message"),
    [
        (
            "ALTER TABLE orders RENAME TO sales",
            "ALTER TABLE sales RENAME TO orders",
            'relation "orders" does not exist',
        ),
        ("ALTER TABLE orders DROP COLUMN item", "ALTER TABLE orders ADD item text", "columns of orders were changed"),
    ],
)
def test_a_table_that_is_renamed_or_loses_a_column_stops_the_sink_and_nothing_is_lost(
    database: Database, tmp_path: Path, mode: CommitMode, change: str, back: str, message: str
) -> None:
    sink = Sink(database, tmp_path, mode=mode, dead_letters="refused").start()
    sink.epoch({"id": 1})
    database.execute(change)
    with pytest.raises(ConfigError) as error:
        sink.prepare({"id": 2, "item": "tea"})
    assert message in sentence(error)
    assert "Next:" in sentence(error)
    sink.crash()
    database.execute(back)
    sink.start().epoch({"id": 2, "item": "tea"})
    assert orders(database) == [(1, None), (2, "tea")]
    assert database.execute("SELECT * FROM refused") == []
