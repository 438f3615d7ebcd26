"""The window operator: windows by key over a sequence of records, fired by a watermark.

The one rule: the watermark is the greatest event time among all records that have come to the stage, of any key, less
the lateness, in whole steps. With several inputs it is the minimum over these (`operators/watermark`). It advances
before the record that advances it is added. Every task learns of every step (`with_ticks`), so windows of quiet keys
fire too. A result has the place of the record that advanced the watermark, then its window's end, then its key. So
neither the epoch cuts nor the number of tasks show in the output. Used by `operators/chain`. Pure.

State: under `k` and the key its open windows; the rest is in `operators/watermark_timers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from procession.errors import PlanError
from procession.operators.aggregates import Aggregate
from procession.operators.chain_rows import Rows
from procession.operators.keyed import Refuse, States
from procession.operators.stage_rows import Flow, Numbers
from procession.operators.timed import Timed
from procession.operators.value_codec import ValueCodec
from procession.operators.watermark import Watermark
from procession.operators.watermark_timers import LOWEST, Alarms, Reach, greatest
from procession.operators.windows import Late, Windows, late_record
from procession.planner.keys import PLAIN_KEYS, KeyCodec
from procession.planner.order_key import AFTER, Result, flow_of, rank_of, taken_in_order
from procession.planner.ownership import own
from procession.times import Unit, in_unit

TICK = 3
"""The form of a row that brings nothing but its time: beside those of `operators/value_codec`."""

START, END, COUNT, HELD = range(4)
"""The places in the state of a window: a list, because that is how states are kept on disk."""


@dataclass(frozen=True)
class Windowing(Timed):
    """What a window stage does."""

    windows: Windows
    aggregate: Aggregate
    is_keyed: bool
    lateness: int = 0
    late: Late = Late.DROP
    early_records: int = 0
    keys: KeyCodec = PLAIN_KEYS
    unit: Unit = "s"
    """What the starts and ends of windows are told in."""

    @property
    def shape(self) -> str:
        """What its states are cut by: they are of no use to windows of another shape."""
        return self.windows.shape

    @property
    def sets_late_aside(self) -> bool:
        return self.late is Late.DEAD_LETTER

    def steps(self, times: Numbers) -> Numbers:
        """The step of the watermark that each time alone would lead to."""
        if self.windows.count:
            return np.full(len(times), LOWEST, np.int64)  # no time moves it
        return np.floor_divide(times - self.lateness, self.windows.step)

    def begin(self, states: States) -> _Run:
        return _Run(self, states)

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
        if self.windows.count:
            return _Counting(self, states).run(keys, values, refuse)
        return super().run(states, keys, values, times, is_tick, refuse, reach)

    def go_on(self, states: States, step: int) -> Iterator[list[Result]]:
        return iter(()) if self.windows.count else super().go_on(states, step)

    def end(self, states: States) -> Iterator[list[Result]]:
        return _Counting(self, states).end() if self.windows.count else super().end(states)


class _Results:
    """What both ways of filling windows have in common."""

    def __init__(self, stage: Windowing, states: States) -> None:
        self.stage = stage
        self.windows = stage.windows
        self.states = states
        self.alarms = Alarms(states)
        self.results: list[Result] = []

    def _add(self, window: list[Any], value: Any) -> None:
        window[HELD] = self.stage.aggregate.add(window[HELD], value)
        window[COUNT] += 1

    def _own(self, value: Any, number: int) -> Any:
        """The record for this window: every window but the first that holds records has a copy of its own."""
        return own(value) if number and self.stage.aggregate.is_holding else value

    def _early(self, row: int, key: bytes, window: list[Any], number: int) -> None:
        if self.stage.early_records and window[COUNT] % self.stage.early_records == 0:
            self._let_out(row, key, window, "early", number)

    def _let_out(self, row: int, key: bytes, window: list[Any], why: str, number: int) -> None:
        self.results.append((row, (AFTER, b"", number), key, self._result(key, window, why)))

    def _result(self, key: bytes, window: list[Any], why: str) -> dict[str, Any]:
        start, end, count, held = window
        try:
            value = own(self.stage.aggregate.finish(held))
        except Exception as error:
            raise PlanError(
                f"the `finish` of the aggregate of a window raised {type(error).__name__}: {error}",
                next_step="mend it; nothing of this epoch was committed, and it is run again when you start again",
            ) from error
        unit = self.stage.unit
        told = {"key": self.stage.keys.decode(key)} if self.stage.is_keyed else {}
        return told | {
            "start": in_unit(start, unit),
            "end": in_unit(end, unit),
            "count": count,
            "value": value,
            "fired": why,
        }


class _Counting(_Results):
    """Windows of so many records."""

    def run(self, keys: Sequence[bytes], values: Sequence[Any], refuse: Refuse) -> list[Result]:
        names = [b"k" + key for key in keys]
        known = self.states.take(names)
        for row, (key, name, value) in enumerate(zip(keys, names, values, strict=True)):
            window = known.get(name) or [0, 0, 0, self.stage.aggregate.create()]
            try:
                self._add(window, value)
            except Exception as error:  # the user's code may raise anything; the record decides who acts
                refuse(row, error)
                continue
            if window[COUNT] == self.windows.count:
                known.pop(name, None)
                self._let_out(row, key, window, "end", 0)
            else:
                known[name] = window
                self._early(row, key, window, 0)
        self.states.touch(names)
        return self.results

    def end(self) -> Iterator[list[Result]]:
        for held in taken_in_order(self.states):
            yield [(0, (int(window[END]), key, 0), key, self._result(key, window, "end")) for key, window in held]


class _Run(_Results):
    """Windows of time."""

    def add(
        self,
        rows: Sequence[int],
        keys: Sequence[bytes],
        values: Sequence[Any],
        times: Numbers,
        step: int,
        refuse: Refuse,
    ) -> None:
        watermark = step * self.windows.step
        names = {row: b"k" + keys[row] for row in rows}
        known = self.states.take(list(names.values()))
        for row in rows:
            opened = known.get(names[row]) or []
            try:
                is_late = self._put(row, keys[row], values[row], int(times[row]), watermark, opened)
            except Exception as error:  # the user's code may raise anything; the record decides who acts
                refuse(row, error)
                is_late = False
            if is_late:
                refuse(row, late_record(int(times[row]), watermark))
            if opened:
                known[names[row]] = opened
        self.states.touch(names.values())
        self.alarms.keep()

    def _put(self, row: int, key: bytes, value: Any, time: int, watermark: int, opened: list[Any]) -> bool:
        """Put a record into its windows: the earliest end first. Says
        whether it is late."""
        ends = [end for end in self.windows.ends(time) if end > watermark]
        if not ends and self.windows.is_session:
            ends = [window[END] for window in self._near(time, opened)]
        is_late = not ends
        if is_late and self.stage.late is Late.FIRE:
            for number, end in enumerate(self.windows.ends(time)):
                window = [end - self.windows.size, end, 0, self.stage.aggregate.create()]
                self._add(window, self._own(value, number))
                self._let_out(row, key, window, "late", number)
        if is_late and self.stage.late is not Late.OLDEST:
            return True
        if is_late:
            time = watermark
        if self.windows.is_session:
            self._put_in_session(row, key, value, time, opened)
            return is_late
        by_end = {window[END]: window for window in opened}
        for number, end in enumerate(end for end in self.windows.ends(time) if end > watermark):
            window = by_end.get(end) or [end - self.windows.size, end, 0, self.stage.aggregate.create()]
            self._add(window, self._own(value, number))
            if end not in by_end:
                opened.append(window)
                self.alarms.set(self._due(end), key)
            self._early(row, key, window, number)
        opened.sort(key=lambda window: window[END])
        return is_late

    def _near(self, time: int, opened: list[Any]) -> list[Any]:
        """The sessions that a record of this time belongs to."""
        return [window for window in opened if time < window[END] and time + self.windows.size > window[START]]

    def _put_in_session(self, row: int, key: bytes, value: Any, time: int, opened: list[Any]) -> None:
        gap = self.windows.size
        near = self._near(time, opened)
        if not near:
            window = [time, time + gap, 0, self.stage.aggregate.create()]
            self._add(window, value)
            self.alarms.set(self._due(window[END]), key)
        else:
            window = near[0]
            combine = self.stage.aggregate.combine
            for other in near[1:]:
                assert combine is not None
                window[HELD] = combine(window[HELD], other[HELD])
                window[END], window[COUNT] = other[END], window[COUNT] + other[COUNT]
            window[START], window[END] = min(window[START], time), max(window[END], time + gap)
            self._add(window, value)
        ends = {other[END] for other in near}
        opened[:] = sorted([*(one for one in opened if one[END] not in ends), window], key=lambda one: int(one[END]))
        self._early(row, key, window, 0)

    def _due(self, end: int) -> int:
        return -(-end // self.windows.step)

    def fire(self, row: int, step: int, keys: Sequence[bytes]) -> None:
        """The watermark has come to this step, at this row, and these keys may have windows to fire."""
        if not keys:
            return
        known = self.states.take([b"k" + key for key in keys])
        watermark = step * self.windows.step
        fired = []
        for key in keys:
            opened = known.get(b"k" + key, [])
            fired += [(key, window) for window in opened if window[END] <= watermark]
            kept = [window for window in opened if window[END] > watermark]
            if kept:
                known[b"k" + key] = kept
                if self.windows.is_session:
                    # It has grown since it was armed.
                    for window in kept:
                        self.alarms.set(self._due(window[END]), key)
            else:
                known.pop(b"k" + key, None)
        self.states.touch([b"k" + key for key in keys])
        for key, window in sorted(fired, key=lambda due: (due[1][END], rank_of(due[0]))):
            self.results.append((row, (int(window[END]), key, 0), key, self._result(key, window, "end")))
        self.alarms.keep()


def timed_flow(
    rows: Rows,
    windowing: Timed,
    states: States,
    refuse: Callable[[Flow, int, Exception], None],
    watermark: Watermark | None,
    codec: ValueCodec,
) -> Flow:
    """What comes out of a stage that a watermark moves, of rows that came over its exchange. `watermark` is that of a
    stage with several inputs."""
    reach = greatest
    if watermark is not None:
        assert rows.inputs is not None
        reach = partial(watermark.reached, rows.inputs, rows.order[0])
    assert rows.forms is not None
    assert rows.keys is not None
    assert rows.times is not None
    forms = rows.forms.tolist()
    payload = rows.payload.to_pylist()
    read = codec.read
    values = [None if form == TICK else read[form](data) for form, data in zip(forms, payload, strict=True)]
    before = Flow(values, keys=rows.keys)
    keys = rows.keys.to_pylist()
    results = windowing.run(states, keys, values, rows.times, rows.forms == TICK, partial(refuse, before), reach)
    return flow_of(results)


def with_ticks(
    rows: pa.RecordBatch, parts: Iterator[tuple[int, Numbers]], ticks: Numbers, buckets: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each bucket, and among them, in order, those of other buckets that move the watermark, as ticks."""
    own_rows = dict(parts)
    for bucket in range(buckets):
        mine = own_rows.get(bucket, np.empty(0, np.int64))
        others = np.setdiff1d(ticks, mine, assume_unique=True)
        if not len(others):
            if len(mine):
                yield bucket, rows.take(pa.array(mine))
            continue
        both = np.sort(np.concatenate((mine, others)))
        is_tick = pa.array(np.isin(both, others))
        taken = rows.take(pa.array(both))
        blank = {"payload": pa.scalar(b"", pa.binary()), "form": pa.scalar(TICK, pa.uint8())}
        columns = [
            pc.if_else(is_tick, blank[name], column) if name in blank else column
            for name, column in zip(taken.schema.names, taken.columns, strict=True)
        ]
        yield bucket, pa.record_batch(columns, names=taken.schema.names)
