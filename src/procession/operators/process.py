"""The process operator: a keyed stage whose functions set timers in event time.

Invariant: a timer fires when the watermark reaches its time, in the order of times and then of keys, before the record
that advanced the watermark is processed. If a timer is due when it is set, it fires right after the record that set it.
Every task learns the watermark, so timers of quiet keys fire, too. A timed operator (`operators/timed`). Pure.

State: under `k` and the key, the state and the times of the timers, in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np

from procession.errors import PlanError
from procession.operators.context import count
from procession.operators.keyed import NO_PAIR, NO_RESULTS, is_open
from procession.operators.operator import Place, StateSpec
from procession.operators.stage_rows import Numbers
from procession.operators.timed import KeyState, Progress, TimedOperator
from procession.planner.keys import PLAIN_KEYS, KeyCodec
from procession.planner.ownership import separate
from procession.times import TIME_MAX, Unit, in_unit, length, nanoseconds

TIMERS_MAX = 10_000
"""Maximum number of timers of one key. The pipeline stops if a key has more."""


@dataclass(slots=True)
class ProcessContext:
    """The context of a call of the functions of `process`, with methods to set and cancel timers.

    Attributes:
        key: The key of the record or the timer.
        time: The event time of the record, or the time of the timer, in the `unit` of the stage.

    Example:
        >>> from procession import ProcessContext
        >>> def waiting(state: None, order: dict, context: ProcessContext) -> tuple[None, list]:
        ...     context.timer_at(context.time + 60)
        ...     return None, []
    """

    key: Any
    time: float
    _unit: Unit = "s"
    _after: int | None = None
    """The time of the firing timer. None: the call is for a record."""
    _asked: dict[int, bool] = field(default_factory=dict)
    """The timers that the function sets (true) and cancels (false), by their times in nanoseconds."""
    _delays: list[int] | None = None
    """The timers by the clock that the function sets, in nanoseconds from now. None: the stage has no clock."""
    _is_cancelling: bool = False
    """Whether the function cancels the timers that were set before."""
    _counts: Counter[str] = field(default_factory=Counter)

    def timer_at(self, time: float | Decimal | datetime) -> None:
        """Set a timer for this key: `on_timer` is called when event time reaches it.

        A key has at most one timer for a time. If the timer is already due, it fires right after this record.

        Args:
            time: The event time: a number in the `unit` of the stage since 1970, or a datetime.

        Raises:
            ValueError: `on_timer` sets a timer that is not later than the firing timer.
        """
        at = nanoseconds(time, self._unit)
        if self._after is not None and at <= self._after:
            raise ValueError(f"on_timer at {self.time} sets a timer at {time}, which is not later")
        self._asked[at] = True

    def timer_after_s(self, seconds: float | timedelta) -> None:
        """Set a timer by the clock for this key, in a stage with `clock=`.

        The time counts from the next tick of the clock, so the timer never fires early. In `on_timer`, it counts from
        the tick that fires.

        Args:
            seconds: The length of time, more than 0.

        Raises:
            PlanError: The stage has no clock.
            ValueError: `seconds` is not a positive length of time.
        """
        if self._delays is None:
            raise PlanError(
                "context.timer_after_s() needs a clock, and this stage has none",
                next_step="pass process(…, clock=pipeline.clock()), or set a timer in event time: context.timer_at()",
            )
        delay = length(seconds)
        if delay is None or not 0 < delay <= TIME_MAX:
            raise ValueError(f"timer_after_s({seconds!r}) is not a positive number of seconds")
        self._delays.append(delay)

    def cancel_timer(self, time: float | Decimal | datetime) -> None:
        """Cancel the timer of this key for this time. Does nothing if there is none."""
        self._asked[nanoseconds(time, self._unit)] = False

    def cancel_timers(self) -> None:
        """Cancel all timers of this key, including timers that this call has set."""
        self._is_cancelling = True
        self._asked.clear()
        if self._delays:
            self._delays.clear()

    def counter(self, name: str, add: int = 1) -> None:
        """Add to a counter of the app, like `Context.counter`. If the function raises later, the amount still counts.

        Args:
            name: Name of the counter. Use a few fixed names, not a name for each record.
            add: The amount to add, which may be negative.

        Raises:
            PlanError: The name is not valid.
            ValueError: `add` is not an int, or the app has too many counters.
        """
        count(self._counts, name, add)


OnRecord = Callable[[Any, Any, ProcessContext], tuple[Any, Any]]
"""Takes the state of a key, a record and the context. Returns the next state and the results."""

OnTimer = Callable[[Any, ProcessContext], tuple[Any, Any]]


def pair_of(returned: Any) -> tuple[Any, Any]:
    """Return the result of a function as a pair. If it is not a pair, raises TypeError with a sentence for people."""
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise TypeError(NO_PAIR)
    state, results = returned
    if results is None:
        raise TypeError(NO_RESULTS)
    return state, results


@dataclass(slots=True)
class KeyTimers(KeyState):
    """The state of a key (None: no state), and the times of its timers in nanoseconds, in order."""

    state: Any
    timers: list[int]

    @property
    def is_empty(self) -> bool:
        return self.state is None and not self.timers

    @property
    def count(self) -> int:
        return len(self.timers)

    def cancel_all(self) -> None:
        self.timers.clear()

    def stored(self) -> list[Any]:
        return [self.state, self.timers]


@dataclass(frozen=True)
class ProcessOperator(TimedOperator[KeyTimers]):
    """A keyed stage with timers."""

    function: OnRecord
    on_timer: OnTimer
    initial: Callable[[], Any]
    step: int
    """Length of the watermark's steps, in nanoseconds."""
    lateness: int = 0
    unit: Unit = "s"
    keys: KeyCodec = PLAIN_KEYS

    stops_on: ClassVar[tuple[type[Exception], ...]] = (PlanError,)

    @property
    def state(self) -> StateSpec:
        return StateSpec(
            layout=f" with timers in steps of {in_unit(self.step)} s",
            function=self.function,
            outputs=(self.function, self.on_timer),
            steps=self.steps,
            fires_at_end=True,
            is_made_by_user=True,
            held="the timers of",
        )

    @property
    def step_ns(self) -> int:
        return self.step

    def steps(self, times: Numbers) -> Numbers:
        return np.floor_divide(times - self.lateness, self.step)

    def load(self, stored: list[Any] | None) -> KeyTimers:
        return KeyTimers(None, []) if stored is None else KeyTimers(*stored)

    def add_record(self, progress: Progress, value: Any, time: int, held: KeyTimers) -> None:
        """Call the function for a record. If it raises, no timer changes, and the state is as the function left it."""
        self.call(progress, value, self.context_of(progress, time), held)

    def context_of(self, progress: Progress, time: int, after: int | None = None) -> ProcessContext:
        """Return the context of a call at this time; `after` is the time of the firing timer."""
        key = self.keys.decode(progress.key)
        return ProcessContext(key, in_unit(time, self.unit), self.unit, after, _counts=progress.counts)

    def call(self, progress: Progress, value: Any, context: ProcessContext, held: KeyTimers) -> None:
        """Call the function for a record."""
        state, results = pair_of(self.function(self._state(held), value, context))
        emitted = separate(results, is_held=is_open(state))
        held.state = state
        self.set_timers(progress, held, context)
        emitted += [result for _, result in self.take_due(progress, held)]
        for number, result in enumerate(emitted):
            progress.emit(result, number)

    def take_due(self, progress: Progress, held: KeyTimers) -> Iterator[tuple[Place, Any]]:
        """Fire the timers of a key that the watermark has reached, including timers that are set meanwhile."""
        while held.timers and held.timers[0] <= progress.watermark:
            at = held.timers.pop(0)
            context = self.context_of(progress, at, at)
            try:
                held.state, results = pair_of(self.on_timer(self._state(held), context))
                fired = separate(results, is_held=is_open(held.state))
            except Exception as error:
                raise PlanError(
                    f"the `on_timer` of key {context.key!r} raised {type(error).__name__}: {error}",
                    next_step="correct the function and start again: nothing of this epoch is committed, and it runs"
                    " again",
                ) from error
            self.set_timers(progress, held, context)
            for number, result in enumerate(fired):
                yield (at, progress.key, number), result

    def result_of(self, key: bytes, due: Any) -> Any:
        return due

    def _state(self, held: KeyTimers) -> Any:
        return self.initial() if held.state is None else held.state

    def set_timers(self, progress: Progress, held: KeyTimers, context: ProcessContext) -> None:
        """Set and cancel the timers that a function asked for. After the end of the input, no timer can be set."""
        if context._is_cancelling:
            held.cancel_all()
        for at, is_set in {} if progress.is_ending else context._asked.items():
            place = bisect_left(held.timers, at)
            is_known = place < len(held.timers) and held.timers[place] == at
            if is_set:
                self.set_timer(progress, held, at)
            elif is_known:
                del held.timers[place]
        if held.count > TIMERS_MAX:
            raise PlanError(
                f"key {context.key!r} has more than {TIMERS_MAX:,} timers",
                next_step="set fewer timers: one for the earliest time, and in on_timer the next; nothing of this epoch"
                " is committed",
            )

    def set_timer(self, progress: Progress, held: KeyTimers, at: int) -> None:
        """Set a timer for this time, unless the key has one."""
        place = bisect_left(held.timers, at)
        if place < len(held.timers) and held.timers[place] == at:
            return
        held.timers.insert(place, at)
        if at > progress.watermark:
            progress.timers.set_once(-(-at // self.step), progress.key)
