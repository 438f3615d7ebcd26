"""The calendar: days, weeks, months, quarters and years in a time zone.

Invariant: a period lasts from one local midnight to another, so a day has 23 or 25 hours when clocks change. If a
midnight does not exist, the period begins when the clock jumps. If a midnight occurs twice, the period begins with the
first. Times are in nanoseconds. Used by `operators/windows`. Pure: the rules of the time zones are data of the machine.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from enum import Enum
from functools import lru_cache
from zoneinfo import ZoneInfo

from procession.times import EPOCH, NS

CACHED_MAX = 4096
_MINUTE = 60 * NS


class Period(Enum):
    """A unit of the calendar. A week begins on Monday."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    QUARTER = "quarter"
    YEAR = "year"


def bounds(period: Period, zone: str, time: int) -> tuple[int, int]:
    """Return the start and the end of the period that contains this time."""
    start, end = _bounds_at_minute(period, zone, time // _MINUTE)
    if start <= time < end:
        return start, end
    return _bounds(period, zone, time // NS)  # an old time zone that differs from UTC by seconds


@lru_cache(CACHED_MAX)
def _bounds_at_minute(period: Period, zone: str, minute: int) -> tuple[int, int]:
    return _bounds(period, zone, minute * 60)


def _bounds(period: Period, zone: str, second: int) -> tuple[int, int]:
    local = (EPOCH + timedelta(seconds=second)).astimezone(ZoneInfo(zone)).date()
    first = _first_day(period, local)
    # 40 days, 100 days and 370 days after the first day are always in the next month, quarter and year.
    later = {Period.DAY: 1, Period.WEEK: 7, Period.MONTH: 40, Period.QUARTER: 100, Period.YEAR: 370}[period]
    following = _first_day(period, first + timedelta(days=later))
    return _midnight(first, zone), _midnight(following, zone)


def _first_day(period: Period, day: date) -> date:
    """Return the first day of the period that contains this day."""
    match period:
        case Period.DAY:
            return day
        case Period.WEEK:
            return day - timedelta(days=day.weekday())
        case Period.MONTH:
            return day.replace(day=1)
        case Period.QUARTER:
            return day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1)
        case Period.YEAR:
            return day.replace(month=1, day=1)


def _midnight(day: date, zone: str) -> int:
    """Return the instant at which this day begins."""
    local = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone))
    return (local.astimezone(UTC) - EPOCH) // timedelta(seconds=1) * NS
