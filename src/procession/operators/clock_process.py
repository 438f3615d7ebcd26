"""The process operator with timers by the clock: ticks of a clock, which are records of the log, fire them.

Invariant: ticks have a position in the sequence, and only ticks move the watermark. So timers fire at the same position
when an epoch is run again, at any parallelism. A timer counts from the next tick after the record that sets it. So it
never fires early, even if the clock was silent for long. A timed operator (`operators/timed`). Pure.

State: that of `operators/process`, and the timers that wait for the next tick. Each is a pair of the step at which it
was set and its length in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from procession.operators.operator import Place, StateSpec
from procession.operators.process import KeyTimers, ProcessContext, ProcessOperator
from procession.operators.stream_join import RIGHT
from procession.operators.timed import Progress
from procession.times import in_unit

TICK_STEP_NS = 1_000_000
"""Minimum distance of two ticks that are distinguished, in nanoseconds."""
BEFORE_CLOCK_S = -(2**31)
"""The time of records: before every tick, so that they do not move the watermark."""


def before_clock(_: Any) -> int:
    """Return the time of a record, which is before every tick."""
    return BEFORE_CLOCK_S


def tick_key(_: Any) -> str:
    """Return the key of ticks, for which no state is kept."""
    return ""


def tick_time(tick: Any) -> Any:
    """Return the time of a tick, which is the value of its record."""
    return tick


@dataclass(slots=True)
class ClockTimers(KeyTimers):
    """The state of a key, its timers, and the timers that wait for the next tick."""

    waiting: list[list[int]]

    @property
    def is_empty(self) -> bool:
        return self.state is None and not self.timers and not self.waiting

    @property
    def count(self) -> int:
        return len(self.timers) + len(self.waiting)

    def cancel_all(self) -> None:
        self.timers.clear()
        self.waiting.clear()

    def stored(self) -> list[Any]:
        return [self.state, self.timers, self.waiting]


@dataclass(frozen=True)
class ClockProcess(ProcessOperator):
    """A keyed stage with timers by the clock. Its records are marked with their side: ticks are on the right."""

    @property
    def state(self) -> StateSpec:
        return replace(super().state, layout=" with timers by the clock", is_by_clock=True)

    def load(self, stored: list[Any] | None) -> ClockTimers:
        return ClockTimers(None, [], []) if stored is None else ClockTimers(*stored)

    def add_record(self, progress: Progress, value: Any, time: int, held: KeyTimers) -> None:
        side, record = value
        if side != RIGHT:
            self.call(progress, record, self.context_of(progress, max(0, progress.watermark)), held)

    def context_of(self, progress: Progress, time: int, after: int | None = None) -> ProcessContext:
        key = self.keys.decode(progress.key)
        return ProcessContext(key, in_unit(time, self.unit), self.unit, after, _delays=[], _counts=progress.counts)

    def set_timers(self, progress: Progress, held: KeyTimers, context: ProcessContext) -> None:
        assert isinstance(held, ClockTimers)
        is_record = context._after is None
        if context._is_cancelling:
            held.cancel_all()
            context._is_cancelling = False
        for delay in [] if progress.is_ending else context._delays or []:
            if is_record:
                held.waiting.append([progress.step, delay])
                progress.timers.set_once(progress.step + 1, progress.key)
            else:
                self.set_timer(progress, held, progress.watermark + delay)
        super().set_timers(progress, held, context)

    def take_due(self, progress: Progress, held: KeyTimers) -> Iterator[tuple[Place, Any]]:
        """Start the timers that have waited for this tick, and fire the timers that are due."""
        assert isinstance(held, ClockTimers)
        for step, delay in held.waiting:
            if step < progress.step:
                self.set_timer(progress, held, progress.watermark + delay)
        held.waiting = [pair for pair in held.waiting if pair[0] >= progress.step]
        yield from super().take_due(progress, held)
