"""The changes of two PostgreSQL tables; each order, with what is known of its customer then, goes to a Delta table.

Transactions come in the order of their commits, so an order has the customer's country of that moment, and each order
is in the Delta table once. The server needs wal_level=logical. Before the first run:

    psql shop -c 'CREATE TABLE customers (id bigint PRIMARY KEY, country text)'
    psql shop -c 'CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, amount double precision)'
"""

import os
from typing import Any

from procession import Pipeline

DATABASE = os.environ.get("SHOP_DATABASE", "postgres://localhost/shop")
OPTIONS = os.environ.get("SHOP_OPTIONS", "")


def customer_of(change: dict[str, Any]) -> int:
    """The customer that a change is about."""
    is_customer = change["table"] == "public.customers"
    return int(change["key"]["id"] if is_customer else change["after"]["customer"])


def enriched(country: str, change: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """A customer's country, and the order with it."""
    if change["table"] == "public.customers":
        return change.get("after", {}).get("country") or "unknown", []
    order = change["after"]
    told = {"order": order["id"], "customer": order["customer"], "amount": float(order["amount"]), "country": country}
    return country, [{**told, "committed_at": change["committed_at"]}]


pipeline = Pipeline("postgres-changes-to-delta", parallelism=2)
(
    pipeline.source("changes", from_=f"{DATABASE}?table=customers,orders&slot=shop{OPTIONS}", codec="json")
    .filter(lambda change: change["table"] == "public.customers" or change["op"] == "insert")
    .flat_map_stateful(enriched, key=customer_of, initial="unknown", name="countries")
    .sink("orders", to="delta:enriched-orders")
)
