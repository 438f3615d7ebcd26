"""Values in Arrow columns, and the rows of which Arrow and Python might think differently.

Invariant: a row that is *doubtful* is computed by Python, record by record, and takes its place among the others again.
So columns change the speed and never a result. Used by `operators/expressions`, `operators/column_parser` and
`operators/stage_rows`. Pure.
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
"""Larger integers are not all exact as floats."""


class NotColumnar(Exception):
    """An expression cannot be computed for columns of these types. Its text says why."""


class ColumnValues(NamedTuple):
    """The values of an expression, and the rows that are doubtful (None: none is)."""

    values: pa.Array
    doubts: Flags | None = None


class Settled(NamedTuple):
    """Values of which none is doubtful any more."""

    values: pa.Array | list[Any]
    """A list, if one of them does not fit the column."""
    rows: list[int] | None
    """The rows that have a value (None: all of them)."""
    errors: list[tuple[int, Exception]]
    """What Python raised for the other rows."""


def settled(column: ColumnValues, value_of: Callable[[int], Any]) -> Settled:
    """The values of a column, where doubtful ones are what Python says."""
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
    """The values that are kept, with others in some places. Raises if one does not fit."""
    if not found:
        return values.filter(pa.array(kept))
    others = pa.array(list(found.values()), values.type)
    if as_objects(others) != list(found.values()):
        raise pa.ArrowInvalid("a column would change a value")
    places = np.arange(len(values), dtype=np.int64)
    places[list(found)] = len(values) + np.arange(len(found))
    return pa.concat_arrays([values, others]).take(pa.array(places[kept]))


def as_objects(values: pa.Array) -> list[Any]:
    """The values of a column as Python objects: those that the codec of the source would have made."""
    kind = values.type
    if types.is_struct(kind):
        names = [field.name for field in kind]
        columns = [as_objects(values.field(place)) for place in range(kind.num_fields)]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    if types.is_timestamp(kind) and kind.tz is not None:  # Arrow has another object for UTC than Python
        local = values.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us")).to_pylist()
        return [None if time is None else time.replace(tzinfo=UTC) for time in local]
    listed: list[Any] = values.to_pylist()
    return listed


def is_records(values: pa.Array | list[Any]) -> bool:
    """Whether these are records in columns."""
    return not isinstance(values, list) and types.is_struct(values.type)


def nulls(values: pa.Array) -> Flags | None:
    """Which of these are None."""
    return pc.is_null(values).to_numpy(zero_copy_only=False) if values.null_count else None


def large(values: pa.Array) -> Flags | None:
    """Which of these integers are not surely exact as floats."""
    if values.type != pa.int64():
        return None
    numbers = pc.fill_null(values, 0).to_numpy()
    are_large: Flags = (numbers > EXACT_MAX) | (numbers < -EXACT_MAX)
    return are_large if are_large.any() else None


def any_of(*flags: Flags | None) -> Flags | None:
    """Which rows have at least one of these flags."""
    found: Flags | None = None
    for more in flags:
        if more is not None:
            found = more if found is None else found | more
    return found


def joined_columns(parts: Sequence[pa.Array | list[Any]]) -> pa.Array | list[Any]:
    """The values of these parts, one after the other: as a column, if all are columns of one type."""
    kinds = {None if isinstance(part, list) else part.type for part in parts}
    if len(kinds) == 1 and None not in kinds:
        return pa.concat_arrays(parts)
    return [value for part in parts for value in (part if isinstance(part, list) else as_objects(part))]
