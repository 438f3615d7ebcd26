"""Rows between two stages of a chain, each with its position in the order.

Invariant: the rows are in order, and each row knows the input row of the task that it came from. If branches meet or a
merge follows, it also has numbers that order it among the rows of the same input row. Used by `operators/chain`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from procession.operators.column_values import as_objects, joined_columns

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StageRows:
    """Rows between two stages. `values` are the arguments of the user's functions. `origins` are the input rows (None:
    row i came from input row i). `tail` has the numbers after the input row's order key. `keys` are the routing keys
    and `times` the event times (None: those of the input rows)."""

    values: pa.Array | list[Any]
    origins: Numbers | None = None
    tail: tuple[Numbers, ...] = ()
    keys: pa.Array | None = None
    times: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def as_list(self) -> list[Any]:
        return self.values if isinstance(self.values, list) else as_objects(self.values)

    def origin(self, row: int) -> int:
        return row if self.origins is None else int(self.origins[row])

    def all_origins(self) -> Numbers:
        return np.arange(len(self), dtype=np.int64) if self.origins is None else self.origins

    def with_values(self, values: pa.Array | list[Any]) -> StageRows:
        """Return the same rows with other values."""
        return replace(self, values=values)

    def pick(self, rows: Sequence[int] | Numbers | None, values: pa.Array | list[Any]) -> StageRows:
        """Return these rows (None: all rows) with other values. A row may be picked several times."""
        if rows is None:
            return self.with_values(values)
        picked = np.asarray(rows, dtype=np.int64)
        return StageRows(
            values,
            picked if self.origins is None else self.origins[picked],
            tuple(column[picked] for column in self.tail),
            None if self.keys is None else self.keys.take(pa.array(picked)),
            None if self.times is None else self.times.take(pa.array(picked)),
        )

    def slice(self, start: int, count: int) -> StageRows:
        """Return a number of rows, from this row on."""
        end = start + count
        return StageRows(
            self.values[start:end],
            np.arange(start, min(end, len(self)), dtype=np.int64) if self.origins is None else self.origins[start:end],
            tuple(column[start:end] for column in self.tail),
            None if self.keys is None else self.keys[start:end],
            None if self.times is None else self.times[start:end],
        )

    def only(self, rows: Sequence[int] | Numbers | None) -> StageRows:
        """Return these rows (None: all rows)."""
        return self if rows is None else self.take(np.asarray(rows, dtype=np.int64))

    def numbered(self, numbers: Numbers | int) -> StageRows:
        """Return the same rows with one more number at the end of each order key."""
        column = np.full(len(self), numbers, np.int64) if isinstance(numbers, int) else numbers
        return replace(self, tail=(*self.tail, column))

    def padded(self, length: int) -> StageRows:
        """Return the same rows with zeros at the end of each order key, up to this many numbers."""
        flow = self
        while len(flow.tail) < length:
            flow = flow.numbered(0)
        return flow

    def take(self, rows: Numbers) -> StageRows:
        """Return these rows, with their values."""
        if isinstance(self.values, list):
            return self.pick(rows, [self.values[row] for row in rows.tolist()])
        return self.pick(rows, self.values.take(pa.array(rows)))


def concatenated(pieces: Sequence[StageRows]) -> StageRows:
    """Return the rows of these pieces, one after the other. All pieces went through the same stages."""
    if len(pieces) == 1:
        return pieces[0]
    keys = [piece.keys for piece in pieces if piece.keys is not None]
    times = [piece.times for piece in pieces if piece.times is not None]
    return StageRows(
        joined_columns([piece.values for piece in pieces]),
        np.concatenate([piece.all_origins() for piece in pieces]),
        tuple(map(np.concatenate, zip(*(piece.tail for piece in pieces), strict=True))),
        pa.concat_arrays(keys) if keys else None,
        pa.concat_arrays(times) if times else None,
    )


def joined(
    flows: Sequence[StageRows],
    of: tuple[Callable[[StageRows], pa.Array], Callable[[StageRows], pa.Array]] | None,
    *,
    is_kept: bool,
) -> StageRows:
    """Join the rows of several branches, in order if `is_kept`. `of` has the functions for the routing keys and the
    event times of a branch, if a later stage needs them."""
    if len(flows) == 1:
        return flows[0]
    origins = np.concatenate([flow.all_origins() for flow in flows])
    tail = tuple(np.concatenate(columns) for columns in zip(*(flow.tail for flow in flows), strict=True))
    keys = times = None
    if all(flow.keys is not None for flow in flows):
        keys = pa.concat_arrays([flow.keys for flow in flows])
    elif of is not None and any(flow.keys is not None for flow in flows):
        keys = pa.concat_arrays([of[0](flow) for flow in flows])
    if of is not None and any(flow.times is not None for flow in flows):
        times = pa.concat_arrays([of[1](flow) for flow in flows])
    whole = StageRows(joined_columns([flow.values for flow in flows]), origins, tail, keys, times)
    if not is_kept:
        return whole
    return whole.take(np.lexsort((*reversed(tail), origins)))


def ordinals(counts: Numbers) -> Numbers:
    """Return 0, 1, 2… up to each of these counts, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0, dtype=np.int64) - np.repeat(ends - counts, counts)
