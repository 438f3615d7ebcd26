"""Merges ordered sequences by event time: the outputs of several pipelines become one sequence. Pure.

Invariant: rows are ordered by *order time*, then by the number of their sequence, then by their position in it. The
order time of a row is the greatest event time of its sequence up to the row. This depends only on the sequences, so all
mergers produce the same result. A row is final when every sequence that has not ended has reached its order time. Used
by `sdk/event_time_merge`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

TIME_MIN = -(2**63)

Times = npt.NDArray[np.int64]


class TimedSequence:
    """One input sequence: its rows that are not final yet, and the order time that it has reached."""

    def __init__(self, reached: int = TIME_MIN) -> None:
        self.reached = reached
        """The order time that the sequence has reached. All later rows have at least this order time."""
        self.is_ended = False
        self.rows: pa.RecordBatch | None = None
        self.times: Times = np.empty(0, np.int64)

    @property
    def is_empty(self) -> bool:
        return self.rows is None or not self.rows.num_rows

    def add(self, rows: pa.RecordBatch) -> None:
        """Add the next rows. All earlier rows must be taken."""
        assert self.is_empty
        times = rows.column("event_time").fill_null(TIME_MIN).to_numpy()
        self.times = np.maximum(np.maximum.accumulate(times), self.reached) if len(times) else times
        self.rows = rows
        if len(times):
            self.reached = int(self.times[-1])

    def take(self, count: int) -> tuple[pa.RecordBatch, Times]:
        assert self.rows is not None
        taken, times = self.rows.slice(0, count), self.times[:count]
        self.rows, self.times = self.rows.slice(count), self.times[count:]
        return taken, times


def final_counts(sequences: Sequence[TimedSequence]) -> list[int]:
    """Return the number of waiting rows of each sequence that are final."""
    bounds = [(sequence.reached, number) for number, sequence in enumerate(sequences) if not sequence.is_ended]
    if not bounds:
        return [len(sequence.times) for sequence in sequences]
    time, holder = min(bounds)
    sides = ("right" if number <= holder else "left" for number in range(len(sequences)))
    return [
        int(np.searchsorted(sequence.times, np.int64(time), side))  # type: ignore[call-overload]
        for sequence, side in zip(sequences, sides, strict=True)
    ]


def rows_by_time(parts: Sequence[tuple[pa.RecordBatch, Times]]) -> pa.RecordBatch:
    """Merge parts, one per sequence, by order time. Ties keep the order of the sequences."""
    columns = ("payload", "key", "event_time")
    chosen = [rows.select(columns) for rows, _ in parts]
    if len(chosen) == 1:
        return chosen[0]
    times = np.concatenate([part_times for _, part_times in parts])
    return pa.concat_batches(chosen).take(pa.array(np.argsort(times, kind="stable")))
