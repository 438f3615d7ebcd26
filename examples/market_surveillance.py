"""Market surveillance: the order events of daily files, {"at": 1200, "trader": "A", "kind": "place", "side": "buy",
"count": 500}, in the order of their times, with the limits that hold at each time: {"at": 1000, "trader": "A", "count":
400}. Alerts for orders above the limit, and for spoofing: large orders, a trade on the other side, and the large orders
are cancelled."""

from dataclasses import dataclass
from typing import Any, Literal

from procession import Pipeline, json_of, patterns


@dataclass(frozen=True)
class Event:
    at: int
    trader: str
    kind: Literal["place", "trade", "cancel"]
    side: Literal["buy", "sell"]
    count: int


@dataclass(frozen=True)
class Limit:
    at: int
    trader: str
    count: int


def limit_alerts(limits: dict[str, int], event: Event) -> list[dict[str, Any]]:
    limit = limits.get(event.trader, default_limit)
    alert = {"alert": "limit", "trader": event.trader, "at": event.at, "count": event.count, "limit": limit}
    return [alert] if event.kind == "place" and event.count > limit else []


def spoofing_alert(match: dict[str, Any]) -> dict[str, Any]:
    orders = match["matched"]["large"]
    return {"alert": "spoofing", "trader": match["key"], "at": match["end"], "orders": [order.at for order in orders]}


def is_of_side(event: Event, kind: str, orders: list[Event], *, is_same: bool) -> bool:
    return event.kind == kind and (event.side == orders[0].side) == is_same


pipeline = Pipeline("surveillance", parallelism=4, order_by="event_time", late="dead-letter", dead_letter="file:out")
default_limit = pipeline.setting("default_limit", int, default=1_000)
large = pipeline.setting("large", int, default=400)
within_s = pipeline.setting("within_s", float, default=60)
spoofing = (
    patterns.begin("large", lambda event: event.kind == "place" and event.count >= large, at_least=2, at_most=9)
    .then("trade", lambda event, seen: is_of_side(event, "trade", seen["large"], is_same=False))
    .then("cancelled", lambda event, seen: is_of_side(event, "cancel", seen["large"], is_same=True), at_least=2)
)

events = pipeline.source("events", from_="file:events-*.jsonl", codec=json_of(Event), event_time_field="at")
limits = pipeline.source("limits", from_="file:limits.jsonl", codec=json_of(Limit), event_time_field="at")
over = events.with_broadcast(
    limits, update=lambda known, limit: {**known, limit.trader: limit.count}, initial={}, apply=limit_alerts
).flat_map(lambda alerts: alerts)
spoofed = events.match(spoofing, within_s=within_s, key=lambda event: event.trader).map(spoofing_alert)
over.merge(spoofed).sink("alerts", to="file:out")
