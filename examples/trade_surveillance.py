"""Trades and orders as lines of JSON; alerts, in order, for wash trades and for layering.

A wash trade: one trader buys and sells the same number of a symbol at one price within a few trades. Layering: many
orders of one trader on one side are cancelled, one after the other, and then the trader trades on the other side.
"""

from typing import Any

from procession import Pipeline

RECENT = 20
CANCELS = 3


def looked_at(book: dict[str, Any], event: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the alerts for a trade. The state has a symbol's recent trades, and each trader's cancelled orders since
    the last trade."""
    trader, side = event["trader"], event["side"]
    alerts = []
    if event["kind"] == "cancel":
        place = f"{trader} {side}"
        book["cancels"][place] = book["cancels"].get(place, 0) + 1
    elif event["kind"] == "trade":
        mirror = [trader, "sell" if side == "buy" else "buy", event["price"], event["quantity"]]
        if mirror in book["trades"]:
            alerts.append({"alert": "wash trade", "id": event["id"], "symbol": event["symbol"], "trader": trader})
        book["trades"] = [*book["trades"], [trader, side, event["price"], event["quantity"]]][-RECENT:]
        if book["cancels"].pop(f"{trader} {mirror[1]}", 0) >= CANCELS:
            alerts.append({"alert": "layering", "id": event["id"], "symbol": event["symbol"], "trader": trader})
    return book, alerts


pipeline = Pipeline("trade-surveillance", parallelism=2)
events = pipeline.source("events", codec="json")
alerts = events.flat_map_stateful(
    looked_at, key=lambda event: event["symbol"], initial={"trades": [], "cancels": {}}, name="books"
)
alerts.sink("alerts", to="file:output")
