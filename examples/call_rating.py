"""Calls, as lines of JSON like {"kind": "call", "id": 7, "tariff": "basic", "at": 1200, "seconds": 90}, rated with the
price of their time: {"kind": "price", "tariff": "basic", "from": 1000, "cents": 5}. Prices may come before they are
valid."""

from typing import Any

from procession import Pipeline


def rated(call: dict[str, Any], price: dict[str, Any] | None) -> dict[str, Any]:
    minutes = -(-call["seconds"] // 60)
    return {"id": call["id"], "cents": None if price is None else minutes * price["cents"]}


pipeline = Pipeline("call-rating", parallelism=2)
events = pipeline.source("events", codec="json")
prices, calls = events.split(lambda event: event["kind"] == "price")
bills = calls.as_of(
    prices,
    join=rated,
    key=lambda event: event["tariff"],
    time=lambda call: call["at"],
    valid_from=lambda price: price["from"],
    name="rating",
)
bills.sink("bills", to="file:output")
