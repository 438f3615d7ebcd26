"""A clickstream, {"user": "u1", "at": 1200, "page": "/cart"}: visits with their length and pages, purchases in three
steps, and the busiest users of each hour. Clicks of robots are counted and left out."""

from typing import Any

from procession import Context, Pipeline, aggregates, patterns, windows

Click = dict[str, Any]


def is_human(click: Click, context: Context) -> bool:
    is_robot = click["user"].startswith("bot")
    context.counter("robots", int(is_robot))
    return not is_robot


def is_page(page: str) -> Any:
    return lambda click: click["page"] == page


def visit(result: dict[str, Any]) -> dict[str, Any]:
    first, last = result["start"], result["value"]["last"]["at"]
    return {"user": result["key"], "from": first, "seconds": last - first, "pages": result["value"]["pages"]}


def funnel(match: dict[str, Any]) -> dict[str, Any]:
    return {"user": match["key"], "cart_at": match["start"], "paid_at": match["end"]}


def busiest(result: dict[str, Any]) -> dict[str, Any]:
    return {"hour": result["start"], "users": [[user["key"], user["count"]] for user in result["value"]]}


pipeline = Pipeline("clickstream", parallelism=4)
clicks = pipeline.source("clicks", from_="file:clicks.jsonl", codec="json").filter(is_human)
by_user: Any = {"key": lambda click: click["user"], "time": lambda click: click["at"]}
last = aggregates.max_by(lambda click: click["at"])
pages = aggregates.distinct(lambda click: click["page"])
visits = clicks.window(windows.session(1800), aggregates.all_of(last=last, pages=pages), **by_user)
visits.map(visit).sink("visits", to="file:out")
bought = patterns.begin("cart", is_page("/cart")).then("checkout", is_page("/checkout")).then("paid", is_page("/paid"))
clicks.match(bought, within_s=3600, **by_user).map(funnel).sink("purchases", to="file:out")
hours = clicks.window(windows.tumbling(3600), aggregates.count(), **by_user)
top = aggregates.top(3, by=lambda hour: hour["count"])
hours.window(windows.tumbling(3600), top, time=lambda hour: hour["start"]).map(busiest).sink("busiest", to="file:out")
