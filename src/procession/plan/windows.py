"""Windows: which stretches of time, or how many records, are put together.

The one rule: a window is a value that says where it begins and ends, in nanoseconds of event time; nothing here knows
what is put together. Before it the user; after it `plan/timed`, which fills windows and fires them. Pure.

    >>> from procession import windows
    >>> windows.tumbling(10).ends(12 * 10**9)
    (20000000000,)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from procession.errors import PlanError
from procession.plan.eventtime import LateRecord

NS = 1_000_000_000
SESSION_STEPS = 8
"""The watermark of a session moves in steps of its gap divided by this: so much later than its end it may fire."""

TIME_MAX = 2**61
"""In nanoseconds: 73 years before and behind 1970."""

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
            return f"sessions with gaps of {seconds(self.size)} s"
        return f"{seconds(self.size)} s, every {seconds(self.every)} s"

    def ends(self, time: int) -> tuple[int, ...]:
        """The ends of the windows that a moment is in, the earliest first."""
        if self.is_session:
            return (time + self.size,)
        first = (time // self.every + 1) * self.every
        return tuple(range(first, time + self.size + 1, self.every))


def tumbling(size_s: float) -> Windows:
    """Windows of this many seconds, one after the other, counted from 1970."""
    size = span(size_s, "size_s")
    return Windows(size, size)


def sliding(size_s: float, *, every_s: float) -> Windows:
    """Windows of `size_s` seconds, one of which ends every `every_s` seconds; the size is a multiple of it."""
    size, every = span(size_s, "size_s"), span(every_s, "every_s")
    if size % every or size // every > OVERLAPS_MAX:
        raise PlanError(
            f"windows of {size_s} s cannot slide by {every_s} s",
            next_step=f"let the size be the step times a number from 1 to {OVERLAPS_MAX}",
        )
    return Windows(size, every)


def session(gap_s: float) -> Windows:
    """A window for records that follow one another within `gap_s` seconds; it ends that long after the last."""
    return Windows(span(gap_s, "gap_s"), is_session=True)


def counting(records: int) -> Windows:
    """A window for every so many records."""
    if not isinstance(records, int) or isinstance(records, bool) or records < 1:
        raise PlanError(f"windows of {records!r} records cannot be", next_step="give a number above 0")
    return Windows(count=records)


def span(seconds: float, what: str) -> int:
    """What a user gave for a length of time, in nanoseconds. Raises PlanError."""
    """A time that something lasts, as a user gave it, in nanoseconds."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 1e-6 <= seconds <= 1e9:
        raise PlanError(f"{what}={seconds!r} is no time", next_step="give seconds above 0")
    return round(seconds * NS)


def nanoseconds(time: Any) -> int:
    """What a user's function gave as a time, in seconds. Raises TypeError or ValueError."""
    if not isinstance(time, int | float) or isinstance(time, bool):
        raise TypeError(f"the time is a {type(time).__name__}: give seconds, as a number")
    ns = time * NS if isinstance(time, int) else round(time * NS)
    if not -TIME_MAX <= ns <= TIME_MAX:
        raise ValueError(f"the time {time} s is out of range")
    return ns


def late_record(time: int, watermark: int) -> LateRecord:
    """Said of a record that came behind the watermark of a stage."""
    return LateRecord(f"its time {seconds(time)} s is too far behind the watermark {seconds(watermark)} s of the stage")


def timed(function: Callable[[Any], Any]) -> Callable[[Any], int]:
    """A user's function that gives a time in seconds, as one that gives nanoseconds."""
    return lambda value: nanoseconds(function(value))


def seconds(ns: int) -> int | float:
    """Nanoseconds for people: whole seconds as a whole number."""
    return ns // NS if ns % NS == 0 else ns / NS
