"""Orders, payments and parcels, as lines of JSON like {"kind": "order", "order": 7, "at": 1200}, in three streams that
are joined: an order comes out when the last of its three records has come, if they are within a day of the order."""

from typing import Any

from procession import Pipeline

Event = dict[str, Any]


def shipped(order: Event, payment: Event, parcel: Event) -> dict[str, Any]:
    is_prepaid = payment["at"] <= parcel["at"]
    return {"order": order["order"], "seconds": parcel["at"] - order["at"], "is_prepaid": is_prepaid}


pipeline = Pipeline("shipped-orders", parallelism=2)
events = pipeline.source("events", codec="json")
orders, payments, parcels = events.split(lambda event: event["kind"], "order", "payment", "parcel")
orders.join_all(
    payments,
    parcels,
    within_s=86_400,
    join=shipped,
    key=lambda event: event["order"],
    time=lambda event: event["at"],
    name="shipping",
).sink("shipped", to="file:output")
