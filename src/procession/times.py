"""Times: points in time and durations, exact, as whole nanoseconds.

Invariant: a user's value is taken as the decimal number that Python prints for it, never as the binary expansion of a
float. Only fractions of a nanosecond are rounded, half to even. A `datetime` without a time zone is in UTC. Pure.

    >>> nanoseconds(1700000000.1), nanoseconds(1700000000100, "ms")
    (1700000000100000000, 1700000000100000000)
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

NS = 1_000_000_000
UNITS = {"s": NS, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""The units of times, in nanoseconds."""

Unit = Literal["s", "ms", "us", "ns"]

TIME_MAX = 2**61
"""Maximum time in nanoseconds: 73 years before or after 1970."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT = Context(prec=60, rounding=ROUND_HALF_EVEN)
_DIGITS_MAX = 20
"""Maximum number of digits before the decimal point. A longer number is out of range in every unit."""


def nanoseconds(time: Any, unit: Unit = "s") -> int:
    """Convert a user's time to nanoseconds: an int, float or Decimal in this unit, or a datetime.

    Raises TypeError or ValueError."""
    ns = _exact(time, unit)
    if not -TIME_MAX <= ns <= TIME_MAX:
        raise ValueError(f"the time {time} is out of range, more than 73 years from 1970")
    return ns


def all_nanoseconds(times: Sequence[Any], unit: Unit = "s") -> npt.NDArray[np.int64] | None:
    """Convert many times at once, if all are ints or all are floats; otherwise return None."""
    kinds = set(map(type, times))
    if kinds == {int}:
        most = TIME_MAX // UNITS[unit]
        if -most <= min(times) and max(times) <= most:
            return np.array(times, np.int64) * UNITS[unit]
    elif kinds == {float} and unit == "s":
        found = np.array(times, np.float64)
        if (np.abs(found) < TIME_MAX // NS).all():
            micros = np.rint(found * 1e6)
            ns = micros.astype(np.int64) * 1_000
            for row in np.flatnonzero(micros / 1e6 != found).tolist():
                ns[row] = _exact(times[row], unit)
            return ns
    return None


def _exact(time: Any, unit: Unit) -> int:
    if isinstance(time, bool):
        pass
    elif isinstance(time, int):
        return time * UNITS[unit]
    elif isinstance(time, float):
        # A float of this size is finer than microseconds, and the float nearest to a number of microseconds prints as
        # that number.
        if unit == "s" and abs(time) < TIME_MAX // NS and (micros := round(time * 1e6)) / 1e6 == time:
            return micros * 1_000
        text = float.__repr__(time)
        whole, _, part = text.partition(".")
        if unit == "s" and len(part) <= 9 and part.isdigit():
            return int(whole + part.ljust(9, "0"))
        return _of_decimal(Decimal(text), unit)
    elif isinstance(time, Decimal):
        return _of_decimal(time, unit)
    elif isinstance(time, datetime):
        since = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - EPOCH
        return of_delta(since)
    elif isinstance(time, np.integer):
        return int(time) * UNITS[unit]
    raise TypeError(f"the time is a {type(time).__name__}: use a number or a datetime")


def _of_decimal(number: Decimal, unit: Unit) -> int:
    if not number.is_finite() or number.adjusted() > _DIGITS_MAX:
        raise ValueError(f"the time {number} is out of range")
    return int(_EXACT.to_integral_value(_EXACT.multiply(number, Decimal(UNITS[unit]))))


def of_delta(delta: timedelta) -> int:
    return (delta.days * 86_400 + delta.seconds) * NS + delta.microseconds * 1_000


def length(time: Any) -> int | None:
    """Convert a user's duration to nanoseconds: seconds as a number, or a timedelta. Returns None if it is invalid."""
    if isinstance(time, timedelta):
        return of_delta(time)
    try:
        return None if isinstance(time, datetime) else _exact(time, "s")
    except (TypeError, ValueError):
        return None


def in_unit(ns: int, unit: Unit = "s") -> int | float:
    """Convert nanoseconds to a unit. Returns an int if the result is whole, else the nearest float."""
    return ns // UNITS[unit] if ns % UNITS[unit] == 0 else ns / UNITS[unit]
