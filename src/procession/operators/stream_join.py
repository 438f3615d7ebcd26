"""The stream join: pairs of records from two streams with equal keys and times within a bound.

The one rule: a record is paired with the records of the other side that came before it and are still held, in the order
of their arrival. How long a record is held depends on its time and on the watermark, which is a function of the
sequence. So neither the epoch cuts nor the number of tasks show in the output. A pair has the place of the record that
completed it, then that of its partner. A record without a partner has the place of the record that advanced the
watermark. Used by `operators/chain`; uses `operators/watermark_timers`. Pure.

State: under `k` and the key, the records held of the left and of the right side, each as [time, record, whether it has
found a partner], in the order of their arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from procession.errors import PlanError
from procession.operators.keyed import Refuse, States
from procession.operators.stage_rows import Numbers
from procession.operators.timed import Timed
from procession.operators.watermark_timers import Alarms
from procession.operators.windows import late_record
from procession.planner.keys import PLAIN_KEYS, KeyCodec
from procession.planner.order_key import AFTER, Result, rank_of
from procession.planner.ownership import own
from procession.times import in_unit

LEFT, RIGHT = 0, 1

STEPS = 8
"""The watermark of a join moves in steps of its bound divided by this: so much longer a record may be held."""

HELD_MAX = 100_000
"""So many records of one key a join holds, unless it is said."""


class LatePair(Enum):
    """What becomes of a record that comes when those which it could meet may have been let go."""

    MEET = "meet"
    """It meets those that are still held, and is not held itself."""
    DROP = "drop"
    DEAD_LETTER = "dead-letter"


def as_left(value: Any) -> list[Any]:
    return [LEFT, value]


def as_right(value: Any) -> list[Any]:
    return [RIGHT, value]


@dataclass(frozen=True)
class Sided:
    """A function of a record that knows which side it is of."""

    left: Callable[[Any], Any]
    right: Callable[[Any], Any]

    def __call__(self, sided: list[Any]) -> Any:
        side, value = sided
        return self.right(value) if side else self.left(value)


@dataclass(frozen=True)
class Pairing(Timed):
    """What a join of two streams does. Its rows are those of both sides."""

    within: int
    join: Callable[[Any, Any], Any]
    is_outer: bool = False
    """Whether a left record that finds nobody comes out with None."""
    lateness: int = 0
    held_max: int = HELD_MAX
    late: LatePair = LatePair.MEET
    keys: KeyCodec = PLAIN_KEYS

    @property
    def sets_late_aside(self) -> bool:
        return self.late is LatePair.DEAD_LETTER

    @property
    def shape(self) -> str:
        """What its states are cut by: they are of no use to another bound."""
        return f"pairs within {in_unit(self.within)} s"

    @property
    def step(self) -> int:
        return max(1, self.within // STEPS)

    def steps(self, times: Numbers) -> Numbers:
        """The step of the watermark that each time alone would lead to."""
        return np.floor_divide(times - self.lateness, self.step)

    def due(self, time: int) -> int:
        """The step at which a record of this time is let go: the first that is further than the bound behind it."""
        return (time + self.within) // self.step + 1

    def begin(self, states: States) -> _Run:
        return _Run(self, states)


class _Run:
    """Rows on their way through a join."""

    def __init__(self, stage: Pairing, states: States) -> None:
        self.stage = stage
        self.states = states
        self.alarms = Alarms(states)
        self.results: list[Result] = []
        self.is_set: set[tuple[int, bytes]] = set()

    def add(
        self,
        rows: Sequence[int],
        keys: Sequence[bytes],
        values: Sequence[Any],
        times: Numbers,
        step: int,
        refuse: Refuse,
    ) -> None:
        names = {row: b"k" + keys[row] for row in rows}
        known = self.states.take(list(names.values()))
        for row, name in names.items():
            held = known.get(name) or [[], []]
            side, value = values[row]
            try:
                is_late = self._meet(row, keys[row], side, value, int(times[row]), step, held)
            except PlanError:
                raise
            except Exception as error:  # the user's code may raise anything; the record decides who acts
                refuse(row, error)
                is_late = False
            if is_late:
                refuse(row, late_record(int(times[row]), step * self.stage.step))
            if held[LEFT] or held[RIGHT]:
                known[name] = held
        self.states.touch(names.values())
        self.alarms.keep()

    def _meet(self, row: int, key: bytes, side: int, value: Any, time: int, step: int, held: list[Any]) -> bool:
        """Put a record together with all that are held of the other side and near it; then hold it, unless it is
        late. If `join` raises, it has not been here. Says whether it is late."""
        stage = self.stage
        due = stage.due(time)
        is_late = step >= due
        if is_late and stage.late is not LatePair.MEET:
            return True
        near = [(number, other) for number, other in enumerate(held[1 - side]) if abs(other[0] - time) <= stage.within]
        found = [
            (number, self._joined(other[1], value) if side else self._joined(value, other[1])) for number, other in near
        ]
        if is_late and stage.is_outer and side == LEFT and not found:
            found = [(0, stage.join(value, None))]
        elif not is_late:
            held[side].append([time, value, bool(found)])
            if len(held[LEFT]) + len(held[RIGHT]) > stage.held_max:
                raise PlanError(
                    f"a join holds more than {stage.held_max:,} records of key {stage.keys.decode(key)!r}: they wait"
                    " for the input that is furthest behind in event time",
                    next_step='let its inputs be read side by side, as with order_by="event_time"; or give it a'
                    " smaller within_s or lateness_s, or a larger held_max; nothing of this epoch was committed",
                )
            if (due, key) not in self.is_set:
                self.is_set.add((due, key))
                self.alarms.set(due, key)
        for _, other in near:
            other[2] = True
        self.results += [(row, (AFTER, b"", number), key, result) for number, result in found]
        return is_late

    def fire(self, row: int, step: int, keys: Sequence[bytes]) -> None:
        """The watermark has come to this step, at this row: of these keys, what has waited long enough goes."""
        if not keys:
            return
        known = self.states.take([b"k" + key for key in keys])
        alone = []
        for key in keys:
            held = known.pop(b"k" + key, [[], []])
            if self.stage.is_outer:
                gone = [one for one in held[LEFT] if self.stage.due(one[0]) <= step and not one[2]]
                alone += [((one[0] + self.stage.within, key, at), one[1]) for at, one in enumerate(gone)]
            kept = [[one for one in side if self.stage.due(one[0]) > step] for side in held]
            if kept[LEFT] or kept[RIGHT]:
                known[b"k" + key] = kept
        self.states.touch([b"k" + key for key in keys])
        for place, value in sorted(alone, key=lambda one: (one[0][0], rank_of(one[0][1]), one[0][2])):
            key = place[1]
            try:
                self.results.append((row, place, key, self.stage.join(value, None)))
            except Exception as error:
                raise PlanError(
                    f"the `join` of a record of key {self.stage.keys.decode(key)!r} that found nobody raised"
                    f" {type(error).__name__}: {error}",
                    next_step="mend it: it is called with None for the right record; nothing of this epoch was"
                    " committed, and it is run again when you start again",
                ) from error

    def _joined(self, left: Any, right: Any) -> Any:
        """What the user makes of a pair: of copies, since both may be held and meet others."""
        return self.stage.join(own(left), own(right))
