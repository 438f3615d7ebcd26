"""Sample app of the landed version: states, a table, dead letters, a sort at the end."""

from typing import Any

from procession import Pipeline, tables

PRICES = [{"item": "apple", "cents": 40}, {"item": "pear", "cents": 55}]


def priced(order: dict[str, Any], price: dict[str, Any] | None) -> dict[str, Any]:
    if price is None:
        raise ValueError("no price")
    return {**order, "cents": price["cents"] * order["count"]}


def summed(total: int, order: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    total += order["cents"]
    return total, {**order, "total": total}


pipeline = Pipeline("sample", parallelism=2, dead_letter="file:output")
orders = pipeline.source("orders", codec="json")
known = orders.hash_join(tables.of_rows(PRICES, by="item"), key=lambda order: order["item"], join=priced)
totals = known.map_stateful(summed, key=lambda order: order["item"], initial=0, name="totals")
totals.sink("priced", to="file:output", codec="json")
