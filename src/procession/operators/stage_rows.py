"""Rows between two stages of a chain, each with its place in the order.

The one rule: the rows are in order. Whatever a stage does, each row that comes out names the task's input row that it
came from; where branches meet or a merge follows, it also has the numbers that distinguish it from other rows of that
input row. Used by `operators/chain`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Flow:
    """`values` are what the user's functions are handed. `origins` are the input rows (None: row i is row i), `tail`
    the numbers behind the input row's own key, `keys` the routing keys and `times` the event times (None: those that
    the input rows came with)."""

    values: pa.Array | list[Any]
    origins: Numbers | None = None
    tail: tuple[Numbers, ...] = ()
    keys: pa.Array | None = None
    times: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def as_list(self) -> list[Any]:
        return self.values if isinstance(self.values, list) else self.values.to_pylist()

    def origin(self, row: int) -> int:
        return row if self.origins is None else int(self.origins[row])

    def all_origins(self) -> Numbers:
        return np.arange(len(self), dtype=np.int64) if self.origins is None else self.origins

    def with_values(self, values: pa.Array | list[Any]) -> Flow:
        """The same rows, with other values."""
        return replace(self, values=values)

    def pick(self, rows: Sequence[int] | Numbers | None, values: pa.Array | list[Any]) -> Flow:
        """These rows (None: all of them), with other values; a row may be picked several times."""
        if rows is None:
            return self.with_values(values)
        picked = np.asarray(rows, dtype=np.int64)
        return Flow(
            values,
            picked if self.origins is None else self.origins[picked],
            tuple(column[picked] for column in self.tail),
            None if self.keys is None else self.keys.take(pa.array(picked)),
            None if self.times is None else self.times.take(pa.array(picked)),
        )

    def slice(self, start: int, count: int) -> Flow:
        """So many rows from this one on."""
        end = start + count
        return Flow(
            self.values[start:end],
            np.arange(start, min(end, len(self)), dtype=np.int64) if self.origins is None else self.origins[start:end],
            tuple(column[start:end] for column in self.tail),
            None if self.keys is None else self.keys[start:end],
            None if self.times is None else self.times[start:end],
        )

    def only(self, rows: list[int] | None) -> Flow:
        """These rows (None: all of them)."""
        return self if rows is None else self.take(np.asarray(rows, dtype=np.int64))

    def numbered(self, numbers: Numbers | int) -> Flow:
        """With one more number behind each row's key."""
        column = np.full(len(self), numbers, np.int64) if isinstance(numbers, int) else numbers
        return replace(self, tail=(*self.tail, column))

    def padded(self, length: int) -> Flow:
        """With noughts behind each row's key, up to this many numbers."""
        flow = self
        while len(flow.tail) < length:
            flow = flow.numbered(0)
        return flow

    def take(self, rows: Numbers) -> Flow:
        """These rows, values and all."""
        if isinstance(self.values, list):
            return self.pick(rows, [self.values[row] for row in rows.tolist()])
        return self.pick(rows, self.values.take(pa.array(rows)))


def put_together(pieces: Sequence[Flow]) -> Flow:
    """The rows of these flows, one after the other: pieces of one flow that went the same way."""
    if len(pieces) == 1:
        return pieces[0]
    keys = [piece.keys for piece in pieces if piece.keys is not None]
    times = [piece.times for piece in pieces if piece.times is not None]
    return Flow(
        _concatenated([piece.values for piece in pieces]),
        np.concatenate([piece.all_origins() for piece in pieces]),
        tuple(map(np.concatenate, zip(*(piece.tail for piece in pieces), strict=True))),
        pa.concat_arrays(keys) if keys else None,
        pa.concat_arrays(times) if times else None,
    )


def joined(
    flows: Sequence[Flow], of: tuple[Callable[[Flow], pa.Array], Callable[[Flow], pa.Array]] | None, *, is_kept: bool
) -> Flow:
    """The rows of several flows as one, in order if that is asked for. `of` gives a flow's routing keys and its event
    times, if anybody wants them."""
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
    whole = Flow(_concatenated([flow.values for flow in flows]), origins, tail, keys, times)
    if not is_kept:
        return whole
    return whole.take(np.lexsort((*reversed(tail), origins)))


def _concatenated(parts: Sequence[pa.Array | list[Any]]) -> pa.Array | list[Any]:
    kinds = {None if isinstance(part, list) else part.type for part in parts}
    if len(kinds) == 1 and None not in kinds:
        return pa.concat_arrays(parts)
    return [value for part in parts for value in (part if isinstance(part, list) else part.to_pylist())]


def ordinals(counts: Numbers) -> Numbers:
    """0, 1, 2… for each of these counts, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0, dtype=np.int64) - np.repeat(ends - counts, counts)
