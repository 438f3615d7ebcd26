"""Watermark timers: the progress of a watermark, and the keys that are due when it advances.

Invariant: the cost of an epoch depends on the keys that it touches, not on all keys. A list of keys is written in one
epoch and not touched again until the watermark reaches its step. Used by `operators/timed`. Pure.

State: under `w`, the watermark, in steps, and the list of lists; under `t`, a step and a serial number, the keys of one
list. The state of a key is under `k` and the key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from procession.operators.operator import Reach, StateAccess
from procession.operators.stage_rows import Numbers

LOWEST = -(2**62)
"""A step below every watermark."""

WATERMARK = b"w"
LISTS_MAX = 64
"""Maximum number of lists of keys for one step. More lists are merged into one."""


def greatest(before: int, steps: Numbers) -> Numbers:
    """Return the watermark of a stage with one input."""
    reached: Numbers = np.maximum.accumulate(np.concatenate(([before], steps)))
    return reached


def by_input(ids: npt.NDArray[np.uint64]) -> Iterator[tuple[int, Numbers]]:
    """Yield the rows of each input: (input, rows in order)."""
    if not len(ids):
        return
    if (ids == ids[0]).all():
        yield int(ids[0]), np.arange(len(ids))
        return
    order = np.argsort(ids, kind="stable")
    found, firsts = np.unique(ids[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, firsts[1:]), strict=True)


@dataclass
class InputSteps:
    """The step that each input of a stage has reached. If there is only one input, its number does not matter."""

    steps: dict[int, int] = field(default_factory=dict)

    def moved_at(self, steps: Numbers, ids: npt.NDArray[np.uint64] | None = None) -> Numbers:
        """Advance the inputs by rows with these steps. Returns the rows at which an input advances, as far as this task
        can tell."""
        found = []
        for number, rows in [(0, None)] if ids is None else by_input(ids):
            reached = greatest(self.steps.get(number, LOWEST), steps if rows is None else steps[rows])
            self.steps[number] = int(reached[-1])
            moved = np.flatnonzero(np.diff(reached))
            found.append(moved if rows is None else rows[moved])
        return found[0] if len(found) == 1 else np.sort(np.concatenate([*found, np.empty(0, np.int64)]))


class WatermarkTimers:
    """The watermark of one task, and the timers of its keys."""

    def __init__(self, states: StateAccess) -> None:
        self.states = states
        self.pending: dict[int, list[bytes]] = {}
        self._set: set[tuple[int, bytes]] = set()

    def stretches(self, steps: Numbers, reach: Reach = greatest) -> Iterator[tuple[int, int, int, list[bytes]]]:
        """Divide rows with these steps into stretches in which the watermark does not move. Yields (first row, end,
        step, keys that are due at the start)."""
        mark = self._mark()
        before = LOWEST if mark["at"] is None else mark["at"]
        reached = reach(before, steps)
        edges = [*np.flatnonzero(np.diff(reached)).tolist(), len(steps)]
        if edges[0] != 0:
            edges.insert(0, 0)
        for start, end in pairwise(edges):
            step = int(reached[start + 1])
            mark = self._mark()
            due = self._take_due(step) if mark["at"] is None or step > mark["at"] else []
            yield start, end, step, due

    def set(self, step: int, key: bytes) -> None:
        """Set a timer: this key is due when the watermark reaches this step. Takes effect with `keep`."""
        self.pending.setdefault(step, []).append(key)

    def set_once(self, step: int, key: bytes) -> None:
        """Set a timer like `set`, unless this timer was set before through this object."""
        if (step, key) not in self._set:
            self._set.add((step, key))
            self.set(step, key)

    def keep(self) -> None:
        """Store the timers that were set."""
        if not self.pending:
            return
        serial = self.states.serial
        lists: dict[int, list[int]] = self._mark()["lists"]
        names = {step: _list_name(step, serial) for step in self.pending}
        # Many lists of one step are merged into one, so that the list of lists stays short.
        full = {step: serials for step in self.pending if len(serials := lists.get(step, [])) >= LISTS_MAX}
        old = [_list_name(step, number) for step, serials in full.items() for number in serials]
        known = self.states.take([WATERMARK, *names.values(), *old])
        lists = known.setdefault(WATERMARK, _new_mark())["lists"]
        for step, serials in full.items():
            whole = [key for number in serials for key in known.pop(_list_name(step, number), [])]
            known[names[step]] = list(dict.fromkeys(whole))
            lists[step] = [serial]
        for step, name in names.items():
            known.setdefault(name, []).extend(self.pending[step])
            if serial not in lists.setdefault(step, []):
                lists[step].append(serial)
        self.states.touch([WATERMARK, *names.values(), *old])
        self.pending = {}

    def advance_to(self, step: int) -> Iterator[tuple[int, list[bytes]]]:
        """Advance the watermark to this step without a record. Yields (step, keys that are due there), in order."""
        reached = self._mark()["at"]
        if step == LOWEST or (reached is not None and step <= reached):
            return
        while due := [listed for listed in self._mark()["lists"] if listed <= step]:
            yield min(due), self._take_due(min(due))
        self._mark()["at"] = step
        self.states.touch([WATERMARK])

    def drain(self) -> Iterator[tuple[int, list[bytes]]]:
        """Fire all timers, as if the watermark passed them. Yields (step, keys that are due there). Afterwards the
        watermark has its earlier value, for records that come after the end."""
        reached = self._mark()["at"]
        while due := self._mark()["lists"]:
            step = min(due)
            yield step, self._take_due(step)
        self._mark()["at"] = reached
        self.states.touch([WATERMARK])

    def _take_due(self, step: int) -> list[bytes]:
        """Advance the watermark to this step. Removes and returns the keys that are due, sorted."""
        mark = self._mark()
        mark["at"] = step
        due = [listed for listed in mark["lists"] if listed <= step]
        names = [_list_name(listed, serial) for listed in due for serial in mark["lists"].pop(listed)]
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
