"""`procession run` writes to a Parquet directory, a Delta table and an Iceberg table, each record once."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tests.walk.commands import run

RECORDS = 3_000
APP = """
from procession import Pipeline

pipeline = Pipeline("lake")
orders = pipeline.source("orders", codec="json").map(lambda order: {**order, "total": order["price"] * order["count"]})
for kind, place in (("parquet", "parquet"), ("delta", "delta"), ("iceberg", "warehouse/sales.orders")):
    orders.sink(kind, to=f"{kind}:{place}?position_column=position")
"""


def test_what_a_run_commits_is_in_each_table_once_and_in_order(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    orders = [{"id": number, "price": number / 4, "count": 2} for number in range(RECORDS)]
    (tmp_path / "orders.json").write_text("".join(f"{json.dumps(order)}\n" for order in orders))
    done = run("run", "app.py", "--input", "orders.json", "--epoch-records-max", "1000", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    uri = f"sqlite:///{tmp_path}/warehouse/catalog.db"
    iceberg = load_catalog("procession", type="sql", uri=uri).load_table("sales.orders")
    tables: dict[str, pa.Table] = {
        "parquet": duckdb.sql(f"from read_parquet('{tmp_path}/parquet/**/*.parquet')").to_arrow_table(),
        "delta": DeltaTable(tmp_path / "delta").to_pyarrow_table(),
        "iceberg": iceberg.scan().to_arrow(),
    }
    for kind, table in tables.items():
        rows = table.sort_by("position").drop_columns("position").to_pylist()
        assert rows == [{**order, "total": order["price"] * order["count"]} for order in orders], kind
