"""`merged_by_event_time` merges the lanes of several pipelines into one sequence, by event time.

Invariant: `sdk/lane_merge` merges the lanes of each pipeline, then `merge/sequence_merge` merges the resulting
sequences. The result depends only on the lanes, not on timing, so two mergers produce the same sequence. Memory holds
one batch per pipeline.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from procession.errors import ConfigError
from procession.merge.sequence_merge import TIME_MIN, TimedSequence, final_counts, rows_by_time
from procession.sdk.lane_files import BUFFER_BYTES
from procession.sdk.lane_merge import POLL_S, LaneMerge, MergedBatch, MergeOptions, MergeReport
from procession.sdk.merge_output import MergeOutput
from procession.sdk.merged_records import MergedRecord, lanes_at

Place = str | Path


class _Sequence(TimedSequence):
    """The merged lanes of one pipeline, read a batch at a time."""

    def __init__(self, merge: LaneMerge, position: Mapping[str, Any]) -> None:
        super().__init__(int(position.get("reached", TIME_MIN)))
        self.merge = merge
        self._turns = merge.turns()
        self._turn: Iterator[MergedBatch] = iter(())
        self._at: dict[str, Any] = merge.position
        self._skipped = int(position.get("taken", 0))
        """Rows of the first turn that an earlier merger has emitted."""
        self._read = 0

    def fill(self) -> None:
        """Read the next batch if no rows wait. The sequence ends when its merger ends."""
        while self.is_empty and not self.is_ended:
            batch = next(self._turn, None)
            if batch is None:
                self._at, self._read = self.merge.position, 0
                turn = next(self._turns, None)
                self.is_ended = turn is None
                self._turn = iter(()) if turn is None else turn
                continue
            self._read += batch.rows.num_rows
            skipped = min(self._skipped, batch.rows.num_rows)
            self._skipped -= skipped
            # The order time already includes the skipped rows: it is restored with the position.
            self.add(batch.rows.slice(skipped))

    @property
    def position(self) -> dict[str, Any]:
        """The position after the last row that the merge took."""
        waiting = 0 if self.rows is None else self.rows.num_rows
        reached = int(self.times[0]) if waiting else self.reached
        return {"lanes": self._at, "taken": self._read - waiting, "reached": reached}


class MergedByEventTime:
    """The records of several pipelines' lanes by event time. Iterate only once. Returned by `merged_by_event_time`."""

    def __init__(
        self, merges: Sequence[LaneMerge], positions: Sequence[Mapping[str, Any]], stop: threading.Event
    ) -> None:
        self._waiting: _Sequence | None = None
        """The sequence from which rows are read now."""
        self._sequences = [_Sequence(merge, position) for merge, position in zip(merges, positions, strict=True)]
        self._stop = stop

    def __iter__(self) -> Iterator[MergedRecord]:
        for batch in self.batches():
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield MergedRecord(*values)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Iterate the records as Arrow batches with the columns `payload`, `key` and `event_time`. Between two batches,
        `position` is the position after the first of them."""
        while not self._stop.is_set():
            for sequence in self._sequences:
                self._waiting = sequence
                sequence.fill()
            self._waiting = None
            if self._stop.is_set():
                return  # the mergers were stopped; their lanes have not ended
            counts = final_counts(self._sequences)
            if not any(counts):
                return
            pairs = zip(self._sequences, counts, strict=True)
            yield rows_by_time([sequence.take(count) for sequence, count in pairs if count])

    @property
    def position(self) -> dict[str, Any]:
        """The position to continue from, as JSON."""
        return {"sequences": [sequence.position for sequence in self._sequences]}

    @property
    def report(self) -> MergeReport:
        """The progress of all pipelines together. While records wait for a pipeline, `waiting_for` names the lanes of
        that pipeline that are known to be missing, or all its lanes."""
        total, waiting = MergeReport(), self._waiting
        for report in self.reports:
            total.records += report.records
            total.epochs += report.epochs
            total.waiting_for += report.waiting_for
            total.waited_s |= report.waited_s
        others = [sequence for sequence in self._sequences if sequence is not waiting]
        if waiting is not None and not total.waiting_for and not all(other.is_empty for other in others):
            total.waiting_for = tuple(sorted(waiting.merge.position.get("at", ())))
        return total

    @property
    def reports(self) -> list[MergeReport]:
        """The progress of each pipeline's merger."""
        return [sequence.merge.report for sequence in self._sequences]

    def stop(self) -> None:
        """End the iteration. Any thread may call it."""
        self._stop.set()

    def close(self) -> None:
        for sequence in self._sequences:
            sequence.merge.close()


def merged_by_event_time(
    *pipelines: Place | Sequence[Place],
    follow: bool = False,
    position: Mapping[str, Any] | None = None,
    verify: bool = False,
    buffer_bytes: int = BUFFER_BYTES,
    poll_s: float = POLL_S,
    stop: threading.Event | None = None,
) -> MergedByEventTime:
    """Merge the lanes of several pipelines by event time, the same way in every run.

    Records are ordered by the greatest event time of their pipeline's output so far, then by the order of the
    arguments, then by their order in the pipeline. A record without an event time follows the record before it.

    Args:
        pipelines: One argument per pipeline: the place of its lanes, or a list of places.
        follow: Wait for more records until `stop` is called. Otherwise stop at the last epoch that all lanes have now.
        position: The `position` of an earlier merger of the same pipelines, in the same order.
        verify: Check that each order key of a pipeline is greater than the one before it.
        buffer_bytes: Maximum bytes in memory per topic. Above it, partitions that are ahead are paused.
        poll_s: Seconds between polls of lanes that have nothing new.
        stop: An event that ends the iteration, like the method `stop`.

    Returns:
        The records. Iterate them only once.

    Raises:
        ConfigError: The lanes of one pipeline do not belong together, or the position belongs to other pipelines.
    """
    positions = [{}] * len(pipelines) if position is None else list(position.get("sequences", ()))
    if len(positions) != len(pipelines):
        raise ConfigError(
            f"the position belongs to {len(positions)} pipelines, but {len(pipelines)} are given",
            next_step="give the same pipelines in the same order, or merge from the beginning",
        )
    stop = stop or threading.Event()
    options = MergeOptions(is_following=follow, is_verifying=verify, poll_s=poll_s)
    merges = []
    for places, before in zip(pipelines, positions, strict=True):
        listed = [places] if isinstance(places, str | Path) else list(places)
        opener = lanes_at(listed, None, buffer_bytes)
        merges.append(LaneMerge(opener, options, before.get("lanes"), stop=stop))
    return MergedByEventTime(merges, positions, stop)


def merge_by_time_into(
    merging: MergedByEventTime, output: MergeOutput, *, commits: int, transaction_bytes: int, is_following: bool
) -> None:
    """Write the records to an output, and commit them with the position after them.

    Args:
        merging: The merger, at the output's position.
        output: The output.
        commits: Number of earlier commits, `commits` in the output's position.
        transaction_bytes: Bytes after which a transaction ends.
        is_following: Commit every batch, because the next batch may take long to arrive.
    """

    def commit() -> None:
        nonlocal commits
        commits += 1
        output.commit({**merging.position, "commits": commits}, label=f"n{commits}")

    for rows in merging.batches():
        output.write(MergedBatch(0, rows))
        if is_following or output.pending_bytes >= transaction_bytes:
            commit()
    if output.pending_bytes:
        commit()
