"""Stages on columns: a pipeline with expressions writes the same bytes as one with functions, however it is cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession import Pipeline, col, struct
from procession.operators.column_stages import column_stages
from procession.operators.expressions import Expression
from procession.operators.record_schema import SchemaJson
from procession.testing import run
from tests.operators.test_column_parser import CODEC, payloads

Form = Callable[[Expression], Any]


def as_expression(expression: Expression) -> Any:
    return expression


def as_function(expression: Expression) -> Any:
    """The same for each record, of which nobody knows that it is an expression."""
    return lambda record: expression(record)


def whole_pipeline(form: Form) -> Pipeline:
    pipeline = Pipeline("p", dead_letter="file:o")
    source = pipeline.source("s", codec="json", schema=CODEC.schema)
    some = source.filter(form((col("n") > -100) | col("x").is_null()), name="some")
    some.sink("some", to="file:o")
    made = struct(id=col("id"), n=col("n"), twice=col("n") * 2, share=col("n") / col("small"), at=col("at"), one=1)
    smaller = some.map(form(made), name="smaller")
    smaller.filter(form(col("twice") != 7), name="others").sink("others", to="file:o")
    some.map(form(col("id")), name="ids").sink("ids", to="file:o", codec="text")
    some.map(form(col("price")), name="prices").sink("prices", to="file:o")
    # Functions in between, branches that meet again, a state, and bytes that a record is not
    changed = smaller.map(lambda record: {**record, "n": str(record["n"])}).filter(form(col("id") != "b"), name="again")
    changed.merge(smaller).sink("merged", to="file:o")
    counted = some.map_stateful(lambda state, value: (state + 1, [state, value]), key=form(col("id")), initial=0)
    counted.sink("counted", to="file:o")
    smaller.key_by(form(col("n"))).reduce(lambda before, _: before).sink("first", to="file:o")
    some.sink("bytes", to="file:o", codec="bytes")
    return pipeline


ON_COLUMNS = ["s", "some", "smaller", "others", "ids", "prices"]


def test_the_stages_behind_a_schema_are_on_columns_up_to_the_first_function() -> None:
    graph = whole_pipeline(as_expression).graph()
    found = column_stages(graph)
    assert [graph.nodes[index].name for index in sorted(found.types)] == ON_COLUMNS
    (again,) = (index for index, node in enumerate(graph.nodes) if node.name == "again")
    assert found.reasons == {again: f"the records of {graph.nodes[again - 1].name!r} are not in columns"}
    assert column_stages(whole_pipeline(as_function).graph()).types == {}


@given(st.lists(payloads, max_size=20), st.lists(st.integers(1, 7), max_size=4), st.integers(1, 3))
def test_i11_the_output_is_that_of_functions_for_any_payloads_and_cuts(
    sent: list[bytes], epochs: list[int], tasks: int
) -> None:
    expected = run(whole_pipeline(as_function), {"s": sent})
    found = run(whole_pipeline(as_expression), {"s": sent}, epochs=epochs or None, parallelism=tasks)
    assert found.bytes == expected.bytes


def test_records_of_plain_columns_are_never_decoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SchemaJson, "decode", lambda *_: pytest.fail("it was decoded alone"))
    pipeline = Pipeline("p")
    source = pipeline.source("s", codec="json", schema=CODEC.schema)
    source.filter(col("n") > 1).map(struct(n=col("n"))).sink("o", to="file:o")
    found = run(pipeline, {"s": [b'{"id":"a","n":%d}' % number for number in range(4)]})
    assert found["o"] == [{"n": 2}, {"n": 3}]


def test_a_source_whose_records_become_objects_at_once_is_decoded_one_by_one_and_explain_says_why() -> None:
    pipeline = Pipeline("p")
    pipeline.source("s", codec="json", schema=CODEC.schema).map(lambda record: record["n"]).sink("o", to="file:o")
    assert "\n  s: no filter or map with an expression follows it\n" in pipeline.explain()
    nested = Pipeline("p")
    schema = pa.schema([("parts", pa.list_(pa.int8())), ("n", pa.int8())])
    nested.source("s", codec="json", schema=schema).filter(col("n") > 1).sink("o", to="file:o")
    shown = nested.explain()
    assert "\n  s: its field 'parts' is nested\n  filter-1: the records of 's' are not in columns\n" in shown
    assert "on columns" not in shown


def test_explain_shows_the_stages_on_columns() -> None:
    shown = whole_pipeline(as_expression).explain()
    names = "s, some (filter), smaller, others (filter), ids (map), prices (map)"
    assert f"\non columns (whole batches, without an object for each record)\n  {names}\n" in shown


def test_a_filter_that_is_not_true_or_false_goes_record_by_record() -> None:
    pipeline = Pipeline("p")
    pipeline.source("s", codec="json", schema=CODEC.schema).filter(col("n")).sink("o", to="file:o")
    assert "col('n') is int64, and not true or false" in pipeline.explain()
    assert [record["n"] for record in run(pipeline, {"s": [{"id": "a", "n": n} for n in (0, 1, None, 2)]})["o"]] == [
        1,
        2,
    ]
