"""Devices that send messages, as lines of JSON like {"device": "d1"}. A device that is silent for 30 seconds by the
clock is reported although no message comes, and reported again when it returns, with the seconds that it was silent."""

from typing import Any

from procession import Pipeline, ProcessContext

SILENCE_S = 30
State = dict[str, Any]


def message(state: State, message: dict[str, Any], context: ProcessContext) -> tuple[State, list[Any]]:
    context.cancel_timers()
    context.timer_after_s(SILENCE_S)
    back = {"device": context.key, "is_silent": False, "seconds": context.time - state["last_at"]}
    return {"is_silent": False, "last_at": context.time}, [back] if state["is_silent"] else []


def silent(state: State, context: ProcessContext) -> tuple[State, list[Any]]:
    return {**state, "is_silent": True}, [{"device": context.key, "is_silent": True, "at": context.time}]


pipeline = Pipeline("silent-devices", parallelism=2)
messages = pipeline.source("messages", codec="json")
alerts = messages.process(
    message,
    on_timer=silent,
    key=lambda message: message["device"],
    initial={"is_silent": False, "last_at": 0},
    clock=pipeline.clock(interval_s=1),
    name="silence",
)
alerts.sink("alerts", to="file:output")
