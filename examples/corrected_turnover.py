"""Turnover per shop and hour, corrected when late sales come, and the turnover of each shop so far, in which a
correction takes back what it replaces. Sales are lines of JSON: {"shop": "s1", "at": 1200, "cents": 250}."""

from collections.abc import Iterator
from typing import Any

from procession import Pipeline, aggregates, windows


def row(result: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a table with the key (shop, hour). A later row replaces it."""
    return {"shop": result["key"], "hour": result["start"], "cents": result["value"], "why": result["fired"]}


def differences(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the changes of a total by a result: first it subtracts the result that it replaces."""
    if result["replaces"] is not None:
        yield {"shop": result["key"], "cents": -result["replaces"]["value"]}
    yield {"shop": result["key"], "cents": result["value"]}


def total(cents: int, change: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return cents + change["cents"], {"shop": change["shop"], "total": cents + change["cents"]}


pipeline = Pipeline("corrected-turnover", parallelism=2)
sales = pipeline.source("sales", codec="json")
hours = sales.window(
    windows.tumbling(3600),
    aggregates.sum_of(lambda sale: sale["cents"]),
    key=lambda sale: sale["shop"],
    time=lambda sale: sale["at"],
    late="update",
    updates_s=86_400,
    name="hours",
)
# With to="postgres://…/shop?table=hours&key=shop,hour" each row replaces the one before.
rows = hours.map(row)
totals = hours.flat_map(differences).map_stateful(total, key=lambda change: change["shop"], initial=0, name="totals")
rows.merge(totals).sink("turnover", to="file:output")
