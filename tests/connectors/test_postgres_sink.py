"""The PostgreSQL sink on a real server: how records become rows, and what is checked when it starts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from procession.connectors.postgres_session import CommitMode
from procession.errors import ConfigError, RecordError, StorageError, UsageError
from procession.operators.codecs import to_arrow
from procession.sdk.record_blocks import RecordForm, block_batch, encode_block
from tests.connectors.postgres_outputs import BOTH, INSTANCE, Sink, orders, sentence
from tests.systems.postgres_server import Database, needs_postgres

pytestmark = needs_postgres


# Records and rows


@BOTH
def test_rows_become_visible_at_the_commit_of_their_epoch(database: Database, tmp_path: Path, mode: CommitMode) -> None:
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


def test_a_staging_table_is_emptied_whether_it_had_few_rows_or_many(database: Database, tmp_path: Path) -> None:
    sink = Sink(database, tmp_path, key=("id",)).start()
    sink.epoch(*({"id": number % 1500, "item": str(number)} for number in range(3000)))
    assert len(orders(database)) == 1500
    assert orders(database)[7] == (7, "1507")
    (name,) = database.execute(
        "SELECT relname FROM pg_class WHERE relname LIKE 'procession_staging%' AND relkind = 'r'"
    )
    assert database.execute(f"SELECT count(*) FROM {name[0]}") == [(0,)]


def test_blocks_have_keys_and_event_times(database: Database, tmp_path: Path) -> None:
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


# What is checked when the sink starts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "nothing"}, "no table nothing"),
        ({"table": "nowhere.orders"}, "no table nowhere.orders"),
        ({"column": ("colour",)}, "no column 'colour'"),
        ({"column": ("id=$instance",)}, "is of type bigint, which cannot hold $instance"),
        ({"column": ("id=$nothing",)}, "no '$nothing'"),
        ({"key": ("item",)}, "no primary key or unique index on item"),
        ({"key": ("colour",)}, "no column 'colour'"),
        ({"delete_when": "op=delete"}, "by key, but there is no"),
        ({"table": "strange"}, "'wide' of strange is generated"),
    ],
)
def test_a_sink_that_cannot_work_does_not_start(
    unchanged: Database, tmp_path: Path, options: dict[str, object], message: str
) -> None:
    if options.get("table") == "strange":
        options = options | {"column": ("wide",)}
    with pytest.raises((ConfigError, UsageError)) as error:
        Sink(unchanged, tmp_path, **options).start()  # type: ignore[arg-type]
    assert message in sentence(error)
    assert "Next:" in sentence(error)


def test_a_missing_permission_is_reported_with_the_grant_that_is_needed(database: Database, tmp_path: Path) -> None:
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
