"""Event-time order: which settings belong together, and what a pipeline must declare."""

from __future__ import annotations

from typing import Any

import pytest

from procession.errors import PlanError
from procession.planner.event_order import EventTime, LateRule, check_declared, event_time

OWNER = "pipeline 'p'"


def test_the_order_of_arrival_has_no_settings() -> None:
    assert event_time("arrival", None, None, None, OWNER) is None


@pytest.mark.parametrize(
    ("settings", "word"),
    [((0.0, None, None), "lateness_s"), ((None, "drop", None), "late"), ((None, None, 1.0), "idle_timeout_s")],
)
def test_a_setting_of_event_time_with_the_order_of_arrival_is_refused(
    settings: tuple[Any, Any, Any], word: str
) -> None:
    with pytest.raises(PlanError, match=f"{OWNER} has {word}=") as caught:
        event_time("arrival", *settings, OWNER)
    assert 'order_by="event_time"' in caught.value.next_step


def test_by_default_late_records_fail_and_the_order_waits_for_silent_streams() -> None:
    assert event_time("event_time", None, None, None, OWNER) == EventTime(0.0, LateRule.FAIL, None)


def test_the_settings_are_kept() -> None:
    assert event_time("event_time", 2.5, "drop", 30, OWNER) == EventTime(2.5, LateRule.DROP, 30)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (("event_time", None, None, 0), "is not a positive number"),
        (("event_time", None, None, -1), "is not a time"),
        (("event_time", -1, None, None), "is not a time"),
        (("event_time", None, "ignore", None), "late='ignore' is not known"),
        (("size", None, None, None), "order_by='size' is not known"),
    ],
)
def test_an_invalid_setting_is_refused(settings: tuple[Any, Any, Any, Any], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        event_time(*settings, OWNER)


def test_all_streams_must_be_declared_and_the_first_source_that_does_not_is_named() -> None:
    with pytest.raises(PlanError, match="source 'a' does not name its streams"):
        check_declared("p", ["a", "b"], EventTime(), has_letters=True)
    check_declared("p", [], EventTime(), has_letters=False)


def test_dead_letters_of_late_records_need_a_place() -> None:
    letters = EventTime(late=LateRule.DEAD_LETTER)
    with pytest.raises(PlanError, match="has no sink for them") as caught:
        check_declared("p", [], letters, has_letters=False)
    assert 'dead_letter="file:DIR"' in caught.value.next_step
    check_declared("p", [], letters, has_letters=True)
    check_declared("p", [], EventTime(late=LateRule.DROP), has_letters=False)
