"""Values in columns: rows that columns cannot compute exactly are computed by Python and put back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from procession.operators.column_values import (
    ColumnValues,
    any_of,
    as_objects,
    is_records,
    joined_columns,
    settled,
)


def python(row: int) -> Any:
    if row == 1:
        raise ValueError("one")
    return row * 10


def doubtful(*rows: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    flags = np.zeros(5, np.bool_)
    flags[list(rows)] = True
    return flags


VALUES = pa.array([0, 1, 2, 3, 4])


def test_a_column_without_doubtful_rows_is_unchanged() -> None:
    for doubts in (None, doubtful()):
        found = settled(ColumnValues(VALUES, doubts), python)
        assert found.values is VALUES
        assert (found.rows, found.errors) == (None, [])


def test_doubtful_rows_are_replaced_and_those_that_raise_are_left_out() -> None:
    found = settled(ColumnValues(VALUES, doubtful(1, 3)), python)
    assert found.values.to_pylist() == [0, 2, 30, 4]  # type: ignore[union-attr]
    assert found.rows == [0, 2, 3, 4]
    assert [(row, str(error)) for row, error in found.errors] == [(1, "one")]
    only_errors = settled(ColumnValues(VALUES, doubtful(1)), python)
    assert only_errors.values.to_pylist() == [0, 2, 3, 4]  # type: ignore[union-attr]


def test_a_value_that_the_column_cannot_hold_makes_a_list_of_all() -> None:
    found = settled(ColumnValues(VALUES, doubtful(1, 2)), lambda row: python(row) * 2**70)
    assert found.values == [0, 20 * 2**70, 3, 4]
    assert found.rows == [0, 2, 3, 4]


def test_records_become_dicts_with_times_of_python() -> None:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    kind = pa.struct([("at", pa.timestamp("ms", "UTC")), ("n", pa.int8())])
    records = pa.array([{"at": at, "n": 1}, {"at": None, "n": None}], kind)
    assert repr(as_objects(records[1:])) == repr([{"at": None, "n": None}])
    assert repr(as_objects(records)) == repr([{"at": at, "n": 1}, {"at": None, "n": None}])
    assert is_records(records)
    assert not is_records([{}])
    assert not is_records(VALUES)


def test_parts_of_one_type_stay_a_column_and_others_become_a_list() -> None:
    assert joined_columns([VALUES, VALUES]).to_pylist() == [*range(5), *range(5)]  # type: ignore[union-attr]
    assert joined_columns([VALUES, ["a"], pa.array(["b"])]) == [*range(5), "a", "b"]


def test_a_row_is_flagged_if_one_of_the_flags_is() -> None:
    assert any_of(None, None) is None
    found = any_of(doubtful(1), None, doubtful(3))
    assert found is not None
    assert np.flatnonzero(found).tolist() == [1, 3]
