"""Clicks of a shop, as lines of JSON like {"user": "u1", "kind": "cart", "at": 1200}. A funnel of three steps: a user
puts something into the cart and goes to the checkout, but does not pay within ten minutes."""

from typing import Any

from procession import Pipeline, patterns


def is_kind(kind: str) -> Any:
    return lambda click: click["kind"] == kind


def reminder(match: dict[str, Any]) -> dict[str, Any]:
    return {"user": match["key"], "cart_at": match["start"], "checkout_at": match["end"]}


abandoned = (
    patterns.begin("cart", is_kind("cart"))
    .without(is_kind("emptied"))
    .then("checkout", is_kind("checkout"))
    .without(is_kind("paid"))
)

pipeline = Pipeline("abandoned-carts", parallelism=2)
clicks = pipeline.source("clicks", codec="json")
matches = clicks.match(abandoned, within_s=600, key=lambda click: click["user"], time=lambda click: click["at"])
matches.map(reminder).sink("reminders", to="file:output")
