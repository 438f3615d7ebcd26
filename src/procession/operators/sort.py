"""Sorting: all records by a rank, emitted when the input has ended.

Invariant: records of equal rank keep their order, so the result depends only on the sequence. For any number of
records, only one block of each run is in memory. Implements `operators/operator`; all records reach one task, in order.
Pure.

State: sorted runs of records, in blocks, each under `r`, the number of the run and that of the block. Under `s` is the
list of runs, in the order of their records, each as [number, blocks, records]. Runs of one size at the end of the list
are merged, so there are few runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields, is_dataclass
from itertools import islice
from operator import itemgetter
from typing import Any

from procession.errors import PlanError
from procession.operators.operator import OperatorRows, Refuse, Result, StateAccess, StateSpec, UntimedOperator
from procession.operators.stage_rows import StageRows
from procession.operators.value_codec import PLAIN, ValueCodec
from procession.planner.keys import NO_KEY
from procession.planner.order_key import rows_of_results

BLOCK_RECORDS, BLOCK_BYTES = 1024, 256 * 1024
"""Maximum number of records in a block, and the number of bytes at which a block is full."""

SPILL_BLOCKS = 64
"""Number of blocks after which changed states are written, to release memory."""

FAN_IN = 32
"""Number of runs of one size that are merged. Consecutive sizes differ by this factor."""

RUNS = b"s"

Ranked = tuple[Any, bytes]
"""A rank, and the rank and the record as bytes."""

_rank = itemgetter(0)


@dataclass(frozen=True)
class SortOperator(UntimedOperator):
    """A sort of all records."""

    by: Callable[[Any], Any]
    is_reversed: bool = False
    values: ValueCodec = PLAIN

    @property
    def state(self) -> StateSpec:
        return StateSpec(
            layout=" in reverse" if self.is_reversed else "",
            rank=self.by,
            fires_at_end=True,
            needs_end=True,
            held="the records of the sort",
        )

    def add(self, states: StateAccess, rows: OperatorRows, refuse: Refuse) -> StageRows:
        ranked: list[Ranked] = []
        for row, value in enumerate(rows.records.as_list()):
            try:
                rank = self.by(value)
                check_rank(rank)
                ranked.append((rank, self.values.packed([rank, value])))
            except Exception as error:  # user code may raise any exception
                refuse(row, error)
        if ranked:
            comparing_ranks(lambda: ranked.sort(key=_rank, reverse=self.is_reversed))
            _Runs(self, states).add(ranked)
        return rows_of_results([])

    def end(self, states: StateAccess) -> Iterator[list[Result]]:
        """Yield the records in their order, a block at a time."""
        number = 0
        records = _Runs(self, states).take_all()
        while block := comparing_ranks(lambda: list(islice(records, BLOCK_RECORDS))):
            values = [self.values.decoded_value(data)[1] for _, data in block]
            yield [(0, (place, b"", 0), NO_KEY, value) for place, value in enumerate(values, number)]
            number += len(block)


@dataclass(frozen=True)
class SortedRun:
    """A sorted run: its number, its number of blocks, and its number of records."""

    number: int
    blocks: int
    records: int

    @property
    def size(self) -> int:
        """The size class: the logarithm of the number of records to the base FAN_IN."""
        size, records = 0, self.records
        while records >= FAN_IN:
            size, records = size + 1, records // FAN_IN
        return size


class _Runs:
    """The sorted runs of a stage."""

    def __init__(self, stage: SortOperator, states: StateAccess) -> None:
        self.stage = stage
        self.states = states

    def add(self, ranked: Sequence[Ranked]) -> None:
        """Add a run of records that came after all earlier records."""
        runs = self._runs()
        runs.append(self._written(ranked, self._next(runs)))
        self._keep(runs)
        while len(runs) >= FAN_IN and max(run.size for run in runs[-FAN_IN:]) <= runs[-1].size:
            runs[-FAN_IN:] = [self._written(self._merged(runs[-FAN_IN:]), self._next(runs))]
            self._keep(runs)

    def take_all(self) -> Iterator[Ranked]:
        """Yield the records of all runs, in order. The runs are removed."""
        yield from self._merged(self._runs())
        self._keep([])

    def _runs(self) -> list[SortedRun]:
        return [SortedRun(*stored) for stored in self.states.take([RUNS]).get(RUNS, [])]

    def _keep(self, runs: Sequence[SortedRun]) -> None:
        self.states.take([RUNS])[RUNS] = [list(astuple(run)) for run in runs]
        self.states.touch([RUNS])
        self.states.spill()

    def _next(self, runs: Sequence[SortedRun]) -> int:
        return 1 + max((run.number for run in runs), default=0)

    def _merged(self, runs: Sequence[SortedRun]) -> Iterator[Ranked]:
        # The merge is stable: of equal ranks, the records of the earlier run come first.
        return heapq.merge(*map(self._read, runs), key=_rank, reverse=self.stage.is_reversed)

    def _read(self, run: SortedRun) -> Iterator[Ranked]:
        """Yield the records of a run. Its blocks are removed as they are read."""
        for block in range(run.blocks):
            name = _block_name(run.number, block)
            held = self.states.take([name]).pop(name)
            self.states.touch([name])
            yield from ((self.stage.values.decoded_value(data)[0], data) for data in held)

    def _written(self, ranked: Iterable[Ranked], number: int) -> SortedRun:
        records, blocks, source = 0, 0, iter(ranked)
        while block := comparing_ranks(lambda: _block(source)):
            name = _block_name(number, blocks)
            self.states.take([name])[name] = block
            self.states.touch([name])
            records, blocks = records + len(block), blocks + 1
            if blocks % SPILL_BLOCKS == 0:
                self.states.spill()
        return SortedRun(number, blocks, records)


def check_rank(rank: Any) -> None:
    """Raise if this rank, or a part of it, cannot be ordered: a set, or NaN, which is neither less nor greater than a
    number. With such ranks, the output would depend on which records are compared."""
    if isinstance(rank, tuple | list):
        for part in rank:
            check_rank(part)
    elif isinstance(rank, set | frozenset):
        raise TypeError(f"the rank contains {rank!r}, a set, which cannot be ordered: return a sorted tuple of it")
    elif is_dataclass(rank):
        for field in fields(rank):
            check_rank(getattr(rank, field.name))
    elif rank != rank:
        raise ValueError(f"the rank contains {rank!r}, which is not a number and cannot be ordered")


def comparing_ranks(work: Callable[[], Any]) -> Any:
    """Run work that compares ranks. Raises PlanError if they cannot be compared."""
    try:
        return work()
    except TypeError as error:
        raise PlanError(
            f"the ranks by which records are sorted cannot be compared: {error}",
            next_step="let the function return ranks of one type, and start again: nothing of this epoch is committed,"
            " and it runs again",
        ) from error


def _block(source: Iterator[Ranked]) -> list[bytes]:
    """Return the records of the next block."""
    block: list[bytes] = []
    size = 0
    for _, data in islice(source, BLOCK_RECORDS):
        block.append(data)
        size += len(data)
        if size >= BLOCK_BYTES:
            break
    return block


def _block_name(run: int, block: int) -> bytes:
    return b"r%d/%d" % (run, block)
