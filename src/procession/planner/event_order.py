"""Event-time order: a pipeline's declaration about the order of its streams and about late records.

Invariant: the order follows from the declared streams and never from timing, unless an option that allows this is
chosen explicitly. Built by `api/pipeline`; used by the gateway, which orders the records, and by
`operators/dead_letters`, which handles late ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from procession.errors import PlanError
from procession.planner.validation import checked_choice, checked_seconds


class OrderBy(StrEnum):
    """The ways to order records of several streams."""

    ARRIVAL = "arrival"
    EVENT_TIME = "event_time"


class LateRule(StrEnum):
    """The rules for a record that is behind the watermark of its own stream."""

    FAIL = "fail"
    DROP = "drop"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True)
class EventTime:
    """Streams are merged by (event time, stream id, message id)."""

    lateness_s: float = 0.0
    """Maximum time by which a record may be behind the latest record of its stream, in seconds."""
    late: LateRule = LateRule.FAIL
    idle_timeout_s: float | None = None
    """Maximum time for which a silent stream delays the others, in seconds. None: without limit, so that two runs
    write the same bytes."""


class LateRecord(Exception):
    """The reason in the dead letter of a late record."""


def event_time(
    order_by: str, lateness_s: float | None, late: str | None, idle_timeout_s: float | None, owner: str
) -> EventTime | None:
    """Return the checked settings. None: records are in the order of arrival."""
    if checked_choice(OrderBy, order_by, "order_by") is OrderBy.ARRIVAL:
        given = {"lateness_s": lateness_s, "late": late, "idle_timeout_s": idle_timeout_s}
        for word, value in given.items():
            if value is not None:
                raise PlanError(
                    f"{owner} has {word}={value!r}, but its records are in the order of arrival",
                    next_step=f'omit {word}, or write order_by="event_time"',
                )
        return None
    if idle_timeout_s is not None and not checked_seconds(idle_timeout_s, "idle_timeout_s", owner):
        raise PlanError(
            f"idle_timeout_s={idle_timeout_s!r} of {owner} is not a positive number of seconds",
            next_step="give it the seconds for which a stream may be silent, or omit it",
        )
    return EventTime(
        checked_seconds(lateness_s or 0.0, "lateness_s", owner),
        checked_choice(LateRule, late or LateRule.FAIL, "late"),
        idle_timeout_s,
    )


def check_declared(name: str, undeclared: list[str], event_time: EventTime, *, has_letters: bool) -> None:
    """Raise PlanError unless all streams are known, and late records have a place to go."""
    if undeclared:
        raise PlanError(
            f"pipeline {name!r} is ordered by event time, but source {undeclared[0]!r} does not name its"
            " streams, so the streams to wait for are unknown",
            next_step='name them: source(…, streams=[…]), a file by its path, as Path("a.jsonl"), others by the name'
            " or the id that their producer gives them",
        )
    if event_time.late is LateRule.DEAD_LETTER and not has_letters:
        raise PlanError(
            f"pipeline {name!r} makes dead letters of late records, but has no sink for them",
            next_step='write Pipeline(…, dead_letter="file:DIR"), or late="drop"',
        )
