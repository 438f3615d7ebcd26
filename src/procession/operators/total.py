"""Totals: an aggregate of all records, or of all records of each key, emitted when the input has ended.

Invariant: records are added in order, so an aggregate may depend on their order. No result is emitted before the end.
Implements `operators/operator`. Pure.

State: under `k` and the key, the number of its records and the accumulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from procession.errors import PlanError
from procession.operators.aggregates import Aggregate
from procession.operators.column_aggregates import GroupedValues, in_groups
from procession.operators.operator import OperatorRows, Refuse, Result, StateAccess, StateSpec, UntimedOperator
from procession.operators.stage_rows import StageRows
from procession.planner.keys import NO_KEY, PLAIN_KEYS, KeyCodec
from procession.planner.order_key import rows_of_results, take_in_order
from procession.planner.ownership import own


@dataclass(frozen=True)
class TotalOperator(UntimedOperator):
    """An aggregate of all records, or of all records of each key."""

    aggregate: Aggregate
    is_keyed: bool
    keys: KeyCodec = PLAIN_KEYS

    @property
    def state(self) -> StateSpec:
        return StateSpec(
            function=self.aggregate,
            fires_at_end=True,
            needs_end=True,
            reads_records=self.aggregate.add_many is None,
            over=self.aggregate.over,
            held="the totals of",
        )

    def add(self, states: StateAccess, rows: OperatorRows, refuse: Refuse) -> StageRows:
        records = rows.records
        assert records.keys is not None
        if self.aggregate.add_many is not None:
            self._add_many(states, records.keys, self.aggregate.add_many)
            return rows_of_results([])
        if (values := GroupedValues.of(self.aggregate.over, records)) is not None:
            self._add_values(states, records.keys, values, refuse)
            return rows_of_results([])
        names = [b"k" + key for key in records.keys.to_pylist()]
        known = states.take(names)
        create, add = self.aggregate.create, self.aggregate.add
        for row, (name, value) in enumerate(zip(names, records.as_list(), strict=True)):
            stored = known.get(name)
            try:
                count, accumulator = (0, create()) if stored is None else stored
                known[name] = [count + 1, add(accumulator, value)]
            except Exception as error:  # user code may raise any exception
                refuse(row, error)
        states.touch(names)
        return rows_of_results([])

    def _add_many(self, states: StateAccess, keys: pa.Array, add_many: Callable[[Any, int], Any]) -> None:
        """Add the records of each key at once."""
        encoded = keys.dictionary_encode()
        names = [b"k" + key for key in encoded.dictionary.to_pylist()]
        numbers = np.bincount(encoded.indices.to_numpy(), minlength=len(names)).tolist()
        known = states.take(names)
        for name, number in zip(names, numbers, strict=True):
            count, accumulator = known.get(name) or (0, self.aggregate.create())
            known[name] = [count + number, add_many(accumulator, number)]
        states.touch(names)

    def _add_values(self, states: StateAccess, keys: pa.Array, values: GroupedValues, refuse: Refuse) -> None:
        """Add the values of each key at once."""
        encoded = keys.dictionary_encode()
        names = [b"k" + key for key in encoded.dictionary.to_pylist()]
        known = states.take(names)
        for slot, rows in in_groups(encoded.indices.to_numpy()):
            name = names[slot]
            count, accumulator = known.get(name) or (0, self.aggregate.create())
            accumulator, number = values.add(accumulator, rows.tolist(), refuse)
            if count + number:
                known[name] = [count + number, accumulator]
        states.touch(names)

    def end(self, states: StateAccess) -> Iterator[list[Result]]:
        """Yield the totals, in the order of their keys. Without keys there is always one total, even without
        records."""
        is_empty = True
        for taken in take_in_order(states):
            is_empty = False
            yield [(0, (0, key, 0), key, self._total(key, *stored)) for key, stored in taken]
        if is_empty and not self.is_keyed:
            yield [(0, (0, NO_KEY, 0), NO_KEY, self._total(NO_KEY, 0, self.aggregate.create()))]

    def _total(self, key: bytes, count: int, accumulator: Any) -> dict[str, Any]:
        try:
            value = own(self.aggregate.finish(accumulator))
        except Exception as error:
            raise PlanError(
                f"the `finish` of an aggregate raised {type(error).__name__}: {error}",
                next_step="correct it and start again: nothing of this epoch is committed, and it runs again",
            ) from error
        named = {"key": self.keys.decode(key)} if self.is_keyed else {}
        return named | {"count": count, "value": value}
