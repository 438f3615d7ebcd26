"""Orders as lines of JSON like {"id": 7, "item": "pear", "count": 3}, with the price of the item from a table."""

from typing import Any

from procession import Pipeline, tables

PRICES = [{"item": "apple", "cents": 40}, {"item": "pear", "cents": 55}, {"item": "plum", "cents": 20}]


def priced(order: dict[str, Any], price: dict[str, Any] | None) -> dict[str, Any]:
    return {**order, "cents": None if price is None else price["cents"] * order["count"]}


pipeline = Pipeline("enrichment", parallelism=2)
orders = pipeline.source("orders", codec="json")
# A table in a file: tables.of_parquet("prices.parquet", by="item", refresh=True)
known = orders.hash_join(tables.of_rows(PRICES, by="item"), key=lambda order: order["item"], join=priced)
known.sink("priced", to="file:output")
