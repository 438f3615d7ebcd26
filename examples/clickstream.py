"""A clickstream, as lines of JSON like {"user": "u1", "at": 1200, "page": "/cart"}: visits with their length and pages,
purchases in three steps, and the busiest users of each hour. Clicks of robots are counted and left out; lines that are
no clicks become dead letters."""

from dataclasses import dataclass
from typing import Any

from procession import Context, Pipeline, aggregates, json_of, patterns, windows


@dataclass(frozen=True)
class Click:
    user: str
    at: int
    page: str


def is_human(click: Click, context: Context) -> bool:
    is_robot = click.user.startswith("bot")
    context.counter("robots", int(is_robot))
    return not is_robot


def visit(session: dict[str, Any]) -> dict[str, Any]:
    seconds = session["value"]["last"].at - session["start"]
    return {"user": session["key"], "from": session["start"], "seconds": seconds, "pages": session["value"]["pages"]}


def purchase(match: dict[str, Any]) -> dict[str, Any]:
    return {"user": match["key"], "cart_at": match["start"], "paid_at": match["end"]}


def busiest(hour: dict[str, Any]) -> dict[str, Any]:
    return {"hour": hour["start"], "users": [[user["key"], user["count"]] for user in hour["value"]]}


bought = (
    patterns.begin("cart", lambda click: click.page == "/cart")
    .then("checkout", lambda click: click.page == "/checkout")
    .then("paid", lambda click: click.page == "/paid")
)
last_and_pages = aggregates.all_of(
    last=aggregates.max_by(lambda click: click.at), pages=aggregates.distinct(lambda click: click.page)
)
busiest_three = aggregates.top(3, by=lambda user: user["count"])

pipeline = Pipeline("clickstream", parallelism=4, dead_letter="file:out")
source = pipeline.source("clicks", from_="file:clicks.jsonl", codec=json_of(Click))
clicks = source.filter(is_human).key_by(lambda click: click.user).add_timestamps(lambda click: click.at)

clicks.window(windows.session(1800), last_and_pages).map(visit).sink("visits", to="file:out")
clicks.match(bought, within_s=3600).map(purchase).sink("purchases", to="file:out")
hours = clicks.window(windows.tumbling(3600), aggregates.count())
top = hours.window(windows.tumbling(3600), busiest_three, time=lambda user: user["start"])
top.map(busiest).sink("busiest", to="file:out")
