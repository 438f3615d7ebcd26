"""Values in Arrow columns, and the rows for which Arrow and Python might have different results.

Invariant: Python computes each *doubtful* row alone, and the result takes its place among the others. So columns change
the speed and never a result. Used by `operators/expressions`, `operators/column_parser` and `operators/stage_rows`.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

Flags = npt.NDArray[np.bool_]

EXACT_MAX = 2**53
"""Integers up to this size are exact as floats. Larger integers may not be."""


class NotColumnar(Exception):
    """An expression cannot be computed for columns of these types. Its text says why."""


class ColumnValues(NamedTuple):
    """The values of an expression, and the doubtful rows (None: there are none)."""

    values: pa.Array
    doubts: Flags | None = None


class Settled(NamedTuple):
    """Values without doubtful rows."""

    values: pa.Array | list[Any]
    """A column, or a list if a value does not fit the column."""
    rows: list[int] | None
    """The rows that have a value (None: all rows)."""
    errors: list[tuple[int, Exception]]
    """The errors that Python raised for the other rows."""


def settled(column: ColumnValues, value_of: Callable[[int], Any]) -> Settled:
    """Return the values of a column, with doubtful values computed by Python."""
    values, doubts = column
    if doubts is None or not doubts.any():
        return Settled(values, None, [])
    found: dict[int, Any] = {}
    errors: list[tuple[int, Exception]] = []
    for row in np.flatnonzero(doubts).tolist():
        try:
            found[row] = value_of(row)
        except Exception as error:  # user code may raise any exception
            errors.append((row, error))
    kept = np.ones(len(values), np.bool_)
    kept[[row for row, _ in errors]] = False
    rows = None if not errors else np.flatnonzero(kept).tolist()
    try:
        return Settled(_replaced(values, found, kept), rows, errors)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        listed = as_objects(values)
        for row, value in found.items():
            listed[row] = value
        return Settled(listed if rows is None else [listed[row] for row in rows], rows, errors)


def _replaced(values: pa.Array, found: dict[int, Any], kept: Flags) -> pa.Array:
    """Return the remaining values, with some of them replaced. Raises if a value does not fit."""
    if not found:
        return values.filter(pa.array(kept))
    others = pa.array(list(found.values()), values.type)
    if as_objects(others) != list(found.values()):
        raise pa.ArrowInvalid("a column would change a value")
    places = np.arange(len(values), dtype=np.int64)
    places[list(found)] = len(values) + np.arange(len(found))
    return pa.concat_arrays([values, others]).take(pa.array(places[kept]))


def as_objects(values: pa.Array) -> list[Any]:
    """Return the values of a column as the Python objects that the source's codec would make."""
    kind = values.type
    if types.is_struct(kind):
        names = [field.name for field in kind]
        columns = [as_objects(values.field(place)) for place in range(kind.num_fields)]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    if types.is_timestamp(kind) and kind.tz is not None:  # Arrow and Python have different objects for UTC
        local = values.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us")).to_pylist()
        return [None if time is None else time.replace(tzinfo=UTC) for time in local]
    listed: list[Any] = values.to_pylist()
    return listed


def is_records(values: pa.Array | list[Any]) -> bool:
    """Whether these are records in columns."""
    return not isinstance(values, list) and types.is_struct(values.type)


def nulls(values: pa.Array) -> Flags | None:
    """Return which values are None."""
    return pc.is_null(values).to_numpy(zero_copy_only=False) if values.null_count else None


def large(values: pa.Array) -> Flags | None:
    """Return which of these integers may not be exact as floats."""
    if values.type != pa.int64():
        return None
    numbers = pc.fill_null(values, 0).to_numpy()
    are_large: Flags = (numbers > EXACT_MAX) | (numbers < -EXACT_MAX)
    return are_large if are_large.any() else None


def any_of(*flags: Flags | None) -> Flags | None:
    """Return which rows have at least one of these flags."""
    found: Flags | None = None
    for more in flags:
        if more is not None:
            found = more if found is None else found | more
    return found


def joined_columns(parts: Sequence[pa.Array | list[Any]]) -> pa.Array | list[Any]:
    """Return the values of these parts, one after the other: as a column, if all are columns of one type."""
    kinds = {None if isinstance(part, list) else part.type for part in parts}
    if len(kinds) == 1 and None not in kinds:
        return pa.concat_arrays(parts)
    return [value for part in parts for value in (part if isinstance(part, list) else as_objects(part))]
