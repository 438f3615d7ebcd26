"""The stream join: pairs of records from two streams with equal keys and times within a bound.

Invariant: a record is paired with the records of the other side that came before it and are still held, in the order
of their arrival. How long a record is held depends on its time and on the watermark. A pair has the position of the
record that completed it, then that of its partner. A record without a partner has the position of the record that
advanced the watermark. A timed operator (`operators/timed`). Pure.

State: under `k` and the key, the records held of the left and of the right side, each as [time, record, whether it has
been paired], in the order of their arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import starmap
from typing import Any, ClassVar

import numpy as np

from procession.errors import PlanError
from procession.operators.operator import Place, StateSpec
from procession.operators.stage_rows import Numbers
from procession.operators.timed import KeyState, Progress, TimedOperator
from procession.operators.windows import late_record
from procession.planner.keys import PLAIN_KEYS, KeyCodec
from procession.planner.ownership import own
from procession.times import in_unit

LEFT, RIGHT = 0, 1

STEPS = 8
"""Number of steps of the watermark per bound. A record may be held one step longer than the bound."""

HELD_MAX = 100_000
"""Default of the maximum number of records that a join holds per key."""


class LatePairRule(Enum):
    """The rules for a record that arrives when possible partners may have been removed already."""

    MEET = "meet"
    """The record is paired with records that are still held, and is not held itself."""
    DROP = "drop"
    DEAD_LETTER = "dead-letter"


def as_left(value: Any) -> list[Any]:
    return [LEFT, value]


def as_right(value: Any) -> list[Any]:
    return [RIGHT, value]


@dataclass(frozen=True)
class Sided:
    """A function of a record, with a variant for each side."""

    left: Callable[[Any], Any]
    right: Callable[[Any], Any]

    def __call__(self, sided: list[Any]) -> Any:
        side, value = sided
        return self.right(value) if side else self.left(value)


@dataclass(slots=True)
class HeldRecord:
    """A record that waits for partners."""

    time: int
    value: Any
    is_paired: bool

    def as_list(self) -> list[Any]:
        """Return the form in which it is stored."""
        return [self.time, self.value, self.is_paired]


@dataclass(slots=True)
class HeldRecords(KeyState):
    """The held records of one key, by side."""

    left: list[HeldRecord]
    right: list[HeldRecord]

    @property
    def is_empty(self) -> bool:
        return not (self.left or self.right)

    def stored(self) -> list[Any]:
        return [[record.as_list() for record in side] for side in (self.left, self.right)]


@dataclass(frozen=True)
class StreamJoin(TimedOperator[HeldRecords]):
    """A join of two streams. Its rows are those of both sides."""

    within: int
    join: Callable[[Any, Any], Any]
    is_outer: bool = False
    """Whether a left record without a partner is emitted with None."""
    lateness: int = 0
    held_max: int = HELD_MAX
    late: LatePairRule = LatePairRule.MEET
    keys: KeyCodec = PLAIN_KEYS

    stops_on: ClassVar[tuple[type[Exception], ...]] = (PlanError,)

    @property
    def state(self) -> StateSpec:
        return StateSpec(
            layout=f" of pairs within {in_unit(self.within)} s",
            function=self.join,
            outputs=(self.join,),
            steps=self.steps,
            fires_at_end=True,
            late_to_dead_letters=self.late is LatePairRule.DEAD_LETTER,
        )

    @property
    def step_ns(self) -> int:
        return max(1, self.within // STEPS)

    def steps(self, times: Numbers) -> Numbers:
        return np.floor_divide(times - self.lateness, self.step_ns)

    def _due(self, time: int) -> int:
        """Return the step at which a record of this time is removed: the first step past it by more than the bound."""
        return (time + self.within) // self.step_ns + 1

    def load(self, stored: list[Any] | None) -> HeldRecords:
        left, right = ([], []) if stored is None else stored
        return HeldRecords(list(starmap(HeldRecord, left)), list(starmap(HeldRecord, right)))

    def add_record(self, progress: Progress, value: Any, time: int, held: HeldRecords) -> None:
        """Pair a record with all held records of the other side within the bound. Then hold the record, unless it is
        late. If `join` raises, nothing changes."""
        side, record = value
        due = self._due(time)
        is_late = progress.step >= due
        if is_late and self.late is not LatePairRule.MEET:
            raise late_record(time, progress.watermark)
        same, others = (held.right, held.left) if side == RIGHT else (held.left, held.right)
        partners = [(number, other) for number, other in enumerate(others) if abs(other.time - time) <= self.within]
        found = [
            (number, self._joined(other.value, record) if side == RIGHT else self._joined(record, other.value))
            for number, other in partners
        ]
        if is_late and self.is_outer and side == LEFT and not found:
            found = [(0, self.join(record, None))]
        elif not is_late:
            same.append(HeldRecord(time, record, bool(found)))
            self._check_limit(progress.key, held)
            progress.timers.set_once(due, progress.key)
        for _, other in partners:
            other.is_paired = True
        for number, result in found:
            progress.emit(result, number)
        if is_late:
            raise late_record(time, progress.watermark)

    def _check_limit(self, key: bytes, held: HeldRecords) -> None:
        if len(held.left) + len(held.right) > self.held_max:
            raise PlanError(
                f"a join holds more than {self.held_max:,} records of key {self.keys.decode(key)!r}, which wait for the"
                " input that is furthest behind in event time",
                next_step='read its inputs in step, as with order_by="event_time"; or give the join a smaller within_s'
                " or lateness_s, or a larger held_max; nothing of this epoch is committed",
            )

    def take_due(self, progress: Progress, held: HeldRecords) -> Iterable[tuple[Place, Any]]:
        step = progress.step
        unpaired = [left for left in held.left if self._due(left.time) <= step and not left.is_paired]
        held.left = [left for left in held.left if self._due(left.time) > step]
        held.right = [right for right in held.right if self._due(right.time) > step]
        if not self.is_outer:
            return []
        return [((left.time + self.within, progress.key, place), left.value) for place, left in enumerate(unpaired)]

    def result_of(self, key: bytes, due: Any) -> Any:
        try:
            return self.join(due, None)
        except Exception as error:
            raise PlanError(
                f"the `join` of a record of key {self.keys.decode(key)!r} without a partner raised"
                f" {type(error).__name__}: {error}",
                next_step="let the function accept None as the right record, and start again: nothing of this epoch is"
                " committed, and it runs again",
            ) from error

    def _joined(self, left: Any, right: Any) -> Any:
        """Return the result of a pair. `join` gets copies, because both records may be held and paired again."""
        return self.join(own(left), own(right))
