"""The order of lanes: which lanes are read next, which one is waited for, and which records are late. Pure.

Invariant: a lane becomes readable by whole epochs, and every lane has every epoch. So nothing of an epoch can be
ordered before all lanes have it, and all of it can be then: a merger takes one epoch of all lanes in each *turn*. A
lane that was skipped after a time-out is *behind*: each of its missing epochs is a separate turn when it arrives, and
the lane is waited for again when it has caught up. `sdk/lane_merge` reads the lanes.
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
    """One epoch of some lanes, to be merged and emitted."""

    epoch: int
    lanes: tuple[int, ...]
    passed: tuple[int, ...] = ()
    """Lanes that were passed over in this turn."""
    is_late: bool = False
    """Whether a later turn was emitted before: these records come too late."""


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
        """The lanes without which there is no next turn, while others have more."""
        self._names = names

    def next(self, heads: Sequence[int | None], *, is_overdue: bool = False) -> LaneTurn | None:
        """The next turn; None: lanes must be waited for.

        Args:
            heads: The next epoch that can be read of each lane; None: there is none so far.
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

    def took(self, turn: LaneTurn) -> None:
        """Note that a turn was emitted."""
        if not turn.is_late:
            self.merged = turn.epoch
            self.behind = (self.behind | set(turn.passed)) - set(turn.lanes)
        elif turn.epoch == self.merged:
            self.behind -= set(turn.lanes)


class Emitted:
    """The greatest key that was emitted, for counting the records that come after a greater one."""

    def __init__(self, greatest: Sequence[int] = ()) -> None:
        self.greatest: Key = tuple(greatest)
        """The epoch, then the order key. Empty: nothing was emitted."""

    def late_rows(self, epoch: int, batch: pa.RecordBatch) -> int:
        """How many rows of a sorted batch, from its first on, come after a greater key."""
        if not self.greatest or not batch.num_rows or epoch > self.greatest[0]:
            return 0
        if epoch < self.greatest[0]:
            return int(batch.num_rows)
        return rows_up_to(key_columns(batch), self.greatest[1:])

    def add(self, epoch: int, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self.greatest = max(self.greatest, (epoch, *(int(column[-1]) for column in key_columns(batch))))

    def first_disorder(self, epoch: int, batch: pa.RecordBatch) -> Key | None:
        """The first key of a batch that is not greater than the one before it; None: the batch continues the order."""
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
        f"The lane {lane} {what}: the lanes are not those of one output, or one of them was changed.",
        next_step="Restore the lanes from one copy, or run the pipeline again with a new place for its lanes.",
    )
