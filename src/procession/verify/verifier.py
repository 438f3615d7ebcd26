"""The verifier: compares input and output, and reports lost, duplicated, disordered and corrupt records. Pure.

Invariant: only output that was compared and found equal is *clean*; empty input or output is *unknown*.
`verify/comparison` reads the files; `verify/verdict` has the result. These records are counted. *Corrupt*: an output
line that is in no input, or a last line without its newline. *Doubled*: a line that is in the output more often than
in the input. *Lost*: a line that is in the output less often; *acknowledged but lost*: a lost line that was
acknowledged to its producer. *Disordered*: see `verify/order`. Repeated lines are paired in order, the first with the
first: for one input the verdict is exact, and the counts are an upper bound. During a run (`is_complete=False`) a
line counts as lost only if a later line of its group is there; with order `none`, never.

Memory. Equal bytes are compared chunk by chunk. Only if they differ, each line becomes a row of 16 bytes (24 with keys)
in a bucket: on disk, if both sides have more than `MemoryBounds.memory_records` lines. At most that many rows are in
memory at a time, at less than 200 bytes each. Only many equal lines, or more keys than `GROUPS_MAX`, can exceed the
limit; the verdict is then unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from procession.verify.lines import Chunks, Numbers, count_lines, sameness, shown, terminated
from procession.verify.matching import (
    HASH,
    KEY,
    NUMBER,
    Buckets,
    MemoryBuckets,
    NewBuckets,
    Rows,
    file_lines,
    pair,
    put_sorted,
)
from procession.verify.order import (
    Disorder,
    GroupNumbers,
    KeyOf,
    Overtaken,
    PromisedOrder,
    TooManyGroups,
    bounded_disorder,
    least_disorder,
    stream_of,
)
from procession.verify.verdict import BadRecord, Outcome, Verdict

__all__ = ["BadRecord", "Chunks", "MemoryBounds", "Outcome", "Verdict", "compare"]

# An odd number with well-spread bits, so that equal keys of different inputs become different groups.
SPREAD = 0x1E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class MemoryBounds:
    """The limits of memory use."""

    memory_records: int = 2_000_000


def compare(
    inputs: Sequence[Chunks],
    output: Chunks,
    *,
    order: PromisedOrder = PromisedOrder.TOTAL,
    key_of: KeyOf | None = None,
    is_complete: bool = True,
    acknowledged: Sequence[int | None] = (),
    bounds: MemoryBounds | None = None,
    new_buckets: NewBuckets = MemoryBuckets,
) -> Verdict:
    """Compare an output with the inputs. The output must have every line of the inputs once, in the promised order.

    `acknowledged` has for each input the last message id that its producer saw acknowledged, which is the position of
    a line's first byte. `key_of` returns a line's key, for order `key`."""
    if order is PromisedOrder.KEY and key_of is None:
        raise ValueError("order 'key' needs key_of")
    if len(inputs) == 1:
        same = sameness(terminated(inputs[0]()), output())
        if same.lines and (same.is_equal or (same.is_prefix and not is_complete)):
            return Verdict(Outcome.CLEAN, same.lines, same.lines, order=order, is_complete=is_complete)
    bounds = bounds or MemoryBounds()
    ends = np.cumsum([count_lines(terminated(chunks())) for chunks in inputs]).astype(np.int64)
    rows = int(ends[-1] if len(ends) else 0) + count_lines(output())
    comparison = Comparison(
        inputs=inputs,
        output=output,
        order=order,
        key_of=key_of if order is PromisedOrder.KEY else None,
        is_complete=is_complete,
        safe_ends=_safe_ends(inputs, ends, acknowledged),
        ends=ends,
        bounds=bounds,
        buckets=1 + 4 * rows // bounds.memory_records,
        new_buckets=MemoryBuckets if rows <= bounds.memory_records else new_buckets,
    )
    try:
        return comparison.verdict()
    except TooManyGroups:
        why = "There are more keys than the memory limit allows, so their order cannot be determined."
    except TooManyEquals:
        why = "Too many lines are equal to compare them in bounded memory; use records that differ."
    return Verdict(
        Outcome.UNKNOWN, comparison.records, comparison.committed, why=why, order=order, is_complete=is_complete
    )


class TooManyEquals(Exception):
    """A bucket is too large, which only equal lines can cause."""


@dataclass
class ProblemCount:
    """The number of problems of one kind, and the number of the first."""

    count: int = 0
    first: int = -1

    def add(self, numbers: Numbers) -> None:
        self.count += len(numbers)
        if len(numbers):
            least = int(numbers.min())
            self.first = least if self.first < 0 else min(self.first, least)


@dataclass
class Comparison:
    """Compares an output that is known to differ from its input, or that has several inputs."""

    inputs: Sequence[Chunks]
    output: Chunks
    order: PromisedOrder
    key_of: KeyOf | None
    is_complete: bool
    safe_ends: Numbers
    ends: Numbers
    bounds: MemoryBounds
    buckets: int
    new_buckets: NewBuckets
    committed: int = 0
    lost: ProblemCount = field(default_factory=ProblemCount)
    doubled: ProblemCount = field(default_factory=ProblemCount)
    corrupt: ProblemCount = field(default_factory=ProblemCount)
    acknowledged_lost: ProblemCount = field(default_factory=ProblemCount)
    groups: GroupNumbers = field(default_factory=GroupNumbers)
    present: int = 0
    has_repeats: bool = False

    @property
    def records(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def verdict(self) -> Verdict:
        placed, missing = self._match()
        disorder, is_bounded = self._disorder(placed)
        self._count_lost(placed, missing)
        why = self._why_unknown(disorder)
        counts = (self.lost.count, self.doubled.count, disorder.count, self.corrupt.count)
        return Verdict(
            Outcome.UNKNOWN if why else Outcome.VIOLATED if any(counts) else Outcome.CLEAN,
            self.records,
            self.committed,
            *counts,
            first=self._first(disorder),
            why=why,
            acknowledged_lost=self.acknowledged_lost.count,
            order=self.order,
            is_complete=self.is_complete,
            is_disorder_bounded=is_bounded,
        )

    def _match(self) -> tuple[Buckets, Buckets]:
        """Return rows (output number, input position, group), with the position of a duplicate negated; and rows
        (position, group) of missing lines. Both are in buckets by their first column."""
        columns = 3 if self.key_of else 2
        expected, actual = self.new_buckets(columns), self.new_buckets(columns)
        begin = 0
        for chunks in self.inputs:
            begin += file_lines(terminated(chunks()), expected, self.buckets, begin=begin, key_of=self.key_of).lines
        self.committed, broken = file_lines(self.output(), actual, self.buckets, key_of=self.key_of)
        self.corrupt.add(np.array(broken, np.int64))
        placed, missing = self.new_buckets(3), self.new_buckets(2)
        for bucket in range(self.buckets):
            ours, theirs = expected.take(bucket), actual.take(bucket)
            if len(ours) + len(theirs) > max(self.bounds.memory_records, 16):
                raise TooManyEquals
            pairs = pair(ours[:, HASH], theirs[:, HASH])
            self.has_repeats |= pairs.has_repeats
            is_known = pairs.place >= 0
            self.corrupt.add(theirs[~is_known, NUMBER])
            self.doubled.add(theirs[pairs.is_doubled, NUMBER])
            came = ours[pairs.place[is_known]]
            positions = np.where(pairs.is_doubled[is_known], ~came[:, NUMBER], came[:, NUMBER])
            self._store(placed, theirs[is_known, NUMBER], positions, self._groups(came))
            self.present += len(came)
            absent = ours[~pairs.is_present]
            self._store(missing, absent[:, NUMBER], self._groups(absent))
        return placed, missing

    def _groups(self, rows: Rows) -> Numbers:
        streams = stream_of(rows[:, NUMBER], self.ends)
        if self.key_of is None:
            return streams
        return self.groups.numbers(rows[:, KEY] + (streams + 1) * SPREAD)

    def _store(self, storage: Buckets, numbers: Numbers, *others: Numbers) -> None:
        put_sorted(storage, np.column_stack([numbers, *others]), numbers // self.bounds.memory_records)

    def _taken(self, storage: Buckets, count: int, *, is_reversed: bool = False) -> Iterator[Rows]:
        """Yield the rows of each bucket, in the order of their numbers."""
        pieces = range(1 + max(count - 1, 0) // self.bounds.memory_records)
        for piece in reversed(pieces) if is_reversed else pieces:
            rows = storage.take(piece)
            by_number = np.argsort(rows[:, 0], kind="stable")
            yield rows[by_number[::-1] if is_reversed else by_number]

    def _disorder(self, placed: Buckets) -> tuple[Disorder, bool]:
        if self.order is PromisedOrder.NONE:
            return Disorder(0, -1), False
        if self.present <= self.bounds.memory_records:
            rows = np.concatenate(list(self._taken(placed, self.committed)))
            positions = np.maximum(rows[:, 1], ~rows[:, 1])
            return least_disorder(rows[:, 2], positions, rows[:, 0]), False
        late, early = Overtaken(), Overtaken()
        for is_reversed, side in ((False, late), (True, early)):
            for rows in self._taken(placed, self.committed, is_reversed=is_reversed):
                once = rows[rows[:, 1] >= 0]
                side.take(once[:, 2], -once[:, 1] if is_reversed else once[:, 1], once[:, 0])
        return bounded_disorder(late, early), True

    def _count_lost(self, placed: Buckets, missing: Buckets) -> None:
        if not self.is_complete and self.order is PromisedOrder.NONE:
            return
        furthest = np.full(max(len(self.groups), len(self.inputs)), -1, np.int64)
        if not self.is_complete:
            for rows in self._taken(placed, self.committed):
                np.maximum.at(furthest, rows[:, 2], rows[:, 1])
        for rows in self._taken(missing, self.records):
            positions = rows[:, 0]
            if not self.is_complete:
                positions = positions[positions < furthest[rows[:, 1]]]
            self.lost.add(positions)
            self.acknowledged_lost.add(positions[positions < self.safe_ends[stream_of(positions, self.ends)]])

    def _why_unknown(self, disorder: Disorder) -> str:
        if not self.records:
            return "The input is empty, so there is nothing to compare with."
        if not self.committed:
            return "Nothing is committed at the output, so there is nothing to verify."
        is_certain = self.doubled.count or self.corrupt.count or (self.lost.count and self.is_complete)
        if len(self.inputs) > 1 and self.has_repeats and not is_certain and (disorder.count or self.lost.count):
            return "The inputs contain the same line more than once, so its order in the output cannot be determined."
        return ""

    def _first(self, disorder: Disorder) -> dict[str, BadRecord]:
        numbers = {"doubled": self.doubled.first, "disordered": disorder.first, "corrupt": self.corrupt.first}
        first = {
            kind: BadRecord("output", number, shown(self.output(), number))
            for kind, number in numbers.items()
            if number >= 0
        }
        for kind, tally in (("lost", self.lost), ("acknowledged_lost", self.acknowledged_lost)):
            if tally.count:
                stream = int(stream_of(np.array([tally.first]), self.ends)[0])
                number = tally.first - (int(self.ends[stream - 1]) if stream else 0)
                where = "input" if len(self.inputs) == 1 else f"input {stream + 1}"
                first[kind] = BadRecord(where, number, shown(self.inputs[stream](), number))
        return first


def _safe_ends(inputs: Sequence[Chunks], ends: Numbers, acknowledged: Sequence[int | None]) -> Numbers:
    """Return for each input the number after its last acknowledged record, counted over all inputs."""
    begins = np.concatenate([[0], ends])[:-1]
    safe = begins.copy()
    for stream, last in enumerate(acknowledged):
        if last is not None:
            safe[stream] = min(ends[stream], begins[stream] + count_lines(inputs[stream](), last) + 1)
    return safe
