"""Timed operators: stages whose results depend on a watermark. Windows, stream joins and states that expire.

Rows are cut into stretches over which the watermark stands still. At the start of each stretch what is due fires, then
the rows of the stretch are added. So neither the epoch cuts nor the number of tasks show in the output. Used by
`operators/chain`; uses `operators/watermark_timers`. Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from procession.operators.keyed import Refuse, States
from procession.operators.stage_rows import Numbers
from procession.operators.watermark_timers import Alarms, Reach, greatest
from procession.planner.order_key import Result


class TimedRun(Protocol):
    """Rows on their way through a timed operator, in one task."""

    alarms: Alarms
    results: list[Result]

    def fire(self, row: int, step: int, keys: Sequence[bytes]) -> None:
        """The watermark has come to this step, at this row, and these keys may have something that is due."""

    def add(
        self,
        rows: Sequence[int],
        keys: Sequence[bytes],
        values: Sequence[Any],
        times: Numbers,
        step: int,
        refuse: Refuse,
    ) -> None:
        """Add these rows, while the watermark stands at this step. A late record is refused with `LateRecord`."""


class Timed(ABC):
    """What a stage does that a watermark moves."""

    @property
    @abstractmethod
    def shape(self) -> str:
        """What its states are cut by: they are of no use to a stage of another shape."""

    @property
    @abstractmethod
    def sets_late_aside(self) -> bool:
        """Whether late records are dead letters."""

    @abstractmethod
    def steps(self, times: Numbers) -> Numbers:
        """The step of the watermark that each time alone would lead to."""

    @abstractmethod
    def begin(self, states: States) -> TimedRun:
        """The operator with the states of one task."""

    def run(
        self,
        states: States,
        keys: Sequence[bytes],
        values: Sequence[Any],
        times: Numbers,
        is_tick: Any,
        refuse: Refuse,
        reach: Reach = greatest,
    ) -> list[Result]:
        """What comes out of these rows, in order. `is_tick` says which of them bring nothing but their time."""
        run = self.begin(states)
        for start, end, step, due in run.alarms.stretches(self.steps(times), reach):
            run.fire(start, step, due)
            run.add([row for row in range(start, end) if not is_tick[row]], keys, values, times, step, refuse)
        return run.results

    def go_on(self, states: States, step: int) -> Iterator[list[Result]]:
        """What comes out because the watermark goes on to this step, with no record."""
        run = self.begin(states)
        return _fired(run, run.alarms.run_to(step))

    def end(self, states: States) -> Iterator[list[Result]]:
        """What is held fires, because nothing will come any more; in order, and a bounded number at a time."""
        run = self.begin(states)
        return _fired(run, run.alarms.run_out())


def _fired(run: TimedRun, due: Iterator[tuple[int, list[bytes]]]) -> Iterator[list[Result]]:
    """What fires with no record, of (step, the keys that are due there)."""
    for step, keys in due:
        run.fire(0, step, keys)
        results, run.results = run.results, []
        yield results
