"""Sales, as lines of JSON like {"shop": "s1", "customer": "c7", "cents": 1200, "at": 1774738800}. For each shop and
month, in Berlin's local time: the turnover, the number of customers, the median and the 95th percentile of a sale."""

from typing import Any

from procession import Pipeline, aggregates, windows

Sale = dict[str, Any]


def cents(sale: Sale) -> int:
    return int(sale["cents"])


def told(month: dict[str, Any]) -> dict[str, Any]:
    hours = (month["end"] - month["start"]) // 3600
    return {"shop": month["key"], "from": month["start"], "hours": hours, **month["value"]}


pipeline = Pipeline("monthly-turnover", parallelism=2)
sales = pipeline.source("sales", codec="json")
months = sales.window(
    windows.calendar("month", tz="Europe/Berlin"),
    aggregates.all_of(
        cents=aggregates.sum_of(cents),
        customers=aggregates.distinct(lambda sale: sale["customer"]),
        sale=aggregates.quantiles(0.5, 0.95, of=cents),
    ),
    key=lambda sale: sale["shop"],
    time=lambda sale: sale["at"],
)
months.map(told).sink("months", to="file:output")
