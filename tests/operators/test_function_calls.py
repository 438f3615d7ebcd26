"""Calls of functions and expressions: the same rows, keys, times and errors, whether values are objects or columns."""

from __future__ import annotations

import linecache
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from procession import Pipeline, col
from procession.operators import stage_rows
from procession.operators.expressions import Expression
from procession.operators.function_calls import FunctionCalls
from procession.operators.stage_rows import StageRows
from procession.planner.keys import PLAIN_KEYS
from procession.planner.rules import make_plan

RECORDS: list[dict[str, Any]] = [
    {"n": 1, "x": 0.5, "price": Decimal("1.50")},
    {"n": 0, "x": math.nan, "price": None},
    {"n": None, "x": -0.0, "price": Decimal("0.00")},
    {"n": 4, "x": None, "price": Decimal("-7.10")},
]
KIND = pa.struct([("n", pa.int64()), ("x", pa.float64()), ("price", pa.decimal128(8, 2))])


class Errors:
    """Dead letters that are only remembered: the origin of the row, and the reason."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []

    def add(self, stage: int, flow: StageRows, row: int, error: Exception) -> None:
        self.found.append((flow.origin(row), f"{type(error).__name__}: {error}"))


def calls() -> tuple[FunctionCalls, Errors]:
    pipeline = Pipeline("p")
    pipeline.source("s", codec="json").sink("o", to="file:o")
    errors = Errors()
    return FunctionCalls(make_plan(pipeline.graph()), PLAIN_KEYS, errors), errors  # type: ignore[arg-type]


def keyed(rows: StageRows, key: Expression) -> tuple[list[int], list[bytes], list[tuple[int, str]]]:
    made, errors = calls()
    flow = made._keyed_by(0, key, rows)
    assert flow.keys is not None
    return flow.all_origins().tolist(), flow.keys.to_pylist(), sorted(errors.found)


@pytest.mark.parametrize(
    "key", [col("n"), col("x"), col("price"), col("n") // col("n"), col("n") * 2**62, col("x") > 0, col("n").is_null()]
)
def test_keys_and_errors_are_the_same_for_objects_and_for_columns(key: Expression) -> None:
    by_column = keyed(StageRows(pa.array(RECORDS, KIND)), key)
    assert by_column == keyed(StageRows(list(RECORDS)), key)
    assert len(by_column[0]) + len(by_column[2]) == len(RECORDS)


@pytest.mark.parametrize("time", [col("n"), col("x"), col("n") + 1, col("price")])
def test_times_and_errors_are_the_same_for_objects_and_for_columns(time: Expression) -> None:
    found = []
    for values in (pa.array(RECORDS, KIND), list(RECORDS)):
        made, errors = calls()
        flow, times = made._timed_by(0, time, StageRows(values))
        found.append((flow.all_origins().tolist(), times.tolist(), sorted(errors.found)))
    assert found[0] == found[1]


def test_columns_stay_columns_when_keys_and_times_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_rows, "as_objects", lambda _: pytest.fail("the records became objects"))
    made, _ = calls()
    rows = StageRows(pa.array(RECORDS, KIND))
    for key in (col("x"), col("price"), col("n")):
        assert isinstance(made._keyed_by(0, key, rows).values, pa.StructArray)
        assert isinstance(made._timed_by(0, key, rows)[0].values, pa.StructArray)


def test_a_function_that_raises_on_a_record_is_called_for_the_others() -> None:
    made, errors = calls()
    results, rows = made._each(0, lambda record: 1 // record["n"], StageRows(list(RECORDS)))
    assert (results, rows) == ([1, 0], [0, 3])
    assert [row for row, _ in errors.found] == [1, 2]


def first_number(record: dict[str, Any]) -> Any:
    return record["n"] // record["n"]


def test_the_function_of_a_key_is_inlined_if_it_is_one_expression() -> None:
    """An error of an inlined function has a note, because its traceback does not name the function."""
    found = []
    for lines_of in (None, linecache.getlines):
        made, errors = calls()
        made.lines_of = lines_of
        notes: list[Any] = []
        add = errors.add

        def noted(stage: int, flow: StageRows, row: int, error: Exception, add: Any = add, to: Any = notes) -> None:
            to.append(getattr(error, "__notes__", None))
            add(stage, flow, row, error)

        errors.add = noted  # type: ignore[method-assign]
        flow, keys = made._evaluated(0, first_number, StageRows(list(RECORDS)))
        found.append((flow.all_origins().tolist(), keys, errors.found))
        assert all(("first_number" in str(note)) == (lines_of is not None) for note in notes)
        assert len(notes) == 2
    assert found[0] == found[1]
