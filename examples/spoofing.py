"""Order events, as lines of JSON like {"trader": "A", "kind": "place", "side": "buy", "at": 1200, "count": 500}.
Spoofing: at least three large orders on one side, a trade on the other side, and within a minute the large orders are
cancelled."""

from typing import Any

from procession import Pipeline, patterns

LARGE = 400
Event = dict[str, Any]


def is_large(event: Event) -> bool:
    return event["kind"] == "place" and event["count"] >= LARGE


def is_other_side(event: Event, matched: dict[str, list[Event]]) -> bool:
    return event["kind"] == "trade" and event["side"] != matched["large"][0]["side"]


def is_cancelled(event: Event, matched: dict[str, list[Event]]) -> bool:
    return event["kind"] == "cancel" and event["side"] == matched["large"][0]["side"]


def alert(match: dict[str, Any]) -> dict[str, Any]:
    matched = match["matched"]
    return {"trader": match["key"], "from": match["start"], "to": match["end"], "side": matched["trade"][0]["side"]}


spoofing = (
    patterns.begin("large", is_large, at_least=3)
    .then("trade", is_other_side)
    .then("cancelled", is_cancelled, at_least=3)
)

pipeline = Pipeline("spoofing", parallelism=2)
events = pipeline.source("events", codec="json")
matches = events.match(
    spoofing, within_s=60, key=lambda event: event["trader"], time=lambda event: event["at"], name="spoofing"
)
matches.map(alert).sink("alerts", to="file:output")
