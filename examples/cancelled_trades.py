"""The three largest trades of each symbol and minute, from lines of JSON like {"id": 7, "symbol": "X", "at": 1200,
"count": 50}. A trade may be cancelled, {"id": 7, "symbol": "X", "at": 1200, "is_cancelled": true}: then the minute's
result comes again without it, and names the one that it replaces."""

from typing import Any

from procession import Pipeline, aggregates, windows

Trade = dict[str, Any]


def row(result: dict[str, Any]) -> dict[str, Any]:
    before = None if result["replaces"] is None else ids(result["replaces"]["value"])
    return {"symbol": result["key"], "minute": result["start"], "largest": ids(result["value"]), "replaces": before}


def ids(trades: list[Trade]) -> list[int]:
    return [trade["id"] for trade in trades]


largest = aggregates.retracting(
    aggregates.top(3, by=lambda trade: trade["count"]),
    id_of=lambda trade: trade["id"],
    is_retraction=lambda trade: trade.get("is_cancelled", False),
)

pipeline = Pipeline("cancelled-trades", parallelism=2)
trades = pipeline.source("trades", codec="json")
minutes = trades.window(
    windows.tumbling(60),
    largest,
    key=lambda trade: trade["symbol"],
    time=lambda trade: trade["at"],
    late="update",
    updates_s=3600,
    name="minutes",
)
minutes.map(row).sink("largest", to="file:output")
