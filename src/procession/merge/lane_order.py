"""The order of lanes: decides which lanes are read next, which are waited for, and which records are late. Pure.

Invariant: a lane becomes readable by whole epochs, and every lane has every epoch. So a merger emits no record of an
epoch before all lanes have the epoch; then it can emit all of them, in one *turn*. A lane that was skipped after a
time-out is *behind*: each of its missing epochs is a separate turn when it arrives. When the lane has caught up, the
merger waits for it again. `sdk/lane_merge` reads the lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from procession.errors import StorageError
from procession.merge.kway import Key, key_columns, rows_up_to

NOTHING = -1
"""The epoch before the first one."""


class LaneTurn(NamedTuple):
    """One epoch of some lanes, which is merged and emitted."""

    epoch: int
    lanes: tuple[int, ...]
    passed: tuple[int, ...] = ()
    """Lanes that were passed over in this turn."""
    is_late: bool = False
    """Whether a later turn was emitted before, so that these records come too late."""


class LaneOrder:
    """Decides the turns of lanes that are numbered from 0.

    Args:
        names: The names of the lanes, for errors.
        merged: The last epoch that was emitted.
        behind: Lanes that were passed over and have not caught up.
    """

    def __init__(self, names: Sequence[str], merged: int = NOTHING, behind: Sequence[int] = ()) -> None:
        self.merged = merged
        self.behind = set(behind)
        self.waiting_for: tuple[int, ...] = ()
        """The lanes that the next turn waits for while other lanes have epochs."""
        self._names = names

    def next(self, heads: Sequence[int | None], *, is_overdue: bool = False) -> LaneTurn | None:
        """Return the next turn. None: lanes must be waited for.

        Args:
            heads: The next readable epoch of each lane. None: there is none so far.
            is_overdue: Pass over the lanes that are waited for.
        """
        self.waiting_for = ()
        for lane, head in enumerate(heads):
            if head is not None and head <= self.merged:
                if lane not in self.behind:
                    raise _lost(self._names[lane], f"has epoch {head} again")
                return LaneTurn(head, (lane,), is_late=True)
        ready = [head for head in heads if head is not None]
        if not ready:
            return None
        epoch = min(ready)
        missing = tuple(lane for lane, head in enumerate(heads) if head is None and lane not in self.behind)
        if missing and not is_overdue:
            self.waiting_for = missing
            return None
        if gaps := [self._names[lane] for lane, head in enumerate(heads) if head is not None and head > epoch]:
            raise _lost(", ".join(gaps), f"has no epoch {epoch}, which other lanes have")
        return LaneTurn(epoch, tuple(lane for lane, head in enumerate(heads) if head == epoch), missing)

    def turn_emitted(self, turn: LaneTurn) -> None:
        """Note that a turn was emitted."""
        if not turn.is_late:
            self.merged = turn.epoch
            self.behind = (self.behind | set(turn.passed)) - set(turn.lanes)
        elif turn.epoch == self.merged:
            self.behind -= set(turn.lanes)


class Emitted:
    """The greatest emitted key, with which records after a greater key are counted."""

    def __init__(self, greatest: Sequence[int] = ()) -> None:
        self.greatest: Key = tuple(greatest)
        """The epoch, then the order key. Empty: nothing was emitted."""

    def late_rows(self, epoch: int, batch: pa.RecordBatch) -> int:
        """Return the number of rows of a sorted batch, from its first on, that come after a greater key."""
        if not self.greatest or not batch.num_rows or epoch > self.greatest[0]:
            return 0
        if epoch < self.greatest[0]:
            return int(batch.num_rows)
        return rows_up_to(key_columns(batch), self.greatest[1:])

    def add(self, epoch: int, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self.greatest = max(self.greatest, (epoch, *(int(column[-1]) for column in key_columns(batch))))

    def first_disorder(self, epoch: int, batch: pa.RecordBatch) -> Key | None:
        """Return the first key of a batch that is not greater than the previous key. None: the batch continues the
        order."""
        keys = key_columns(batch)
        if not batch.num_rows:
            return None
        first = (epoch, *(int(column[0]) for column in keys))
        if self.greatest and first <= self.greatest:
            return first
        is_greater = np.zeros(batch.num_rows - 1, np.bool_)
        is_equal = ~is_greater
        for column in keys:
            is_greater |= is_equal & (column[1:] > column[:-1])
            is_equal &= column[1:] == column[:-1]
        if is_greater.all():
            return None
        row = int(is_greater.argmin()) + 1
        return (epoch, *(int(column[row]) for column in keys))


def _lost(lane: str, what: str) -> StorageError:
    return StorageError(
        f"The lane {lane} {what}: the lanes do not belong to one output, or a lane was changed.",
        next_step="Restore the lanes from one copy, or run the pipeline again with a new place for its lanes.",
    )
