"""Aggregates over columns: how many values of an expression are added to a state at once.

Invariant: a state is the same as if the values had been added one after the other, in order. Sums are added from left
to right, so that sums of floats have the same bits. Used by `operators/aggregates`, `operators/window_operator` and
`operators/total`. Pure.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from procession.operators.column_stages import computed
from procession.operators.column_values import NotColumnar, is_records
from procession.operators.expressions import Expression
from procession.operators.operator import Refuse
from procession.operators.stage_rows import Numbers, StageRows

if TYPE_CHECKING:
    from procession.operators.aggregates import Aggregate


@dataclass(frozen=True)
class ColumnAdd:
    """How values of a function of a record are added, if it is an expression."""

    of: Callable[[Any], Any]
    add_all: Callable[[Any, Sequence[Any]], Any]
    """`add_all(state, values)` returns the state after these values, in order."""

    @property
    def expression(self) -> Expression | None:
        """The function, if it is computed on columns."""
        return self.of if isinstance(self.of, Expression) else None

    def takes(self, kind: pa.DataType) -> bool:
        """Whether values of this type are added at once."""
        is_kept = self.add_all in (keep_first, keep_last)
        return bool(kind in (pa.int64(), pa.float64()) or (is_kept and types.is_string(kind)))


def add_counts(held: int, number: int) -> int:
    """Add a number of records to a count."""
    return held + number


def add_sums(held: Any, values: Sequence[Any]) -> Any:
    """Add numbers to a sum, from left to right. The built-in `sum` would round floats in another way."""
    return reduce(operator.add, values, held)


def add_means(held: tuple[int, Any], values: Sequence[Any]) -> tuple[int, Any]:
    """Add numbers to a count and a sum."""
    return held[0] + len(values), reduce(operator.add, values, held[1])


def keep_first(held: list[Any], values: Sequence[Any]) -> list[Any]:
    """Keep the first value."""
    return held or [values[0]]


def keep_last(held: list[Any], values: Sequence[Any]) -> list[Any]:
    """Keep the last value."""
    return [values[-1]]


def is_count(aggregate: Aggregate) -> bool:
    """Whether this is the number of records, unchanged."""
    return aggregate.add_many is add_counts and aggregate.finish is type(aggregate).finish


class GroupedValues:
    """The values of records in columns, added to the states of their groups."""

    def __init__(self, over: ColumnAdd, values: list[Any]) -> None:
        self._add_all = over.add_all
        self._values = values

    @classmethod
    def of(cls, over: ColumnAdd | None, records: StageRows) -> GroupedValues | None:
        """The value of each record. None if records must be added one by one: they are objects, or a value is not
        plain."""
        if (
            over is None
            or over.expression is None
            or isinstance(records.values, list)
            or not is_records(records.values)
        ):
            return None
        try:
            kind = over.expression.type_in(records.values.type)
        except NotColumnar:
            return None
        found = computed(over.expression, records.values) if over.takes(kind) else None
        if found is None or found.errors or isinstance(found.values, list) or found.values.null_count:
            return None
        return cls(over, found.values.to_pylist())

    def add(self, held: Any, rows: Sequence[int], refuse: Refuse) -> tuple[Any, int]:
        """Add the values of these rows to a state. Returns the state, and how many were added."""
        values = self._values
        try:
            return self._add_all(held, [values[row] for row in rows]), len(rows)
        except Exception:  # such as a sum beyond all floats; one by one, to find the value
            added = 0
            for row in rows:
                try:
                    held = self._add_all(held, [values[row]])
                    added += 1
                except Exception as error:
                    refuse(row, error)
            return held, added


def in_groups(codes: Numbers) -> Iterator[tuple[int, Numbers]]:
    """The places of each group, in order: (code of the group, places)."""
    order = np.argsort(codes, kind="stable")
    found, firsts = np.unique(codes[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, firsts[1:]) if len(order) else [], strict=True)
