"""Window types: tumbling, sliding, session, calendar and counting.

Invariant: a window type is a value that defines where windows start and end, in nanoseconds of event time. It does not
know their records. `operators/window_operator` fills windows and fires them. Pure.

    >>> from procession import windows
    >>> windows.tumbling(10).ends(12 * 10**9)
    (20000000000,)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import Literal
from zoneinfo import ZoneInfo

from procession.errors import PlanError
from procession.operators.calendar import Period, bounds
from procession.planner.event_order import LateRecord
from procession.times import NS, in_unit, length

SESSION_STEPS = 8
"""Number of steps of the watermark per gap of a session. A session may fire up to one step late."""

CALENDAR_STEP = 15 * 60 * NS
"""Length of the watermark's steps with calendar windows: 15 minutes, because local midnights are at such times in all
current time zones. At other midnights, a window fires up to one step late."""

SPAN_MAX = 1_000_000_000 * NS
"""Maximum duration, in nanoseconds."""

Length = float | Decimal | timedelta
"""A duration: seconds as a number, or a timedelta. A float means the decimal number that Python prints for it."""

OVERLAPS_MAX = 1_000
"""Maximum number of sliding windows that contain one record."""


class LateWindowRule(Enum):
    """The rules for a record if all of its windows have fired."""

    DROP = "drop"
    FIRE = "fire"
    OLDEST = "oldest"
    DEAD_LETTER = "dead-letter"
    UPDATE = "update"
    """The corrected result of its window is emitted, together with the result that it replaces."""


@dataclass(frozen=True)
class Windows:
    """A window type, made by `tumbling`, `sliding`, `session`, `calendar` or `counting`. Times are in nanoseconds.

    `size` is the length of a window, or the gap of a session. `every` is the distance between two windows. With
    `count`, a window has this many records, regardless of their times. With `period`, a window is one such period in
    the time zone `zone`.
    """

    size: int = 0
    every: int = 0
    is_session: bool = False
    count: int = 0
    period: Period | None = None
    zone: str = "UTC"

    @cached_property
    def step(self) -> int:
        """Length of the watermark's steps. No window can fire within a step."""
        if self.period is not None:
            return CALENDAR_STEP
        return max(1, self.size // SESSION_STEPS) if self.is_session else self.every

    @property
    def is_tumbling(self) -> bool:
        """Whether each time is in one window, of a fixed size."""
        return 0 < self.size == self.every

    @property
    def shape(self) -> str:
        """A description that is equal for equal window types."""
        if self.count:
            return f"{self.count} records"
        if self.period is not None:
            return f"calendar {self.period.value}s in {self.zone}"
        if self.is_session:
            return f"sessions with gaps of {in_unit(self.size)} s"
        return f"{in_unit(self.size)} s, every {in_unit(self.every)} s"

    def ends(self, time: int) -> tuple[int, ...]:
        """Return the ends of the windows that contain this time, the earliest first."""
        if self.period is not None:
            return (bounds(self.period, self.zone, time)[1],)
        if self.is_session:
            return (time + self.size,)
        first = (time // self.every + 1) * self.every
        return tuple(range(first, time + self.size + 1, self.every))

    def start(self, end: int) -> int:
        """Return the start of the window with this end. Not for sessions."""
        return end - self.size if self.period is None else bounds(self.period, self.zone, end - 1)[0]


def tumbling(size_s: Length) -> Windows:
    """Make windows of a fixed size, one after the other, aligned to 1970-01-01.

    Args:
        size_s: Length of a window in seconds.

    Raises:
        PlanError: The size is not positive.
    """
    size = span(size_s, "size_s")
    return Windows(size, size)


def sliding(size_s: Length, *, every_s: Length) -> Windows:
    """Make overlapping windows of a fixed size.

    Args:
        size_s: Length of a window in seconds. A multiple of `every_s`.
        every_s: Seconds between the ends of two windows.

    Raises:
        PlanError: The size is not a multiple of the step, or a record would be in too many windows.
    """
    size, every = span(size_s, "size_s"), span(every_s, "every_s")
    if size % every or size // every > OVERLAPS_MAX:
        raise PlanError(
            f"windows of {size_s} s cannot slide by {every_s} s",
            next_step=f"choose a size that is every_s times a number from 1 to {OVERLAPS_MAX}",
        )
    return Windows(size, every)


def session(gap_s: Length) -> Windows:
    """Make windows that last as long as each record follows the previous one within a gap.

    Args:
        gap_s: The gap in seconds. A session ends this long after its last record.
    """
    return Windows(span(gap_s, "gap_s"), is_session=True)


def calendar(period: Literal["day", "week", "month", "quarter", "year"], *, tz: str = "UTC") -> Windows:
    """Make windows of the calendar, from one local midnight to another. When clocks change, a day has 23 or 25 hours.

    Args:
        period: "day", "week" (from Monday), "month", "quarter" or "year".
        tz: Name of the time zone, such as "Europe/Berlin".

    Raises:
        PlanError: The period or the time zone is not known.
    """
    try:
        found = Period(period)
    except ValueError:
        known = ", ".join(repr(member.value) for member in Period)
        raise PlanError(f"calendar({period!r}) is not known", next_step=f"choose one of {known}") from None
    try:
        ZoneInfo(tz)
    except (OSError, TypeError, ValueError, KeyError):  # zoneinfo raises these for a name that is not a time zone
        raise PlanError(
            f"the time zone {tz!r} is not known", next_step='pass a name such as "Europe/Berlin" or "UTC"'
        ) from None
    return Windows(period=found, zone=tz)


def counting(records: int) -> Windows:
    """Make windows of a fixed number of records, regardless of their times.

    Args:
        records: Records per window.
    """
    if not isinstance(records, int) or isinstance(records, bool) or records < 1:
        raise PlanError(f"windows of {records!r} records are not possible", next_step="pass a number above 0")
    return Windows(count=records)


def span(time: Length, owner: str, least: int = 1) -> int:
    """Return the exact nanoseconds of a duration given by a user. Raises PlanError if it is below `least`
    nanoseconds."""
    ns = length(time)
    if ns is None or not least <= ns <= SPAN_MAX:
        raise PlanError(
            f"{owner}={time!r} is not a duration",
            next_step=f"pass seconds{', 0 or more' * (not least)}{' above 0' * least}",
        )
    return ns


def late_record(time: int, watermark: int) -> LateRecord:
    """Return the reason for a dead letter: the record is behind the watermark of a stage."""
    return LateRecord(f"its time {in_unit(time)} s is too far behind the watermark {in_unit(watermark)} s of the stage")


def check_updates(windows: Windows, late: str, updates_s: Length | None) -> None:
    """Raise PlanError unless windows can be corrected: there must be a time limit, and a record must not change the
    bounds of windows."""
    if (late == "update") is not (updates_s is not None):
        raise PlanError(
            f".window() has late={late!r} and updates_s={updates_s!r}, which belong together",
            next_step='write late="update", updates_s=…: the seconds for which a window can be corrected after its end',
        )
    if updates_s is not None and (windows.is_session or windows.count):
        raise PlanError(
            f"windows of {windows.shape} cannot be corrected: a late record would change which records are in them",
            next_step="choose another late=, or tumbling, sliding or calendar windows",
        )
