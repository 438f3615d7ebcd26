"""The example with PostgreSQL and Delta, as a user runs it: a real server, and the contents of the Delta table."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.systems import postgres_server
from tests.systems.postgres_server import needs_postgres
from tests.walk.commands import run

pytestmark = [needs_postgres, pytest.mark.slow]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "postgres_changes_to_delta.py"


def test_every_order_is_in_the_delta_table_once_with_the_country_of_its_moment(tmp_path: Path) -> None:
    with postgres_server.running() as server:
        database = postgres_server.new_database(server)
        database.execute("CREATE TABLE customers (id bigint PRIMARY KEY, country text)")
        database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, amount double precision)")
        database.execute("CREATE PUBLICATION shop FOR TABLE customers, orders")
        database.execute("SELECT pg_create_logical_replication_slot('shop', 'pgoutput')")
        database.execute("INSERT INTO customers SELECT number, 'AT' FROM generate_series(0, 8) number")
        expected = []
        for start, country in ((0, "AT"), (100, "CH")):
            database.execute(
                "INSERT INTO orders SELECT n, n %% 10, n / 4.0 FROM generate_series(%s::int, %s::int) n",
                start,
                start + 99,
            )
            expected += [(n, "unknown" if n % 10 == 9 else country) for n in range(start, start + 100)]
            database.execute("UPDATE orders SET amount = 0 WHERE id = %s", start)
            database.execute("UPDATE customers SET country = 'CH'")
        for _ in range(2):  # the second run finds everything committed
            environment = {"SHOP_DATABASE": database.url, "SHOP_OPTIONS": "&stop_at_end=true"}
            done = run("run", EXAMPLE, "--listen", "127.0.0.1:0", cwd=tmp_path, **environment)
            assert done.returncode == 0, done.stderr + done.stdout
            rows = DeltaTable(tmp_path / "enriched-orders").to_pyarrow_table().to_pylist()
            assert sorted((row["order"], row["country"]) for row in rows) == expected
            assert {row["amount"] for row in rows} == {n / 4 for n in range(200)}
