"""Records of tumbling windows, grouped by key and window, so that those of a group are added at once.

Invariant: a group has its rows in order, and nothing fires between them. So windows fire what they would if the records
were added one after the other. Used by `operators/window_operator`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import pyarrow as pa

from procession.operators.column_aggregates import in_groups
from procession.operators.stage_rows import Numbers


class KeyedRows:
    """Rows with keys and times, in order, as columns."""

    def __init__(self, keys: pa.Array, times: Numbers, size: int) -> None:
        self._of_rows = keys, times
        encoded = keys.dictionary_encode()
        self.keys: list[bytes] = encoded.dictionary.to_pylist()
        self.slots: Numbers = encoded.indices.to_numpy().astype(np.int64)
        """The place of each row's key in `keys`."""
        self.ends: Numbers = (np.floor_divide(times, size) + 1) * size
        """The end of each row's window."""

    @cached_property
    def listed(self) -> tuple[list[bytes], list[int]]:
        """The key and the time of each row."""
        keys, times = self._of_rows
        return keys.to_pylist(), times.tolist()

    def groups(self, rows: Numbers) -> Iterator[tuple[bytes, int, int]]:
        """The keys and windows of these rows: (key, end, number of rows), by end, then in the order of `keys`."""
        ends, codes = self._codes(rows)
        of_groups, numbers = np.unique(codes, return_counts=True)
        for code, number in zip(of_groups.tolist(), numbers.tolist(), strict=True):
            window, slot = divmod(code, len(self.keys))
            yield self.keys[slot], ends[window], number

    def rows_of_groups(self, rows: Numbers) -> Iterator[tuple[bytes, int, list[int]]]:
        """As `groups`, with the rows of each group, in order, in place of their number."""
        ends, codes = self._codes(rows)
        for code, places in in_groups(codes):
            window, slot = divmod(code, len(self.keys))
            yield self.keys[slot], ends[window], rows[places].tolist()

    def _codes(self, rows: Numbers) -> tuple[list[int], Numbers]:
        """The ends of the windows of these rows, and a number for each row that says which end and which key it has."""
        ends, places = np.unique(self.ends[rows], return_inverse=True)
        return ends.tolist(), places * len(self.keys) + self.slots[rows]
