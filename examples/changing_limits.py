"""Orders, as lines of JSON like {"kind": "order", "id": 7, "item": "pear", "count": 30}, checked against limits that
change: {"kind": "limit", "item": "pear", "count": 20}. A limit counts for the orders that come after it."""

from typing import Any

from procession import Pipeline

Limits = dict[str, int]


def changed(limits: Limits, change: dict[str, Any]) -> Limits:
    return {**limits, change["item"]: change["count"]}


def checked(limits: Limits, order: dict[str, Any]) -> dict[str, Any]:
    limit = limits.get(order["item"])
    return {"id": order["id"], "limit": limit, "is_above": limit is not None and order["count"] > limit}


pipeline = Pipeline("changing-limits", parallelism=2)
events = pipeline.source("events", codec="json")
limits, orders = events.split(lambda event: event["kind"] == "limit")
alerts = orders.with_broadcast(limits, update=changed, initial={}, apply=checked, name="checking")
alerts.filter(lambda order: order["is_above"]).sink("alerts", to="file:output")
