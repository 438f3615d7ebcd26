"""The PostgreSQL source on a real server: each change once, in the order of commits, whichever process is killed."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from procession import faults
from procession.chaos.postgres_server import PostgresServer
from procession.connectors import postgres_slot
from procession.connectors.postgres_connection import lock_number
from procession.connectors.postgres_polling import PollingMedium, PollingOptions
from procession.connectors.postgres_slot import ChangesOptions
from procession.connectors.postgres_source import ChangesMedium
from procession.errors import ConfigError, ProcessionError, StorageError
from procession.sdk.backlog import Spool
from procession.sdk.push_source import PushStream
from procession.sdk.source_records import Stream
from tests.systems.postgres_server import Database, needs_postgres, new_database

pytestmark = needs_postgres


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    database = new_database(postgres)
    database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, item text, price numeric, paid bool, more jsonb)")
    yield database
    for (slot,) in database.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database() AND NOT active"
    ):
        database.execute("SELECT pg_drop_replication_slot(%s)", slot)


def options(database: Database, **settings: Any) -> ChangesOptions:
    return ChangesOptions(
        database.url,
        settings.pop("tables", ("orders",)),
        slot=database.name,
        is_ending=True,
        patience_s=20.0,
        **settings,
    )


def polling(database: Database, **settings: Any) -> PollingOptions:
    return PollingOptions(database.url, "orders", "id", is_ending=True, patience_s=20.0, **settings)


def read(settings: ChangesOptions | PollingOptions, directory: Path) -> list[dict[str, Any]]:
    """Run the source once to the end, and return all records of its backlog."""
    directory.mkdir(exist_ok=True)
    spool = Spool(directory / "spool")
    try:
        medium: ChangesMedium | PollingMedium
        if isinstance(settings, ChangesOptions):
            medium = ChangesMedium(settings, directory, spool)
        else:
            medium = PollingMedium(settings, directory, spool)

        async def life() -> None:
            await medium.take_in(PushStream(Stream.named("changes"), spool))

        asyncio.run(life())
        records: list[dict[str, Any]] = []
        while batch := spool.read(len(records) - 1 if records else None):
            records += [
                json.loads(payload) | {"#": (key, int(at))}
                for payload, key, at in zip(
                    batch.payloads.to_pylist(), batch.keys.to_pylist(), batch.event_times, strict=True
                )
            ]
        return records
    finally:
        spool.close()


def killed(settings: ChangesOptions | PollingOptions, directory: Path, point: str) -> None:
    """Run the source until it dies at a fault point."""
    life = multiprocessing.get_context("fork").Process(target=_until_killed, args=(settings, directory, point))
    life.start()
    life.join(60)
    assert life.exitcode == -signal.SIGKILL


def _until_killed(settings: ChangesOptions | PollingOptions, directory: Path, point: str) -> None:
    faults._points[point] = 1
    read(settings, directory)
    os._exit(0)


def test_changes_come_in_the_order_of_commits_as_json(database: Database, tmp_path: Path) -> None:
    assert read(options(database), tmp_path) == []
    with database.connect() as late, database.connect() as early:
        late.execute("BEGIN")
        late.execute("INSERT INTO orders VALUES (1, 'late', 1.50, true, '{\"a\": [1, null]}')")
        early.execute("INSERT INTO orders VALUES (2, 'early \"quoted\" ü', 'NaN', NULL, NULL)")
        late.execute("UPDATE orders SET item = 'later' WHERE id = 1")
        late.execute("COMMIT")
    database.execute("UPDATE orders SET id = 3 WHERE id = 2")
    database.execute("DELETE FROM orders WHERE id = 3")
    database.execute("TRUNCATE orders")
    records = read(options(database), tmp_path)
    assert [(record["op"], record.get("key")) for record in records] == [
        ("insert", {"id": 2}),
        ("insert", {"id": 1}),
        ("update", {"id": 1}),
        ("delete", {"id": 2}),
        ("insert", {"id": 3}),
        ("delete", {"id": 3}),
        ("truncate", None),
    ]
    assert records[0]["after"] == {"id": 2, "item": 'early "quoted" ü', "price": "NaN", "paid": None, "more": None}
    assert records[1]["after"] == {"id": 1, "item": "late", "price": 1.5, "paid": True, "more": {"a": [1, None]}}
    assert (records[3]["new_key"], records[4]["old_key"]) == ({"id": 3}, {"id": 2})
    assert records[3]["lsn"] == records[4]["lsn"]
    assert all(record["table"] == "public.orders" for record in records)
    assert records[1]["lsn"] == records[2]["lsn"] != records[0]["lsn"]
    assert records[1]["xid"] == records[2]["xid"]
    assert records[2]["#"][0] == b'{"id":1}'
    assert records[2]["committed_at"].endswith("Z")
    assert records[2]["#"][1] > 1_700_000_000 * 10**9


def test_a_table_that_logs_whole_rows_has_the_row_before_the_change(database: Database, tmp_path: Path) -> None:
    database.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    database.execute("ALTER TABLE orders ALTER COLUMN item SET STORAGE EXTERNAL")
    read(options(database), tmp_path)
    database.execute("INSERT INTO orders VALUES (1, %s)", "x" * 10_000)
    database.execute("UPDATE orders SET paid = true WHERE id = 1")
    database.execute("DELETE FROM orders")
    _, update, delete = read(options(database), tmp_path)
    assert update["key"] == delete["key"] == {"id": 1}
    assert update["before"]["paid"] is None
    assert update["after"]["item"] == "x" * 10_000
    assert delete["before"]["paid"] is True


def test_a_large_value_that_did_not_change_is_marked_as_unchanged(database: Database, tmp_path: Path) -> None:
    database.execute("ALTER TABLE orders ALTER COLUMN item SET STORAGE EXTERNAL")
    read(options(database), tmp_path)
    database.execute("INSERT INTO orders VALUES (1, %s)", "x" * 10_000)
    database.execute("UPDATE orders SET paid = true WHERE id = 1")
    _, update = read(options(database), tmp_path)
    assert update["unchanged"] == ["item"]
    assert "item" not in update["after"]


def test_a_change_of_columns_shows_in_the_records_that_follow(database: Database, tmp_path: Path) -> None:
    read(options(database), tmp_path)
    database.execute("INSERT INTO orders (id) VALUES (1)")
    database.execute("ALTER TABLE orders DROP COLUMN more, ADD COLUMN colour text DEFAULT 'red'")
    database.execute("INSERT INTO orders (id) VALUES (2)")
    first, second = read(options(database), tmp_path)
    assert "more" in first["after"]
    assert "colour" not in first["after"]
    assert second["after"]["colour"] == "red"


def test_many_small_transactions_are_read_whole(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_slot, "MESSAGES_MAX", 50)
    monkeypatch.setattr("procession.connectors.postgres_source.MESSAGES_MAX", 50)
    read(options(database), tmp_path)
    with database.connect() as connection:
        for number in range(100):
            connection.execute("INSERT INTO orders (id) VALUES (%s)", (number,))
    database.execute("INSERT INTO orders (id) SELECT generate_series(100, 299)")
    records = read(options(database), tmp_path)
    assert [record["key"]["id"] for record in records] == list(range(300))


@pytest.mark.parametrize("point", ["source:postgres-before-position", "source:postgres-before-advance"])
def test_a_killed_source_neither_loses_nor_repeats_a_change(database: Database, tmp_path: Path, point: str) -> None:
    read(options(database), tmp_path)
    for start in (0, 10, 20):
        database.execute("INSERT INTO orders (id) SELECT generate_series(%s::int, %s::int)", start, start + 9)
        killed(options(database), tmp_path, point)
    database.execute("INSERT INTO orders (id) VALUES (30)")
    assert [record["key"]["id"] for record in read(options(database), tmp_path)] == list(range(31))


def test_a_slot_that_was_advanced_by_others_stops_the_source(database: Database, tmp_path: Path) -> None:
    read(options(database), tmp_path)
    database.execute("INSERT INTO orders (id) VALUES (1)")
    database.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", database.name)
    with pytest.raises(StorageError, match="changes in between are missing"):
        read(options(database), tmp_path)
    database.execute("SELECT pg_drop_replication_slot(%s)", database.name)
    with pytest.raises(StorageError, match="is gone"):
        read(options(database), tmp_path)


def test_a_directory_belongs_to_one_slot(database: Database, tmp_path: Path) -> None:
    other = ChangesOptions(database.url, ("orders",), slot=f"{database.name}_b", is_ending=True)
    read(options(database), tmp_path / "a")
    read(other, tmp_path / "b")
    with pytest.raises(StorageError, match="is of slot"):
        read(other, tmp_path / "a")


@pytest.mark.parametrize(
    ("prepare", "settings", "sentence"),
    [
        ("SELECT 1", {"tables": ("nothing",)}, "no table nothing"),
        ("SELECT 1", {"tables": ()}, "no table is named"),
        ("CREATE TABLE loose (id int)", {"tables": ("loose",)}, "no primary key"),
        ("CREATE PUBLICATION others", {"publication": "others"}, "does not have the table public.orders"),
        ("SELECT 1", {"publication": "Not A Name"}, "cannot name"),
    ],
)
def test_a_source_that_cannot_work_does_not_start(
    database: Database, tmp_path: Path, prepare: str, settings: dict[str, Any], sentence: str
) -> None:
    database.execute(prepare)
    with pytest.raises(ProcessionError) as error:
        read(options(database, **settings), tmp_path)
    assert sentence in error.value.explain()
    assert "Next:" in error.value.explain()
    assert database.execute("SELECT * FROM pg_replication_slots WHERE database = current_database()") == []


def test_a_second_source_of_a_slot_is_refused(database: Database, tmp_path: Path) -> None:
    read(options(database), tmp_path)
    with database.connect() as other:
        number = lock_number("source", database.name)
        other.execute("SELECT pg_advisory_lock(%s)", (number,))
        with pytest.raises(StorageError, match="Another source reads"):
            read(options(database, lock_timeout_s=0.1), tmp_path)


# Polling


def test_polling_reads_rows_in_the_order_of_the_column_once(database: Database, tmp_path: Path) -> None:
    database.execute("INSERT INTO orders (id) SELECT generate_series(12, 1, -1)")
    settings = polling(database, page_rows=5)
    records = read(settings, tmp_path)
    assert [record["after"]["id"] for record in records] == list(range(1, 13))
    assert records[0]["op"] == "read"
    database.execute("INSERT INTO orders (id, item) VALUES (13, 'new')")
    assert [record["after"]["id"] for record in read(settings, tmp_path)] == list(range(1, 14))


def test_rows_with_the_same_value_are_in_one_page(database: Database, tmp_path: Path) -> None:
    database.execute("INSERT INTO orders (id, price) SELECT number, number / 4 FROM generate_series(0, 19) number")
    settings = PollingOptions(database.url, "orders", "price", is_ending=True, page_rows=3)
    assert sorted(record["after"]["id"] for record in read(settings, tmp_path)) == list(range(20))


@pytest.mark.parametrize("point", ["source:postgres-before-page", "source:postgres-after-page"])
def test_a_killed_polling_source_neither_loses_nor_repeats_a_row(
    database: Database, tmp_path: Path, point: str
) -> None:
    settings = polling(database, page_rows=4, start="2")
    for start in (0, 10, 20):
        database.execute("INSERT INTO orders (id) SELECT generate_series(%s::int, %s::int)", start, start + 9)
        killed(settings, tmp_path, point)
    records = read(settings, tmp_path)
    assert [record["after"]["id"] for record in records] == list(range(3, 30))


def test_polling_by_a_column_that_is_not_there_is_reported(database: Database, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no column 'colour'"):
        read(PollingOptions(database.url, "orders", "colour", is_ending=True), tmp_path)


def test_more_rows_of_one_value_than_may_be_held_in_memory_are_refused_and_nothing_is_lost(
    database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE ties (n int)")
    database.execute("INSERT INTO ties SELECT 1 FROM generate_series(1, 8)")
    database.execute("INSERT INTO ties SELECT 2 FROM generate_series(1, 12)")
    settings = PollingOptions(database.url, "ties", "n", is_ending=True, page_rows=3, page_rows_max=10)
    with pytest.raises(ConfigError) as error:
        read(settings, tmp_path)
    assert "More than 10 rows of table ties have the value 2 in column n" in error.value.explain()
    assert "--page-rows-max" in error.value.explain()
    found = read(dataclasses.replace(settings, page_rows_max=12), tmp_path)
    assert len(found) == 20
