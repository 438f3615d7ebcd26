"""The trigger interval: kept by a monotonic clock, without delaying a stop."""

from __future__ import annotations

import pytest

from procession.spark.log_source import HOLD_S_MAX, IDLE_S, TriggerInterval


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.longest = 0.0

    def hold(self, seconds: float) -> None:
        self.now += seconds
        self.longest = max(self.longest, seconds)


def starts(pace: TriggerInterval, clock: Clock, works_s: list[float]) -> list[float]:
    """Return the start times of epochs that take the given times."""
    found = []
    for work_s in works_s:
        while not pace.is_due():
            clock.now += 0.01
        found.append(round(clock.now - 1000.0, 3))
        clock.now += work_s
    return found


def test_epochs_begin_an_interval_apart_or_as_soon_as_the_last_one_is_over() -> None:
    clock = Clock()
    pace = TriggerInterval(0.1, now=lambda: clock.now, hold=clock.hold)
    assert starts(pace, clock, [0.03, 0.25, 0.0, 0.0]) == [0.0, 0.1, 0.35, 0.45]


def test_without_an_interval_nothing_waits() -> None:
    clock = Clock()
    pace = TriggerInterval(0.0, now=lambda: clock.now, hold=clock.hold)
    assert starts(pace, clock, [0.01] * 3) == [0.0, 0.01, 0.02]
    assert clock.longest == 0.0


def test_a_long_interval_is_kept_and_does_not_delay_a_stop() -> None:
    clock = Clock()
    pace = TriggerInterval(60.0, now=lambda: clock.now, hold=clock.hold)
    first, second = starts(pace, clock, [0.0, 0.0])
    assert (first, second) == (0.0, pytest.approx(60.0, abs=0.1))
    assert clock.longest <= HOLD_S_MAX


def test_after_a_poll_that_found_nothing_the_next_one_waits_even_without_an_interval() -> None:
    clock = Clock()
    pace = TriggerInterval(0.0, now=lambda: clock.now, hold=clock.hold)
    assert pace.is_due()
    pace.found_nothing()
    assert pace.is_due()
    assert clock.now - 1000.0 == pytest.approx(IDLE_S)
