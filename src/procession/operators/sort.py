"""Sorting: all records by a rank, emitted when the input has ended.

The one rule: records of equal rank keep their order, so the result depends on the sequence alone. Only one block of
each run is in memory, however many records there are. `operators/chain` brings the records to one task, in order;
`operators/end_firing` emits them. Pure.

State: sorted runs of records, in blocks, each under `r`, the run's number and the block's; under `s` which runs there
are, in the order of their records. When there are several of one size at the end, they are merged into one, so there
are few.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from typing import Any

from procession.errors import PlanError
from procession.operators.keyed import Refuse, States
from procession.operators.value_codec import PLAIN, ValueCodec
from procession.planner.keys import NO_KEY
from procession.planner.order_key import Result

BLOCK_RECORDS, BLOCK_BYTES = 1024, 256 * 1024
"""A block has at most so many records, and is full when it has so many bytes."""

SPILL_BLOCKS = 64
"""So many blocks are written before memory is let go of."""

FAN_IN = 32
"""So many runs of one size are merged: two sizes differ by this factor."""

RUNS = b"s"

Ranked = tuple[Any, bytes]
"""A rank, and it and the record as bytes."""


@dataclass(frozen=True)
class Sorting:
    """What a sort stage does."""

    by: Callable[[Any], Any]
    is_reversed: bool = False
    values: ValueCodec = PLAIN

    def add(self, states: States, values: Sequence[Any], refuse: Refuse) -> None:
        """Take these records in. `refuse(row, error)` is told where their rank could not be had."""
        ranked: list[Ranked] = []
        for row, value in enumerate(values):
            try:
                rank = self.by(value)
                check_rank(rank)
                ranked.append((rank, self.values.packed([rank, value])))
            except Exception as error:  # the user's code may raise anything; the record decides who acts
                refuse(row, error)
        if ranked:
            with_errors_told(lambda: ranked.sort(key=_rank, reverse=self.is_reversed))
            _Runs(self, states).add(ranked)

    def end(self, states: States) -> Iterator[list[Result]]:
        """The records in their order, a block at a time; nothing is held then."""
        number = 0
        records = _Runs(self, states).take_all()
        while some := with_errors_told(lambda: list(islice(records, BLOCK_RECORDS))):
            yield [(0, (number + at, b"", 0), NO_KEY, self.values.thawed(data)[1]) for at, (_, data) in enumerate(some)]
            number += len(some)


class _Runs:
    """The sorted runs of a stage."""

    def __init__(self, stage: Sorting, states: States) -> None:
        self.stage = stage
        self.states = states

    def add(self, ranked: Sequence[Ranked]) -> None:
        """One more run, of records that came behind all others."""
        runs = [*self._runs(), self._written(ranked)]
        self._keep(runs)
        while len(runs) >= FAN_IN and max(map(_size, runs[-FAN_IN:])) <= _size(runs[-1]):
            runs[-FAN_IN:] = [self._written(self._merged(runs[-FAN_IN:]), self._next(runs))]
            self._keep(runs)

    def take_all(self) -> Iterator[Ranked]:
        """The records of all runs, in order."""
        yield from self._merged(self._runs())
        self._keep([])

    def _runs(self) -> list[list[int]]:
        """The runs there are: number, blocks, records."""
        return [list(run) for run in self.states.take([RUNS]).get(RUNS, [])]

    def _keep(self, runs: list[list[int]]) -> None:
        self.states.take([RUNS])[RUNS] = runs
        self.states.touch([RUNS])
        self.states.spill()

    def _next(self, runs: Sequence[Sequence[int]]) -> int:
        return 1 + max((run[0] for run in runs), default=0)

    def _merged(self, runs: Sequence[Sequence[int]]) -> Iterator[Ranked]:
        # Stable: of equal ranks, those of the earlier run come first.
        return heapq.merge(*map(self._read, runs), key=_rank, reverse=self.stage.is_reversed)

    def _read(self, run: Sequence[int]) -> Iterator[Ranked]:
        """The records of a run, which is gone then."""
        number, blocks, _ = run
        for block in range(blocks):
            name = _block_name(number, block)
            held = self.states.take([name]).pop(name)
            self.states.touch([name])
            yield from ((self.stage.values.thawed(data)[0], data) for data in held)

    def _written(self, ranked: Iterable[Ranked], number: int | None = None) -> list[int]:
        number = self._next(self._runs()) if number is None else number
        records, blocks, source = 0, 0, iter(ranked)
        while some := with_errors_told(lambda: _block(source)):
            name = _block_name(number, blocks)
            self.states.take([name])[name] = some
            self.states.touch([name])
            records, blocks = records + len(some), blocks + 1
            if blocks % SPILL_BLOCKS == 0:
                self.states.spill()
        return [number, blocks, records]


def check_rank(rank: Any) -> None:
    """Raise if this rank, or a part of it, has no place among others: NaN is neither less than another number nor
    greater, and of two sets neither need be. The output would depend on which records meet."""
    if isinstance(rank, tuple | list):
        for part in rank:
            check_rank(part)
    elif isinstance(rank, set | frozenset):
        raise TypeError(f"the rank has {rank!r}, a set, which has no place among others: give a sorted tuple of it")
    elif is_dataclass(rank):
        for field in fields(rank):
            check_rank(getattr(rank, field.name))
    elif rank != rank:
        raise ValueError(f"the rank has {rank!r}, which is not a number and has no place among others")


def with_errors_told(work: Callable[[], Any]) -> Any:
    """Do what compares ranks."""
    try:
        return work()
    except TypeError as error:
        raise PlanError(
            f"the ranks by which records are sorted cannot be compared: {error}",
            next_step="let the function give ranks of one type; nothing of this epoch was committed, and it is run"
            " again when you start again",
        ) from error


def _block(source: Iterator[Ranked]) -> list[bytes]:
    """As many records as make a block."""
    block: list[bytes] = []
    size = 0
    for _, data in islice(source, BLOCK_RECORDS):
        block.append(data)
        size += len(data)
        if size >= BLOCK_BYTES:
            break
    return block


def _size(run: Sequence[int]) -> int:
    """The size of a run, in powers of the number that are merged."""
    size, records = 0, run[2]
    while records >= FAN_IN:
        size, records = size + 1, records // FAN_IN
    return size


def _rank(ranked: Ranked) -> Any:
    return ranked[0]


def _block_name(run: int, block: int) -> bytes:
    return b"r%d/%d" % (run, block)
