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


Matched = dict[str, list[Event]]
pipeline = Pipeline(
    "market-surveillance", parallelism=4, order_by="event_time", late="dead-letter", dead_letter="file:out"
)
large = pipeline.setting("large", int, default=400)
within_s = pipeline.setting("within_s", float, default=60)


def limit_alert(limits: dict[str, int], event: Event) -> dict[str, Any] | None:
    limit = limits.get(event.trader, 1_000)
    if event.kind != "place" or event.count <= limit:
        return None
    return {"alert": "limit", "trader": event.trader, "at": event.at, "count": event.count, "limit": limit}


def spoofing_alert(match: dict[str, Any]) -> dict[str, Any]:
    orders = match["matched"]["large"]
    return {"alert": "spoofing", "trader": match["key"], "at": match["end"], "orders": [order.at for order in orders]}


def is_other_side(event: Event, matched: Matched) -> bool:
    return event.kind == "trade" and event.side != matched["large"][0].side


def is_cancelled(event: Event, matched: Matched) -> bool:
    return event.kind == "cancel" and event.side == matched["large"][0].side


spoofing = (
    patterns.begin("large", lambda event: event.kind == "place" and event.count >= large, at_least=2, at_most=9)
    .then("trade", is_other_side)
    .then("cancelled", is_cancelled, at_least=2)
)
events = pipeline.source("events", from_="file:events-*.jsonl", codec=json_of(Event), event_time_field="at")
limits = pipeline.source("limits", from_="file:limits.jsonl", codec="json", event_time_field="at")
over = events.with_broadcast(
    limits, update=lambda known, limit: {**known, limit["trader"]: limit["count"]}, initial={}, apply=limit_alert
).filter(lambda alert: alert is not None)
matches = events.match(spoofing, within_s=within_s, key=lambda event: event.trader, time=lambda event: event.at)
over.merge(matches.map(spoofing_alert)).sink("alerts", to="file:out")
