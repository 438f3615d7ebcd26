"""Turnover by shop and hour, as a table that is kept right: late sales and returned goods correct an hour's row, and an
hour of which everything was returned has no row. Sales are lines of JSON: {"shop": "s1", "at": 1200, "cents": 250}; a
returned sale has the time of the sale and "is_returned": true.

The table is a Delta table. `--set table='postgres://…/shop?table=turnover&key=shop,hour&delete_when=op=delete'` keeps
one in PostgreSQL instead; `--set topic=kafka://…/turnover` writes the rows to a compacted topic as well."""

import json
from typing import Any

from procession import Pipeline, aggregates, windows

pipeline = Pipeline("turnover-table", parallelism=2)
table = pipeline.setting("table", str, default="delta:turnover?key=shop,hour&delete_when=op=delete")
topic = pipeline.setting("topic", str, default="")


def row(result: dict[str, Any]) -> dict[str, Any]:
    """The row for (shop, hour), which replaces the one before; or the word to delete it."""
    sums = result["value"]
    op = "put" if sums["sold"] else "delete"
    return {"shop": result["key"], "hour": result["start"], "cents": sums["cents"], "op": op}


def message(row: dict[str, Any]) -> bytes:
    """The row as a message; an empty one is a tombstone."""
    return json.dumps(row).encode() if row["op"] == "put" else b""


sales = pipeline.source("sales", from_="file:sales.jsonl", codec="json")
hours = sales.window(
    windows.tumbling(3600),
    aggregates.all_of(
        cents=aggregates.sum_of(lambda sale: -sale["cents"] if sale.get("is_returned") else sale["cents"]),
        sold=aggregates.sum_of(lambda sale: -1 if sale.get("is_returned") else 1),
    ),
    key=lambda sale: sale["shop"],
    time=lambda sale: sale["at"],
    late="update",
    updates_s=7 * 86_400,
    name="hours",
)
rows = hours.map(row)
rows.sink("table", to=table)
if topic:
    keyed = rows.key_by(lambda row: f"{row['shop']}/{row['hour']}")
    keyed.map(message).sink("topic", to=f"{topic}?tombstones=true", codec="bytes")
