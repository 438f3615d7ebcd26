"""Watermark timers: how far a watermark has come, and which keys are due when it advances.

The one rule: an epoch costs what it touches. A list of keys is written in one epoch and not touched again until the
watermark reaches its step. Used by `operators/window_operator` and `operators/stream_join`, which set timers for what
they hold. Pure.

State: under `w` the watermark, in steps, and which lists there are; under `t`, a step and a serial number, the keys of
one list. Stages that set timers keep what they hold of a key under `k` and the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from procession.operators.keyed import States
from procession.operators.stage_rows import Numbers

LOWEST = -(2**62)
"""Below all watermarks."""

WATERMARK = b"w"
LISTS_MAX = 64
"""So many lists of keys there are for one step before they are put together."""


Reach = Callable[[int, Numbers], Numbers]
"""Where a watermark stands before rows and behind each: of where it stood, and the step that each row would lead to."""


def greatest(before: int, steps: Numbers) -> Numbers:
    """The watermark of a stage with one input."""
    reached: Numbers = np.maximum.accumulate(np.concatenate(([before], steps)))
    return reached


def by_input(ids: npt.NDArray[np.uint64]) -> Iterator[tuple[int, Numbers]]:
    """The rows of each input, in order."""
    if not len(ids):
        return
    if (ids == ids[0]).all():
        yield int(ids[0]), np.arange(len(ids))
        return
    order = np.argsort(ids, kind="stable")
    found, firsts = np.unique(ids[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, firsts[1:]), strict=True)


@dataclass
class Reached:
    """How far each input of a stage has come; the number of the only one does not matter."""

    steps: dict[int, int] = field(default_factory=dict)

    def moved_at(self, steps: Numbers, ids: npt.NDArray[np.uint64] | None = None) -> Numbers:
        """The rows at which an input moves, as far as can be seen from here, if these are the steps that each row alone
        would lead to; and it is moved."""
        found = []
        for number, rows in [(0, None)] if ids is None else by_input(ids):
            reached = greatest(self.steps.get(number, LOWEST), steps if rows is None else steps[rows])
            self.steps[number] = int(reached[-1])
            moved = np.flatnonzero(np.diff(reached))
            found.append(moved if rows is None else rows[moved])
        return found[0] if len(found) == 1 else np.sort(np.concatenate([*found, np.empty(0, np.int64)]))


class Alarms:
    """The watermark and the alarms of one task's keys."""

    def __init__(self, states: States) -> None:
        self.states = states
        self.pending: dict[int, list[bytes]] = {}

    def stretches(self, steps: Numbers, reach: Reach = greatest) -> Iterator[tuple[int, int, int, list[bytes]]]:
        """Cut rows, each of which would lead to such a step, into stretches over which the watermark stands still:
        (first row, end, step, the keys whose alarms have rung there)."""
        mark = self._mark()
        before = LOWEST if mark["at"] is None else mark["at"]
        reached = reach(before, steps)
        edges = [*np.flatnonzero(np.diff(reached)).tolist(), len(steps)]
        if edges[0] != 0:
            edges.insert(0, 0)
        for start, end in pairwise(edges):
            step = int(reached[start + 1])
            mark = self._mark()
            rung = self._rung(step) if mark["at"] is None or step > mark["at"] else []
            yield start, end, step, rung

    def set(self, step: int, key: bytes) -> None:
        """Let this key be looked at when the watermark has come to this step; counts when `keep` is called."""
        self.pending.setdefault(step, []).append(key)

    def keep(self) -> None:
        """Remember what was set."""
        if not self.pending:
            return
        serial = self.states.serial
        lists: dict[int, list[int]] = self._mark()["lists"]
        names = {step: _list_name(step, serial) for step in self.pending}
        # Many lists of one step become one, so that the list of lists stays short.
        full = {step: serials for step in self.pending if len(serials := lists.get(step, [])) >= LISTS_MAX}
        old = [_list_name(step, one) for step, serials in full.items() for one in serials]
        known = self.states.take([WATERMARK, *names.values(), *old])
        lists = known.setdefault(WATERMARK, _new_mark())["lists"]
        for step, serials in full.items():
            whole = [key for one in serials for key in known.pop(_list_name(step, one), [])]
            known[names[step]] = list(dict.fromkeys(whole))
            lists[step] = [serial]
        for step, name in names.items():
            known.setdefault(name, []).extend(self.pending[step])
            if serial not in lists.setdefault(step, []):
                lists[step].append(serial)
        self.states.touch([WATERMARK, *names.values(), *old])
        self.pending = {}

    def run_to(self, step: int) -> Iterator[tuple[int, list[bytes]]]:
        """The watermark goes on to this step, with no record: (step, the keys whose alarms ring there), in order."""
        reached = self._mark()["at"]
        if step == LOWEST or (reached is not None and step <= reached):
            return
        while due := [one for one in self._mark()["lists"] if one <= step]:
            yield min(due), self._rung(min(due))
        self._mark()["at"] = step
        self.states.touch([WATERMARK])

    def run_out(self) -> Iterator[tuple[int, list[bytes]]]:
        """As if the watermark went through all that is due: (step, the keys whose alarms ring there). Then it stands
        again where it stood, for whoever begins anew."""
        reached = self._mark()["at"]
        while due := self._mark()["lists"]:
            step = min(due)
            yield step, self._rung(step)
        self._mark()["at"] = reached
        self.states.touch([WATERMARK])

    def _rung(self, step: int) -> list[bytes]:
        """The watermark has come to this step: the keys whose alarms that rings, in their order."""
        mark = self._mark()
        mark["at"] = step
        due = [one for one in mark["lists"] if one <= step]
        names = [_list_name(one, serial) for one in due for serial in mark["lists"].pop(one)]
        self.states.touch([WATERMARK])
        if not names:
            return []
        known = self.states.take(names)
        keys = sorted({key for name in names for key in known.pop(name, [])})
        self.states.touch(names)
        return keys

    def _mark(self) -> dict[str, Any]:
        known = self.states.take([WATERMARK])
        mark: dict[str, Any] = known.setdefault(WATERMARK, _new_mark())
        return mark


def _new_mark() -> dict[str, Any]:
    return {"at": None, "lists": {}}


def _list_name(step: int, serial: int) -> bytes:
    return b"t%d/%d" % (step, serial)
