"""Waiting rows: rows that have arrived and whose order is not final yet, in sorted stacks. Pure.

Invariant: rows leave in the order of (order time, stream id, message id, sequence), regardless of their arrival order.
Rows that arrive together are sorted once, and stacks of similar size are merged. So there are few stacks, and the
final rows of each are its beginning. Used by `event_time`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from procession.merge.stream_clocks import Flags, Ids, Numbers, WatermarkBound


class Key(NamedTuple):
    """A record's key in the order of all streams."""

    order_time: int
    stream_id: int
    message_id: int


class Stack(NamedTuple):
    """Rows in columns. `sequences` and `sizes` are each row's position and size in bytes in the arrival log."""

    order_times: Numbers
    stream_ids: Ids
    message_ids: Ids
    sequences: Numbers
    sizes: Numbers
    are_late: Flags
    are_ends: Flags
    are_ticks: Flags

    def __len__(self) -> int:  # the number of rows, not of columns
        return len(self.order_times)

    def rows(self, start: int, end: int | None = None) -> Stack:
        return Stack(*(column[start:end] for column in self.columns))

    def picked(self, rows: Numbers | Flags) -> Stack:
        return Stack(*(column[rows] for column in self.columns))

    @property
    def columns(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._fields)

    def in_order(self) -> Stack:
        return self.picked(np.lexsort((self.sequences, self.message_ids, self.stream_ids, self.order_times)))

    def key(self, row: int) -> Key:
        return Key(int(self.order_times[row]), int(self.stream_ids[row]), int(self.message_ids[row]))

    def count_up_to(self, bound: WatermarkBound) -> int:
        """Return the number of leading rows of a sorted stack with an (order time, stream id) up to this bound."""
        low, high = (int(np.searchsorted(self.order_times, bound.time, side)) for side in ("left", "right"))
        return low + int(np.searchsorted(self.stream_ids[low:high], np.uint64(bound.stream_id), "right"))


EMPTY = Stack(
    np.empty(0, np.int64),
    np.empty(0, np.uint64),
    np.empty(0, np.uint64),
    np.empty(0, np.int64),
    np.empty(0, np.int64),
    np.empty(0, np.bool_),
    np.empty(0, np.bool_),
    np.empty(0, np.bool_),
)


def together(stacks: Sequence[Stack]) -> Stack:
    """Merge the rows of all stacks."""
    if len(stacks) == 1:
        return stacks[0]
    return Stack(
        *(np.concatenate(column) for column in zip(*(stack.columns for stack in stacks), strict=True))
    ).in_order()


def _compacted(stack: Stack) -> Stack:
    """Return the same rows. They are copied if most of their memory belongs to rows that are gone."""
    whole = stack.order_times.base
    return stack.picked(np.arange(len(stack))) if whole is not None and len(whole) > 2 * len(stack) else stack


class Waiting:
    def __init__(self) -> None:
        self._stacks: list[Stack] = []
        """Each stack is more than twice as large as the next."""

    def __len__(self) -> int:
        return sum(map(len, self._stacks))

    def all(self) -> Stack:
        """Return the waiting rows in order, without removing them."""
        return together(self._stacks) if self._stacks else EMPTY

    @property
    def size_bytes(self) -> int:
        return sum(int(stack.sizes.sum()) for stack in self._stacks)

    def add(self, rows: Stack) -> None:
        """Add rows in any order."""
        if len(rows):
            self._stacks.append(rows.in_order())
        while len(self._stacks) > 1 and 2 * len(self._stacks[-1]) >= len(self._stacks[-2]):
            self._stacks[-2:] = [together(self._stacks[-2:])]

    def take(self, bound: WatermarkBound) -> Stack:
        """Remove and return the rows up to the bound, in order."""
        counts = [stack.count_up_to(bound) for stack in self._stacks]
        taken = [stack.rows(0, count) for stack, count in zip(self._stacks, counts, strict=True) if count]
        rest = [stack.rows(count) for stack, count in zip(self._stacks, counts, strict=True)]
        self._stacks = [_compacted(stack) for stack in rest if len(stack)]
        return together(taken) if taken else EMPTY

    def least_ids(self, stream_ids: Ids) -> Ids:
        """Return the least waiting message id of each of these streams (sorted); 2^64-1 if none waits."""
        least = np.full(len(stream_ids), np.iinfo(np.uint64).max, np.uint64)
        for stack in self._stacks:
            places = np.searchsorted(stream_ids, stack.stream_ids)
            places[places == len(stream_ids)] = 0
            is_asked = stream_ids[places] == stack.stream_ids if len(stream_ids) else np.zeros(len(stack), np.bool_)
            np.minimum.at(least, places[is_asked], stack.message_ids[is_asked])
        return least

    def remove(self, stream_id: int) -> Numbers:
        """Remove the rows of this stream. Return their sequence numbers."""
        gone = [np.empty(0, np.int64)]
        kept = []
        for stack in self._stacks:
            is_own = stack.stream_ids == np.uint64(stream_id)
            gone.append(stack.sequences[is_own])
            kept.append(stack.picked(~is_own) if is_own.any() else stack)
        self._stacks = [stack for stack in kept if len(stack)]
        return np.concatenate(gone)

    def has(self, stream_id: int, bound: WatermarkBound | None = None) -> bool:
        """Whether a row of this stream waits; with a bound, whether a row up to it waits."""
        fronts = (stack if bound is None else stack.rows(0, stack.count_up_to(bound)) for stack in self._stacks)
        return any(bool((front.stream_ids == np.uint64(stream_id)).any()) for front in fronts)
