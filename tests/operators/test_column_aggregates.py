"""Aggregates over columns: the same sums, to the last bit, and the same first and last values as record by record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession import Pipeline, aggregates, col, windows
from procession.operators import column_aggregates
from procession.operators.column_aggregates import ColumnAdd, GroupedValues, add_sums, in_groups
from procession.operators.column_stages import column_stages
from procession.operators.expressions import Expression
from procession.operators.stage_rows import StageRows
from procession.operators.value_codec import ValueCodec
from procession.operators.window_operator import TimeWindowOperator
from procession.testing import run
from tests.operators.test_column_stages import Form, as_expression, as_function

SCHEMA = pa.schema([("who", pa.string()), ("at", pa.int64()), ("n", pa.int64()), ("x", pa.float64())])
OVER: dict[str, tuple[Any, Expression]] = {
    "sum": (aggregates.sum_of, col("x")),
    "large": (aggregates.sum_of, col("n") * 3),
    "mean": (aggregates.mean, col("x") * 0.1),
    "first": (aggregates.first, col("n")),
    "last": (aggregates.last, col("who")),
    "divided": (aggregates.sum_of, 10 - col("n") // col("at")),
}


def summing_pipeline(form: Form) -> Pipeline:
    pipeline = Pipeline("p", dead_letter="file:o", parallelism=2)
    source = pipeline.source("s", codec="json", schema=SCHEMA)
    options: Any = {"key": form(col("who")), "time": form(col("at"))}
    for name, (aggregate, expression) in OVER.items():
        of = form(expression)
        source.aggregate(aggregate(of), key=options["key"], name=f"{name}-total").sink(f"{name}-total", to="file:o")
        windowed = source.window(
            windows.tumbling(4), aggregate(of), lateness_s=2, late="fire", name=f"{name}-window", **options
        )
        windowed.sink(f"{name}-window", to="file:o")
    of = form(col("x"))
    source.window(windows.tumbling(4), aggregates.sum_of(of), late="oldest", name="oldest", **options).sink(
        "oldest", to="file:o"
    )
    source.window(windows.tumbling(4), aggregates.last(of), time=options["time"], name="all").sink("all", to="file:o")
    updated = source.window(windows.tumbling(4), aggregates.mean(of), late="update", updates_s=5, name="up", **options)
    updated.sink("updated", to="file:o")
    return pipeline


RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "who": st.sampled_from(["a", "b", "c"]),
            "at": st.integers(0, 20),
            "n": st.one_of(st.integers(-5, 5), st.sampled_from([2**63 - 1, -(2**63)])),
            "x": st.sampled_from([0.1, 0.2, 0.3, -0.0, 1e16, -1e16, 1.0]),
        },
        optional={"other": st.none()},
    )
    | st.just({"who": "a", "at": 3}),
    max_size=25,
)


@given(RECORDS, st.lists(st.integers(1, 9), max_size=3), st.sampled_from([1, 3]))
def test_i11_values_that_are_added_at_once_give_what_they_give_one_by_one(
    records: list[Any], epochs: list[int], tasks: int
) -> None:
    expected = run(summing_pipeline(as_function), {"s": records}, dead_letter_share_max=1)
    found = run(
        summing_pipeline(as_expression),
        {"s": records},
        epochs=epochs or None,
        parallelism=tasks,
        dead_letter_share_max=1,
    )
    assert found.bytes == expected.bytes


def test_records_are_never_decoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline("p", parallelism=2)
    source = pipeline.source("s", codec="json", schema=SCHEMA)
    options: Any = {"key": col("who"), "time": col("at")}
    source.window(windows.tumbling(4), aggregates.sum_of(col("n")), name="w", **options).sink("w", to="file:o")
    source.aggregate(aggregates.last(col("n")), key=col("who"), name="t").sink("t", to="file:o")
    graph = pipeline.graph()
    found = column_stages(graph)
    assert {graph.nodes[index].name for index in found.arriving} == {"w", "t"}
    assert (found.objects, found.reasons) == ({}, {})
    read = {form: lambda *_: pytest.fail("it was decoded alone") for form in range(3)}
    monkeypatch.setattr(ValueCodec, "read", read)
    monkeypatch.setattr(TimeWindowOperator, "add_record", lambda *_: pytest.fail("it was added alone"))
    records = [{"who": "ab"[number % 2], "at": number, "n": number} for number in range(7)]
    made = run(pipeline, {"s": records}, epochs=3)
    assert [(one["key"], one["value"]) for one in made["w"]] == [("a", 2), ("b", 4), ("a", 10), ("b", 5)]
    assert [(one["key"], one["value"]) for one in made["t"]] == [("a", 6), ("b", 5)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("early", {"early_records": 3}),
        ("oldest", {"late": "oldest"}),
        ("of objects", {}),
        ("texts", {}),
    ],
)
def test_a_stage_that_must_add_records_one_by_one_gets_objects(name: str, options: dict[str, Any]) -> None:
    of: Any = {"of objects": lambda record: record["n"], "texts": col("who")}.get(name, col("n"))
    pipeline = Pipeline("p")
    source = pipeline.source("s", codec="json", schema=SCHEMA)
    windowed = source.window(
        windows.tumbling(4), aggregates.sum_of(of), key=col("who"), time=col("at"), name="w", **options
    )
    windowed.sink("o", to="file:o")
    found = column_stages(pipeline.graph())
    assert found.arriving == {}
    assert "a stage with state takes objects; its records pass the exchange as columns" in found.objects.values()


def test_sums_of_floats_are_added_from_left_to_right() -> None:
    values = [1e16, 1.0, -1e16, 0.1] * 5
    expected: Any = 0
    for value in values:
        expected += value
    assert add_sums(0, values) == expected
    assert add_sums(add_sums(0, values[:7]), values[7:]) == expected


def test_a_value_that_cannot_be_added_is_refused_alone() -> None:
    records = StageRows(pa.array([{"x": 0.5}, {"x": 1.5}]))
    values = GroupedValues.of(ColumnAdd(col("x"), failing_on(1.5)), records)
    assert values is not None
    refused: list[tuple[int, str]] = []
    added = values.add(0, [0, 1, 0], lambda row, error: refused.append((row, str(error))))
    assert added == (1.0, 2)
    assert refused == [(1, "too large")]


def failing_on(wrong: float) -> Any:
    def add_all(held: float, values: list[float]) -> float:
        if wrong in values:
            raise OverflowError("too large")
        return held + sum(values)

    return add_all


@pytest.mark.parametrize(
    "values",
    [[{"n": 1}, {"n": None}], [{"n": 2**62}], [{"n": "1"}], [{"m": 1}]],
    ids=["none", "large", "text", "other"],
)
def test_values_that_are_not_plain_are_added_one_by_one(values: list[dict[str, Any]]) -> None:
    records = StageRows(pa.array(values))
    assert GroupedValues.of(ColumnAdd(col("n") * 2, add_sums), records) is None
    assert GroupedValues.of(ColumnAdd(col("n"), column_aggregates.keep_first), StageRows(values)) is None


@given(st.lists(st.integers(0, 4), max_size=30))
def test_groups_have_their_places_in_order(codes: list[int]) -> None:
    found = {code: places.tolist() for code, places in in_groups(np.array(codes, np.int64))}
    assert found == {code: [place for place, other in enumerate(codes) if other == code] for code in sorted(set(codes))}
