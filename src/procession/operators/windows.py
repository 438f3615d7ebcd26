"""Window types: tumbling, sliding, session and counting.

The one rule: a window type is a value that says where a window starts and ends, in nanoseconds of event time; it does
not know what is put into it. `operators/window_operator` fills windows and fires them. Pure.

    >>> from procession import windows
    >>> windows.tumbling(10).ends(12 * 10**9)
    (20000000000,)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import Enum

from procession.errors import PlanError
from procession.planner.event_order import LateRecord
from procession.times import NS, in_unit, length

SESSION_STEPS = 8
"""The watermark of a session moves in steps of its gap divided by this: so much later than its end it may fire."""

SPAN_MAX = 1_000_000_000 * NS
"""The longest length of time, in nanoseconds."""

Length = float | Decimal | timedelta
"""A length of time: seconds as a number, which is taken as the decimal number that it prints as, or a timedelta."""

OVERLAPS_MAX = 1_000
"""So many sliding windows a record may be in."""


class Late(Enum):
    """What becomes of a record all of whose windows have fired."""

    DROP = "drop"
    FIRE = "fire"
    OLDEST = "oldest"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True)
class Windows:
    """`size` and `every` in nanoseconds; a session is as long as its records are less than `size` apart. With `count`
    so many records make a window, whatever their times."""

    size: int = 0
    every: int = 0
    is_session: bool = False
    count: int = 0

    @property
    def step(self) -> int:
        """The watermark moves in steps of this: no window could fire in between."""
        return max(1, self.size // SESSION_STEPS) if self.is_session else self.every

    @property
    def shape(self) -> str:
        """What they are, in words that are the same as long as they are."""
        if self.count:
            return f"{self.count} records"
        if self.is_session:
            return f"sessions with gaps of {in_unit(self.size)} s"
        return f"{in_unit(self.size)} s, every {in_unit(self.every)} s"

    def ends(self, time: int) -> tuple[int, ...]:
        """The ends of the windows that a moment is in, the earliest first."""
        if self.is_session:
            return (time + self.size,)
        first = (time // self.every + 1) * self.every
        return tuple(range(first, time + self.size + 1, self.every))


def tumbling(size_s: Length) -> Windows:
    """Windows of this many seconds, one after the other, counted from 1970."""
    size = span(size_s, "size_s")
    return Windows(size, size)


def sliding(size_s: Length, *, every_s: Length) -> Windows:
    """Windows of `size_s` seconds, one of which ends every `every_s` seconds; the size is a multiple of it."""
    size, every = span(size_s, "size_s"), span(every_s, "every_s")
    if size % every or size // every > OVERLAPS_MAX:
        raise PlanError(
            f"windows of {size_s} s cannot slide by {every_s} s",
            next_step=f"let the size be the step times a number from 1 to {OVERLAPS_MAX}",
        )
    return Windows(size, every)


def session(gap_s: Length) -> Windows:
    """A window for records that follow one another within `gap_s` seconds; it ends that long after the last."""
    return Windows(span(gap_s, "gap_s"), is_session=True)


def counting(records: int) -> Windows:
    """A window for every so many records."""
    if not isinstance(records, int) or isinstance(records, bool) or records < 1:
        raise PlanError(f"windows of {records!r} records cannot be", next_step="give a number above 0")
    return Windows(count=records)


def span(time: Length, what: str, least: int = 1) -> int:
    """A length of time as a user gave it, exact, in nanoseconds; at least so many. Raises PlanError."""
    ns = length(time)
    if ns is None or not least <= ns <= SPAN_MAX:
        raise PlanError(
            f"{what}={time!r} is no time", next_step=f"give seconds{', 0 or more' * (not least)}{' above 0' * least}"
        )
    return ns


def late_record(time: int, watermark: int) -> LateRecord:
    """Said of a record that came behind the watermark of a stage."""
    return LateRecord(f"its time {in_unit(time)} s is too far behind the watermark {in_unit(watermark)} s of the stage")
