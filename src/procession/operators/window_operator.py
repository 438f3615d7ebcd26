"""The window operators: windows per key over a sequence of records, fired by a watermark or by their count.

Invariant: the watermark is the greatest event time among all records that reached the stage, of any key, minus the
lateness, in whole steps. With several inputs it is the minimum over these (`operators/watermark`). It advances before
the record that advances it is added. Every task learns of every step (`operators/partitioning`), so windows of quiet
keys fire, too. A result has the position of the record that advanced the watermark, then the end of its window, then
its key. `TimeWindowOperator` is a timed operator (`operators/timed`); both implement `operators/operator`. Pure.

State: under `k` and the key, its windows, each as [start, end, count, accumulator], followed by True if it has fired
and is kept for corrections. Count windows have one window per key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from procession.errors import PlanError
from procession.operators.aggregates import Aggregate
from procession.operators.column_aggregates import ColumnAdd, GroupedValues
from procession.operators.grouped_rows import KeyedRows
from procession.operators.operator import (
    OperatorRows,
    Place,
    Refuse,
    Result,
    StateAccess,
    StateSpec,
    Steps,
    UntimedOperator,
)
from procession.operators.stage_rows import Numbers, StageRows
from procession.operators.timed import KeyState, Progress, TimedOperator
from procession.operators.watermark_timers import LOWEST, greatest
from procession.operators.windows import LateWindowRule, Windows, late_record
from procession.planner.keys import PLAIN_KEYS, KeyCodec
from procession.planner.order_key import rows_of_results, take_in_order
from procession.planner.ownership import own
from procession.times import Unit, in_unit

Given = TypeVar("Given")


@dataclass(slots=True, eq=False)
class OpenWindow:
    """A window that has not fired, or that can still be corrected. Times are in nanoseconds."""

    start: int
    end: int
    count: int
    accumulator: Any
    has_fired: bool = False

    def as_list(self) -> list[Any]:
        """Return the form in which it is stored."""
        return [self.start, self.end, self.count, self.accumulator, *([True] if self.has_fired else [])]


@dataclass(slots=True)
class KeyWindows(KeyState):
    """The windows of one key, ordered by their ends."""

    windows: list[OpenWindow]

    @property
    def is_empty(self) -> bool:
        return not self.windows

    def stored(self) -> list[Any]:
        return [window.as_list() for window in self.windows]


@dataclass(frozen=True)
class WindowAggregate:
    """The common part of windows of time and windows of a count: adding records, and emitting results."""

    windows: Windows
    aggregate: Aggregate
    is_keyed: bool
    lateness: int = 0
    late: LateWindowRule = LateWindowRule.DROP
    early_records: int = 0
    keys: KeyCodec = PLAIN_KEYS
    unit: Unit = "s"
    """The unit of the starts and ends in results."""
    updates: int = 0
    """How long after its end a window can be corrected, in nanoseconds."""

    def spec(self, steps: Steps) -> StateSpec:
        return StateSpec(
            layout=f" of {self.windows.shape}",
            function=self.aggregate,
            steps=steps,
            fires_at_end=True,
            late_to_dead_letters=self.late is LateWindowRule.DEAD_LETTER,
            reads_records=self.aggregate.add_many is None,
            over=self.over,
            held="the open windows of",
        )

    @property
    def is_grouping(self) -> bool:
        """Whether records of a key and a window may be added at once: nothing is emitted for one of them."""
        return self.windows.is_tumbling and not self.early_records

    @property
    def over(self) -> ColumnAdd | None:
        """How values in columns are added at once. None if a late record may come between others of a window."""
        is_late_apart = self.late is not LateWindowRule.OLDEST
        return self.aggregate.over if self.is_grouping and is_late_apart else None

    def new_window(self, start: int, end: int) -> OpenWindow:
        return OpenWindow(start, end, 0, self.aggregate.create())

    def fill(self, window: OpenWindow, value: Any, number: int = 0) -> None:
        """Add a record to a window. `number` is the number of the window among the windows of the record. If the
        aggregate holds records, every window but the first gets its own copy."""
        if number and self.aggregate.is_holding:
            value = own(value)
        window.accumulator = self.aggregate.add(window.accumulator, value)
        window.count += 1

    def emit_early(self, progress: Progress, window: OpenWindow, number: int = 0) -> None:
        """Emit the result so far, if an early result is due."""
        if self.early_records and window.count % self.early_records == 0:
            progress.emit(self.result(progress.key, window, "early"), number)

    def result(self, key: bytes, window: OpenWindow, why: str) -> dict[str, Any]:
        try:
            value = own(self.aggregate.finish(window.accumulator))
        except Exception as error:
            raise PlanError(
                f"the `finish` of the aggregate of a window raised {type(error).__name__}: {error}",
                next_step="correct it and start again: nothing of this epoch is committed, and it runs again",
            ) from error
        named = {"key": self.keys.decode(key)} if self.is_keyed else {}
        corrected: dict[str, Any] = {"replaces": None} if self.updates else {}
        return (
            named
            | {
                "start": in_unit(window.start, self.unit),
                "end": in_unit(window.end, self.unit),
                "count": window.count,
                "value": value,
                "fired": why,
            }
            | corrected
        )


class CountWindowOperator(UntimedOperator, WindowAggregate):
    """Windows of a number of records, independent of their times."""

    @property
    def state(self) -> StateSpec:
        return self.spec(lambda times: np.full(len(times), LOWEST, np.int64))  # the watermark does not depend on time

    def add(self, states: StateAccess, rows: OperatorRows, refuse: Refuse) -> StageRows:
        progress, records = Progress(states), rows.records
        assert records.keys is not None
        keys = records.keys.to_pylist()
        names = [b"k" + key for key in keys]
        known = states.take(names)
        windows = {name: OpenWindow(*stored) for name in set(names) if (stored := known.get(name)) is not None}
        for row, (key, name, value) in enumerate(zip(keys, names, records.as_list(), strict=True)):
            progress.row, progress.key = row, key
            window = windows.get(name) or self.new_window(0, 0)
            try:
                self.fill(window, value)
            except Exception as error:  # user code may raise any exception
                refuse(row, error)
                continue
            if window.count == self.windows.count:
                windows.pop(name, None)
                progress.emit(self.result(key, window, "end"), 0)
            else:
                windows[name] = window
                self.emit_early(progress, window)
        for name in names:
            known.pop(name, None)
        known |= {name: window.as_list() for name, window in windows.items()}
        states.touch(names)
        return rows_of_results(progress.results)

    def end(self, states: StateAccess) -> Iterator[list[Result]]:
        for taken in take_in_order(states):
            windows = [(key, OpenWindow(*stored)) for key, stored in taken]
            yield [(0, (int(window.end), key, 0), key, self.result(key, window, "end")) for key, window in windows]


class TimeWindowOperator(WindowAggregate, TimedOperator[KeyWindows]):
    """Windows of time: tumbling, sliding, session and calendar windows."""

    @property
    def state(self) -> StateSpec:
        return self.spec(self.steps)

    @property
    def step_ns(self) -> int:
        return self.windows.step

    def steps(self, times: Numbers) -> Numbers:
        return np.floor_divide(times - self.lateness, self.step_ns)

    def load(self, stored: list[Any] | None) -> KeyWindows:
        return KeyWindows([] if stored is None else list(starmap(OpenWindow, stored)))

    def add(self, states: StateAccess, rows: OperatorRows, refuse: Refuse) -> StageRows:
        records, add_many = rows.records, self.aggregate.add_many if self.is_grouping else None
        values = GroupedValues.of(self.over, records) if add_many is None else None
        if add_many is None and values is None:
            return super().add(states, rows, refuse)
        progress = Progress(states)
        assert rows.times is not None
        assert rows.are_ticks is not None
        assert records.keys is not None
        keyed = KeyedRows(records.keys, rows.times, self.windows.size)
        for start, end, step, due in progress.timers.stretches(self.steps(rows.times), rows.reach or greatest):
            progress.step, progress.watermark = step, step * self.step_ns
            self._fire(states, progress, start, due)
            added = np.flatnonzero(~rows.are_ticks[start:end]) + start
            are_late = keyed.ends[added] <= progress.watermark
            if are_late.any():
                keys, times = keyed.listed
                self._add(states, progress, added[are_late].tolist(), keys, records.as_list(), times, refuse)
                added = added[~are_late]
            if values is None:
                assert add_many is not None
                for window, number in self._grouped(states, progress, list(keyed.groups(added))):
                    window.accumulator = add_many(window.accumulator, number)
                    window.count += number
            else:
                for window, some in self._grouped(states, progress, list(keyed.rows_of_groups(added))):
                    window.accumulator, number = values.add(window.accumulator, some, refuse)
                    window.count += number
        return rows_of_results(progress.results)

    def _grouped(
        self, states: StateAccess, progress: Progress, groups: Sequence[tuple[bytes, int, Given]]
    ) -> Iterator[tuple[OpenWindow, Given]]:
        """The open window of each of these groups, to which its records are added: (key, end, what is added)."""
        names = [b"k" + key for key, _, _ in groups]
        known = states.take(names)
        for name, (key, end, given) in zip(names, groups, strict=True):
            held = known.get(name)
            if held is None or type(held) is list:  # it is not in memory as an object
                held = known[name] = self.load(held)
            for window in held.windows:
                if window.end == end:
                    break
            else:
                window = self.new_window(self.windows.start(end), end)
                held.windows.append(window)
                held.windows.sort(key=_end)
                progress.timers.set(self._due(end), key)
            yield window, given
        states.touch(names)
        progress.timers.keep()

    def add_record(self, progress: Progress, value: Any, time: int, held: KeyWindows) -> None:
        """Add a record to its windows, in the order of their ends."""
        windows, opened = self.windows, held.windows
        watermark = progress.watermark
        ends = windows.ends(time)
        is_late = ends[-1] <= watermark and not (windows.is_session and self._near(time, opened))
        corrected = [end for end in ends if end <= watermark < end + self.updates]
        for number, end in enumerate(corrected):
            self._correct(progress, value, end, opened, number)
        if not is_late:
            self._add_at(progress, value, time, ends, watermark, opened, len(corrected))
            return
        if self.late is LateWindowRule.OLDEST:
            self._add_at(progress, value, watermark, windows.ends(watermark), watermark, opened)
        elif self.late is LateWindowRule.FIRE:
            for number, end in enumerate(ends):
                window = self.new_window(windows.start(end), end)
                self.fill(window, value, number)
                progress.emit(self.result(progress.key, window, "late"), number)
        raise late_record(time, watermark)

    def _add_at(
        self,
        progress: Progress,
        value: Any,
        time: int,
        ends: Iterable[int],
        watermark: int,
        opened: list[OpenWindow],
        first: int = 0,
    ) -> None:
        """Add a record to its windows that have not fired, as if it had this time. `first` windows of the record were
        corrected before."""
        if self.windows.is_session:
            self._add_to_session(progress, value, time, opened)
            return
        by_end = {window.end: window for window in opened}
        for number, end in enumerate([end for end in ends if end > watermark], first):
            window = by_end.get(end) or self.new_window(self.windows.start(end), end)
            self.fill(window, value, number)
            if end not in by_end:
                opened.append(window)
                progress.timers.set(self._due(end), progress.key)
            self.emit_early(progress, window, number)
        if len(opened) > 1:
            opened.sort(key=_end)

    def _correct(self, progress: Progress, value: Any, end: int, opened: list[OpenWindow], number: int) -> None:
        """Add a record to a window that has fired and can be corrected, and emit its result again."""
        window = next((window for window in opened if window.end == end), None)
        if window is None:  # no record was in the window, so it has not fired
            window = OpenWindow(self.windows.start(end), end, 0, self.aggregate.create(), has_fired=True)
            self.fill(window, value, number)
            opened.append(window)
            opened.sort(key=_end)
            progress.timers.set(self._due(end + self.updates), progress.key)
            before = None
        else:
            earlier = self.result(progress.key, window, "")
            before = {"count": earlier["count"], "value": earlier["value"]}
            self.fill(window, value, number)
        progress.emit(self.result(progress.key, window, "update") | {"replaces": before}, number)

    def _near(self, time: int, opened: list[OpenWindow]) -> list[OpenWindow]:
        """Return the sessions that a record of this time belongs to."""
        return [window for window in opened if time < window.end and time + self.windows.size > window.start]

    def _add_to_session(self, progress: Progress, value: Any, time: int, opened: list[OpenWindow]) -> None:
        """Add a record to its session. A record that closes the gap between sessions joins them."""
        gap = self.windows.size
        near = self._near(time, opened)
        if not near:
            window = self.new_window(time, time + gap)
            self.fill(window, value)
            progress.timers.set(self._due(window.end), progress.key)
            opened.append(window)
            opened.sort(key=_end)
        else:
            window = near[0]
            combine = self.aggregate.combine
            for other in near[1:]:
                assert combine is not None
                window.accumulator = combine(window.accumulator, other.accumulator)
                window.end, window.count = other.end, window.count + other.count
            window.start, window.end = min(window.start, time), max(window.end, time + gap)
            self.fill(window, value)
            for other in near[1:]:
                opened.remove(other)
        self.emit_early(progress, window)

    def _due(self, end: int) -> int:
        """Return the first step at which a window with this end has to fire."""
        return -(-end // self.windows.step)

    def take_due(self, progress: Progress, held: KeyWindows) -> Iterable[tuple[Place, Any]]:
        watermark = progress.watermark
        due = [window for window in held.windows if window.end <= watermark and not window.has_fired]
        # A window that can be corrected is kept after it has fired, except at the end of the input.
        kept = 0 if progress.is_ending else self.updates
        held.windows = [window for window in held.windows if window.end + kept > watermark]
        for window in held.windows if kept else ():
            if window.end <= watermark and not window.has_fired:
                window.has_fired = True
                progress.timers.set(self._due(window.end + kept), progress.key)
        if self.windows.is_session:
            for window in held.windows:  # the session has grown since its timer was set
                progress.timers.set(self._due(window.end), progress.key)
        return [((window.end, progress.key, 0), window) for window in due]

    def result_of(self, key: bytes, due: Any) -> Any:
        return self.result(key, due, "end")


_end = attrgetter("end")


def window_operator(windows: Windows, *options: Any, **named: Any) -> CountWindowOperator | TimeWindowOperator:
    """Return the operator for windows of this type. The further arguments are the fields of `WindowAggregate`."""
    kind = CountWindowOperator if windows.count else TimeWindowOperator
    return kind(windows, *options, **named)
