"""Orders and payments, as lines of JSON like {"kind": "order", "order": 7, "at": 1200, "cents": 300}, joined if
they are at most a minute apart. An order that is not paid in time is emitted as soon as that is known."""

from typing import Any

from procession import Pipeline


def settled(order: dict[str, Any], payment: dict[str, Any] | None) -> dict[str, Any]:
    if payment is None:
        return {"order": order["order"], "paid": False}
    owed = order["cents"] - payment["cents"]
    return {"order": order["order"], "paid": True, "owed": owed, "after_s": payment["at"] - order["at"]}


pipeline = Pipeline("payments", parallelism=2)
events = pipeline.source("events", codec="json")
orders = events.filter(lambda event: event["kind"] == "order", name="orders")
payments = events.filter(lambda event: event["kind"] == "payment", name="payments")
known = orders.join(
    payments,
    within_s=60,
    join=settled,
    key=lambda event: event["order"],
    time=lambda event: event["at"],
    lateness_s=5,
    outer=True,
    name="settling",
)
known.sink("settled", to="file:output")
