"""Timed operators: operators that a watermark moves, such as time windows, stream joins and states that expire.

Invariant: rows are divided into stretches in which the watermark does not move. At the start of a stretch, due results
fire; then the rows of the stretch are added. So the output depends neither on the epochs nor on the number of tasks.
Each kind of timed operator defines how a record changes the state of its key, and when results are due; this module
does the rest. Implements `operators/operator`; uses `operators/watermark_timers`. Pure.

State: under `k` and the key, the state of the key; the rest is in `operators/watermark_timers`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from procession.operators.operator import (
    OperatorRows,
    Place,
    Refuse,
    Result,
    StateAccess,
    StateObject,
    StateSpec,
)
from procession.operators.stage_rows import StageRows
from procession.operators.watermark_timers import WatermarkTimers, greatest
from procession.planner.order_key import AFTER, rank_of, rows_of_results

Held = TypeVar("Held", bound="KeyState")

NOTHING = object()
"""The value of a result that is not emitted."""


class KeyState(StateObject):
    """The state of a timed operator for one key."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether the key needs no stored state."""


class Progress:
    """The progress of one call of a timed operator: its timers, the current record, and the results so far."""

    def __init__(self, states: StateAccess) -> None:
        self.timers = WatermarkTimers(states)
        self.results: list[Result] = []
        self.step = 0
        """The step of the watermark."""
        self.watermark = 0
        """The watermark in nanoseconds of event time."""
        self.row = 0
        self.key = b""
        self.counts = states.counts
        self.is_ending = False
        """Whether everything fires because the input has ended."""

    def emit(self, value: Any, number: int) -> None:
        """Emit a result of the current record. It comes after all results that the record's time has fired."""
        self.results.append((self.row, (AFTER, b"", number), self.key, value))


class TimedOperator(ABC, Generic[Held]):
    """The common part of all timed operators. `Held` is the state of one key."""

    stops_on: ClassVar[tuple[type[Exception], ...]] = ()
    """Errors of `add_record` that stop the pipeline, instead of being an error of the record."""

    @property
    @abstractmethod
    def state(self) -> StateSpec: ...

    @property
    @abstractmethod
    def step_ns(self) -> int:
        """Length of the watermark's steps, in nanoseconds."""

    @abstractmethod
    def load(self, stored: list[Any] | None) -> Held:
        """Load the state of a key from its stored form. None: the key has no state."""

    @abstractmethod
    def add_record(self, progress: Progress, value: Any, time: int, held: Held) -> None:
        """Add a record to the state of its key. Raises LateRecord for a late record, after all other work."""

    @abstractmethod
    def take_due(self, progress: Progress, held: Held) -> Iterable[tuple[Place, Any]]:
        """Remove the results that are due at this step from the state of a key. Yields each with its place in the
        order."""

    @abstractmethod
    def result_of(self, key: bytes, due: Any) -> Any:
        """Return the result for something that was due, or NOTHING."""

    def add(self, states: StateAccess, rows: OperatorRows, refuse: Refuse) -> StageRows:
        progress = Progress(states)
        steps, step_ns, records = self.state.steps, self.step_ns, rows.records
        assert steps is not None
        assert rows.times is not None
        assert rows.are_ticks is not None
        assert records.keys is not None
        keys, values, times = records.keys.to_pylist(), records.as_list(), rows.times.tolist()
        are_ticks = rows.are_ticks.tolist()
        for start, end, step, due in progress.timers.stretches(steps(rows.times), rows.reach or greatest):
            progress.step, progress.watermark = step, step * step_ns
            self._fire(states, progress, start, due)
            added = [row for row in range(start, end) if not are_ticks[row]]
            self._add(states, progress, added, keys, values, times, refuse)
        return rows_of_results(progress.results)

    def _add(
        self,
        states: StateAccess,
        progress: Progress,
        rows: Sequence[int],
        keys: Sequence[bytes],
        values: Sequence[Any],
        times: Sequence[int],
        refuse: Refuse,
    ) -> None:
        """Add the rows of a stretch."""
        names = [b"k" + keys[row] for row in rows]
        known = states.take(names)
        add_record = self.add_record
        for row, name in zip(rows, names, strict=True):
            held = known.get(name)
            if held is None or type(held) is list:  # it is not in memory as an object
                held = known[name] = self.load(held)
            progress.row, progress.key = row, keys[row]
            try:
                add_record(progress, values[row], times[row], held)
            except self.stops_on:
                raise
            except Exception as error:  # user code may raise any exception
                refuse(row, error)
            if held.is_empty:
                del known[name]
        states.touch(names)
        progress.timers.keep()

    def _fire(self, states: StateAccess, progress: Progress, row: int, keys: Sequence[bytes]) -> None:
        """Fire the due results of these keys at this row, after the watermark has advanced."""
        if not keys:
            return
        names = [b"k" + key for key in keys]
        known = states.take(names)
        due: list[tuple[Place, bytes, Any]] = []
        for key, name in zip(keys, names, strict=True):
            held = known.get(name)
            if held is None:
                continue  # it was removed before
            if type(held) is list:
                held = known[name] = self.load(held)
            progress.key = key
            due += [(place, key, due_item) for place, due_item in self.take_due(progress, held)]
            if held.is_empty:
                del known[name]
        states.touch(names)
        progress.timers.keep()
        for place, key, due_item in sorted(due, key=_by_place):
            if (value := self.result_of(key, due_item)) is not NOTHING:
                progress.results.append((row, place, key, value))

    def fire(self, states: StateAccess, step: int) -> Iterator[list[Result]]:
        progress = Progress(states)
        return self._fired(states, progress, progress.timers.advance_to(step))

    def end(self, states: StateAccess) -> Iterator[list[Result]]:
        progress = Progress(states)
        progress.is_ending = True
        return self._fired(states, progress, progress.timers.drain())

    def _fired(
        self, states: StateAccess, progress: Progress, due: Iterator[tuple[int, list[bytes]]]
    ) -> Iterator[list[Result]]:
        """Yield the results that fire without a record, step by step."""
        for step, keys in due:
            progress.step, progress.watermark = step, step * self.step_ns
            self._fire(states, progress, 0, keys)
            results, progress.results = progress.results, []
            yield results


def _by_place(due: tuple[Place, bytes, Any]) -> tuple[int, tuple[bytes, int], int]:
    (time, key, number), _, _ = due
    return time, rank_of(key), number
