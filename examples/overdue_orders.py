"""Events of orders, as lines of JSON like {"order": 7, "kind": "ordered", "at": 1200}. An order that is not paid within
a minute is reported after that minute, and again after another minute. "paid" and "cancelled" end an order."""

from typing import Any

from procession import Pipeline, ProcessContext

PATIENCE_S = 60


def event(due: int | None, event: dict[str, Any], context: ProcessContext) -> tuple[int | None, list[Any]]:
    """The state is the time at which an open order is overdue."""
    if due is not None and event["kind"] in ("paid", "cancelled"):
        context.cancel_timer(due)
        context.cancel_timer(due + PATIENCE_S)
        return None, []
    if due is not None or event["kind"] != "ordered":
        return due, []
    due = event["at"] + PATIENCE_S
    context.timer_at(due)
    return due, []


def overdue(due: int, context: ProcessContext) -> tuple[int | None, list[Any]]:
    alert = {"order": context.key, "overdue_since": due, "is_last": context.time > due}
    if alert["is_last"]:
        return None, [alert]
    context.timer_at(due + PATIENCE_S)
    return due, [alert]


pipeline = Pipeline("overdue-orders", parallelism=2)
events = pipeline.source("events", codec="json")
alerts = events.process(
    event,
    on_timer=overdue,
    key=lambda event: event["order"],
    time=lambda event: event["at"],
    name="waiting",
)
alerts.sink("alerts", to="file:output")
