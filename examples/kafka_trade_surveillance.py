"""Trades from a Kafka topic; alerts for wash trades to another topic and to a PostgreSQL table, in one commit.

A wash trade: one trader buys and sells the same number of a symbol at one price within a few trades. Both outputs have
every alert once, in the order of the trades of its symbol, or neither has it. Before the first run:

    kafka-topics.sh --create --topic trades --partitions 4 --bootstrap-server localhost:9092   # alerts likewise
    psql surveillance -c 'CREATE TABLE alerts (id text PRIMARY KEY, symbol text, trader text)'
"""

import os
from typing import Any

from procession import Pipeline

KAFKA = os.environ.get("SURVEILLANCE_KAFKA", "localhost:9092")
DATABASE = os.environ.get("SURVEILLANCE_DATABASE", "postgres://localhost/surveillance")
OPTIONS = os.environ.get("SURVEILLANCE_OPTIONS", "")
RECENT = 20


def wash_trades(recent: list[Any], trade: dict[str, Any]) -> tuple[list[Any], list[dict[str, Any]]]:
    """A symbol's recent trades, and the alert if this one mirrors one of them."""
    other = "sell" if trade["side"] == "buy" else "buy"
    is_wash = [trade["trader"], other, trade["price"], trade["quantity"]] in recent
    recent = [*recent, [trade["trader"], trade["side"], trade["price"], trade["quantity"]]][-RECENT:]
    alert = {"id": trade["id"], "symbol": trade["symbol"], "trader": trade["trader"]}
    return recent, [alert] if is_wash else []


pipeline = Pipeline("kafka-trade-surveillance", parallelism=2)
trades = pipeline.source("trades", from_=f"kafka://{KAFKA}/trades{OPTIONS}", codec="json")
alerts = trades.flat_map_stateful(wash_trades, key=lambda trade: trade["symbol"], initial=[], name="recent-trades")
alerts.sink("topic", to=f"kafka://{KAFKA}/alerts")
alerts.sink("table", to=f"{DATABASE}?table=alerts")
