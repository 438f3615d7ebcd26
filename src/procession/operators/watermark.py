"""The watermark of a stage with several inputs: the minimum over those that have not ended.

Invariant: the progress of an input is the greatest time among its records. The watermark is the minimum over the
inputs, and never decreases. An input without records so far delays the watermark; an ended input does not. Every task
learns of every record that advances an input, and of every stream that begins or ends. So all tasks have the same
watermark at the same position, for any division into epochs. Uses `planner/inputs`; used by `operators/chain`. Pure.

State: under `i`, the open streams and the step that each input has reached.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from procession.operators.end_of_input import StreamChange
from procession.operators.operator import StateAccess
from procession.operators.stage_rows import Numbers
from procession.operators.watermark_timers import LOWEST, by_input
from procession.planner.inputs import Ids, InputChange, StageInputs, unknown

INPUTS = b"i"


class InputFrontier:
    """The step that each input has reached, and their minimum."""

    def __init__(self, steps: dict[int, int]) -> None:
        self.steps = dict(steps)
        self._counts = Counter(self.steps.values())
        self._heap = sorted(self._counts)

    @property
    def least(self) -> int:
        """The minimum over all inputs, or LOWEST if there is none."""
        while self._heap and not self._counts[self._heap[0]]:
            del self._counts[heappop(self._heap)]
        return self._heap[0] if self._heap else LOWEST

    def begin(self, number: int) -> None:
        if number not in self.steps:
            self._put(number, LOWEST)

    def end(self, number: int) -> None:
        if number in self.steps:
            self._counts[self.steps.pop(number)] -= 1

    def move(self, number: int, step: int) -> None:
        """Advance an input. An ended input, or a number that is not an input of the stage, is ignored."""
        if number in self.steps:
            self.end(number)
            self._put(number, step)

    def _put(self, number: int, step: int) -> None:
        self.steps[number] = step
        if step not in self._counts:
            heappush(self._heap, step)
        self._counts[step] += 1


class _WatermarkEvent(NamedTuple):
    """A change of the watermark at a row: an input that reaches a step, or inputs that begin or end before the row."""

    row: int
    input: int = 0
    step: int = 0
    change: InputChange | None = None


class Watermark:
    """The watermark of a stage in one task, during one epoch. `ends` are the positions where it may advance because an
    input has ended."""

    def __init__(self, inputs: StageInputs, states: StateAccess, changes: Sequence[StreamChange]) -> None:
        mark = states.take([INPUTS]).setdefault(INPUTS, unknown())
        steps = mark["steps"]
        self._frontier = InputFrontier({number: steps.get(number, LOWEST) for number in inputs.held(mark)})
        input_changes = inputs.follow(mark, changes)
        self._states = states
        self._begins = deque(change for change in input_changes if not change.is_end)
        self.ends = [change for change in input_changes if change.is_end]
        states.touch([INPUTS])

    def reached(self, ids: Ids, sequence: Numbers, before: int, steps: Numbers) -> Numbers:
        """Return the watermark before these rows and after each. `ids` are their inputs, and `steps` the steps to which
        each would advance its input."""
        input_changes = self._begun(int(sequence[-1]))
        frontier = self._frontier
        if not input_changes and len(frontier.steps) == 1 and (ids == ids[0]).all() and int(ids[0]) in frontier.steps:
            # There is only one input, as in most pipelines.
            frontier.move(int(ids[0]), max(frontier.least, int(steps.max())))
            return np.maximum.accumulate(np.concatenate(([before], steps)))
        events = [
            _WatermarkEvent(int(np.searchsorted(sequence, change.sequence)), change=change) for change in input_changes
        ]
        begun = {number for change in input_changes for number in change.begins}
        for number, rows in by_input(ids):
            if number not in frontier.steps and number not in begun:
                continue
            reached_steps = np.maximum.accumulate(np.concatenate(([frontier.steps.get(number, LOWEST)], steps[rows])))
            moved = np.flatnonzero(np.diff(reached_steps))
            events += [
                _WatermarkEvent(row, number, step)
                for row, step in zip(rows[moved].tolist(), reached_steps[moved + 1].tolist(), strict=True)
            ]
        found = np.full(len(steps) + 1, before, np.int64)
        events.sort(key=lambda event: (event.row, event.change is None))
        for event in events:
            if event.change is not None:
                self._take(event.change)
                continue
            frontier.move(event.input, event.step)
            found[event.row + 1] = max(before, frontier.least)
        reached: Numbers = np.maximum.accumulate(found)
        return reached

    def end(self, change: InputChange) -> int:
        """Handle the end of an input. Returns the minimum over the others."""
        for begun in self._begun(change.sequence):
            self._take(begun)
        self._take(change)
        return self._frontier.least

    def keep(self) -> None:
        """Store the progress of the inputs for the next epoch."""
        for begun in self._begin_rest():
            self._take(begun)
        known = self._states.take([INPUTS])
        known.setdefault(INPUTS, unknown())["steps"] = dict(self._frontier.steps)
        self._states.touch([INPUTS])

    def _take(self, change: InputChange) -> None:
        for number in change.begins:
            self._frontier.begin(number)
        for number in change.ends:
            self._frontier.end(number)

    def _begun(self, sequence: int) -> list[InputChange]:
        """Return the inputs that begin up to this position."""
        found = []
        while self._begins and self._begins[0].sequence <= sequence:
            found.append(self._begins.popleft())
        return found

    def _begin_rest(self) -> Iterable[InputChange]:
        while self._begins:
            yield self._begins.popleft()
