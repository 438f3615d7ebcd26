"""Telecom rating: calls, {"id": 7, "customer": "c1", "tariff": "basic", "zone": "EU", "at": "2026-03-29T01:59:00Z",
"seconds": 90}, rated with the price that was valid for their tariff and zone, also if they come late, and added up to
bills by month in local time. A bill that a late call changes comes out again, with the total before."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from procession import Pipeline, aggregates, json_of, windows


@dataclass(frozen=True)
class Call:
    id: int
    customer: str
    tariff: str
    zone: str
    at: datetime
    seconds: int


@dataclass(frozen=True)
class Price:
    tariff: str
    zone: str
    valid_from: datetime
    per_minute: Decimal


def rated(call: Call, price: Price | None) -> tuple[Call, Decimal | None]:
    return call, None if price is None else price.per_minute * -(-call.seconds // 60)


def bill(month: dict[str, Any]) -> dict[str, Any]:
    name = f"{datetime.fromtimestamp(month['start'], ZoneInfo('Europe/Berlin')):%Y-%m}"
    before = month["replaces"] and month["replaces"]["value"]
    return {"customer": month["key"], "month": name, "calls": month["count"], "total": month["value"], "before": before}


pipeline = Pipeline("telecom-rating", parallelism=4, dead_letter="file:out")
prices = pipeline.source("prices", from_="file:prices.jsonl", codec=json_of(Price))
calls = pipeline.source("calls", from_="file:calls-*.jsonl", codec=json_of(Call)).add_timestamps(lambda call: call.at)
charged, unrated = calls.as_of(
    prices,
    join=rated,
    key=lambda record: (record.tariff, record.zone),
    time=lambda call: call.at,
    valid_from=lambda price: price.valid_from,
).split(lambda pair: pair[1] is not None)
unrated.map(lambda pair: pair[0]).sink("unrated", to="file:out")
months = charged.window(
    windows.calendar("month", tz="Europe/Berlin"),
    aggregates.sum_of(lambda pair: pair[1]),
    key=lambda pair: pair[0].customer,
    late="update",
    updates_s=10 * 86_400,
)
months.map(bill).sink("bills", to="file:out")
