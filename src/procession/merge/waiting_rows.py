"""Waiting rows: what came in and may not be taken yet, in sorted stacks. Pure.

The one rule: rows leave in the order of (order time, stream id, message id, sequence), whatever the order in which they
came. Rows that come together are sorted once, and stacks of like size are put together: so there are few, and
what may leave of each is its beginning. Before it `stream_clocks`; after it `event_time`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from procession.merge.stream_clocks import Bound, Flags, Ids, Numbers


class Key(NamedTuple):
    """A record's place in the order of all streams."""

    order_time: int
    stream_id: int
    message_id: int


class Stack(NamedTuple):
    """Rows in columns. `sequences` say where in the arrival log each row is, `sizes` how many bytes it has there."""

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

    def count_up_to(self, bound: Bound) -> int:
        """How many rows at the beginning of a sorted stack have an (order time, stream id) up to this."""
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
    """The rows of all, in order."""
    if len(stacks) == 1:
        return stacks[0]
    return Stack(*(np.concatenate(column) for column in zip(*(one.columns for one in stacks), strict=True))).in_order()


def _let_go(stack: Stack) -> Stack:
    """The same rows; copied when the columns that they are a part of are mostly of others, which are gone."""
    whole = stack.order_times.base
    return stack.picked(np.arange(len(stack))) if whole is not None and len(whole) > 2 * len(stack) else stack


class Waiting:
    def __init__(self) -> None:
        self._stacks: list[Stack] = []
        """Each is more than twice as large as the next."""

    def __len__(self) -> int:
        return sum(map(len, self._stacks))

    def all(self) -> Stack:
        """What waits, in order; it stays here."""
        return together(self._stacks) if self._stacks else EMPTY

    @property
    def size_bytes(self) -> int:
        return sum(int(stack.sizes.sum()) for stack in self._stacks)

    def add(self, rows: Stack) -> None:
        """Rows in any order."""
        if len(rows):
            self._stacks.append(rows.in_order())
        while len(self._stacks) > 1 and 2 * len(self._stacks[-1]) >= len(self._stacks[-2]):
            self._stacks[-2:] = [together(self._stacks[-2:])]

    def take(self, bound: Bound) -> Stack:
        """The rows up to the bound, in order; they are gone from here."""
        counts = [stack.count_up_to(bound) for stack in self._stacks]
        taken = [stack.rows(0, count) for stack, count in zip(self._stacks, counts, strict=True) if count]
        rest = [stack.rows(count) for stack, count in zip(self._stacks, counts, strict=True)]
        self._stacks = [_let_go(stack) for stack in rest if len(stack)]
        return together(taken) if taken else EMPTY

    def least_ids(self, stream_ids: Ids) -> Ids:
        """Of each of these streams (sorted) the least message id that waits; 2^64-1 if none does."""
        least = np.full(len(stream_ids), np.iinfo(np.uint64).max, np.uint64)
        for stack in self._stacks:
            places = np.searchsorted(stream_ids, stack.stream_ids)
            places[places == len(stream_ids)] = 0
            is_asked = stream_ids[places] == stack.stream_ids if len(stream_ids) else np.zeros(len(stack), np.bool_)
            np.minimum.at(least, places[is_asked], stack.message_ids[is_asked])
        return least

    def remove(self, stream_id: int) -> Numbers:
        """Nothing of this stream waits any longer; gives the sequences of what did."""
        gone = [np.empty(0, np.int64)]
        kept = []
        for stack in self._stacks:
            is_own = stack.stream_ids == np.uint64(stream_id)
            gone.append(stack.sequences[is_own])
            kept.append(stack.picked(~is_own) if is_own.any() else stack)
        self._stacks = [stack for stack in kept if len(stack)]
        return np.concatenate(gone)

    def has(self, stream_id: int, bound: Bound | None = None) -> bool:
        """Whether a row of this stream waits; with a bound, one that stands up to it."""
        fronts = (stack if bound is None else stack.rows(0, stack.count_up_to(bound)) for stack in self._stacks)
        return any(bool((front.stream_ids == np.uint64(stream_id)).any()) for front in fronts)
