"""The watermark of a stage with several inputs: the minimum over those that have not ended.

The one rule: each input has come as far as the greatest time among its records; the watermark is the least of these,
and never goes back. An input that has sent nothing yet holds it back; one that has ended no longer does. Every task
learns of every record that takes an input a step further, and of every stream that begins or ends, so all come to the
same watermark at the same place, wherever epochs are cut. Before it `planner/inputs`; after it
`operators/watermark_timers`. Pure.

What is kept: under `i`, the streams that are open, and the step that each input has come to.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

import numpy as np

from procession.operators.end_of_input import Change
from procession.operators.keyed import States
from procession.operators.stage_rows import Numbers
from procession.operators.watermark_timers import LOWEST, by_input
from procession.planner.inputs import Ids, Inputs, Turn, unknown

INPUTS = b"i"


class Slots:
    """The step that each input has come to, and the least of them."""

    def __init__(self, steps: dict[int, int]) -> None:
        self.steps = dict(steps)
        self._counts = Counter(self.steps.values())
        self._heap = sorted(self._counts)

    @property
    def least(self) -> int:
        """LOWEST if there is no input."""
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
        """An input that has ended, or is none of ours, moves nothing."""
        if number in self.steps:
            self.end(number)
            self._put(number, step)

    def _put(self, number: int, step: int) -> None:
        self.steps[number] = step
        if step not in self._counts:
            heappush(self._heap, step)
        self._counts[step] += 1


class Watermark:
    """The watermark of one task's stage, over one epoch. `ends` are the places where it may move because an input has
    ended."""

    def __init__(self, inputs: Inputs, states: States, changes: Sequence[Change]) -> None:
        mark = states.take([INPUTS]).setdefault(INPUTS, unknown())
        steps = mark["steps"]
        self._slots = Slots({number: steps.get(number, LOWEST) for number in inputs.held(mark)})
        turns = inputs.follow(mark, changes)
        self._states = states
        self._begins = deque(turn for turn in turns if not turn.is_end)
        self.ends = [turn for turn in turns if turn.is_end]
        states.touch([INPUTS])

    def reached(self, ids: Ids, sequence: Numbers, before: int, steps: Numbers) -> Numbers:
        """The watermark before these rows and behind each: they are of these inputs, and each alone would lead its
        input to such a step."""
        turns = self._begun(int(sequence[-1]))
        slots = self._slots
        if not turns and len(slots.steps) == 1 and (ids == ids[0]).all() and int(ids[0]) in slots.steps:
            # One file alone, as nearly always.
            slots.move(int(ids[0]), max(slots.least, int(steps.max())))
            return np.maximum.accumulate(np.concatenate(([before], steps)))
        events: list[tuple[int, int, int, Turn | None]] = [
            (int(np.searchsorted(sequence, turn.sequence)), 0, 0, turn) for turn in turns
        ]
        begun = {number for turn in turns for number in turn.begins}
        for number, rows in by_input(ids):
            if number not in slots.steps and number not in begun:
                continue
            own = np.maximum.accumulate(np.concatenate(([slots.steps.get(number, LOWEST)], steps[rows])))
            moved = np.flatnonzero(np.diff(own))
            events += [
                (row, number, step, None)
                for row, step in zip(rows[moved].tolist(), own[moved + 1].tolist(), strict=True)
            ]
        found = np.full(len(steps) + 1, before, np.int64)
        events.sort(key=lambda event: (event[0], event[3] is None))
        for row, number, step, turn in events:
            if turn is not None:
                self._take(turn)
                continue
            slots.move(number, step)
            found[row + 1] = max(before, slots.least)
        reached: Numbers = np.maximum.accumulate(found)
        return reached

    def end(self, turn: Turn) -> int:
        """An input has ended: the step that the rest have come to."""
        for begun in self._begun(turn.sequence):
            self._take(begun)
        self._take(turn)
        return self._slots.least

    def keep(self) -> None:
        """Remember it for the next epoch."""
        for begun in self._begin_rest():
            self._take(begun)
        known = self._states.take([INPUTS])
        known.setdefault(INPUTS, unknown())["steps"] = dict(self._slots.steps)
        self._states.touch([INPUTS])

    def _take(self, turn: Turn) -> None:
        for number in turn.begins:
            self._slots.begin(number)
        for number in turn.ends:
            self._slots.end(number)

    def _begun(self, sequence: int) -> list[Turn]:
        """What begins up to this place."""
        found = []
        while self._begins and self._begins[0].sequence <= sequence:
            found.append(self._begins.popleft())
        return found

    def _begin_rest(self) -> Iterable[Turn]:
        while self._begins:
            yield self._begins.popleft()
