"""Stages on columns: a pipeline with expressions writes the same bytes as one with functions, for any batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession import Pipeline, aggregates, col, struct, windows
from procession.operators.column_stages import column_stages
from procession.operators.expressions import Expression
from procession.operators.record_schema import SchemaJson
from procession.operators.value_codec import ValueCodec
from procession.testing import run
from tests.operators.test_column_parser import CODEC, payloads

Form = Callable[[Expression], Any]


def as_expression(expression: Expression) -> Any:
    return expression


def as_function(expression: Expression) -> Any:
    """Return `expression` as a plain function of a record, which is not recognized as an expression."""
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
    # Functions in between, branches that are merged again, a state, and bytes that are no record
    changed = smaller.map(lambda record: {**record, "n": str(record["n"])}).filter(form(col("id") != "b"), name="again")
    changed.merge(smaller).sink("merged", to="file:o")
    counted = some.map_stateful(lambda state, value: (state + 1, [state, value]), key=form(col("id")), initial=0)
    counted.sink("counted", to="file:o")
    smaller.key_by(form(col("n"))).reduce(lambda before, _: before).sink("first", to="file:o")
    some.sink("bytes", to="file:o", codec="bytes")
    return pipeline


ON_COLUMNS = ["s", "some", "smaller", "others", "ids", "prices", "key-by-16"]


def test_the_stages_after_a_schema_use_columns_up_to_the_first_function() -> None:
    graph = whole_pipeline(as_expression).graph()
    found = column_stages(graph)
    assert [graph.nodes[index].name for index in sorted(found.types)] == ON_COLUMNS
    named = {node.name: index for index, node in enumerate(graph.nodes)}
    again, counted, reduced = named["again"], named["map-stateful-14"], named["reduce-17"]
    in_objects = "its field {!r} is {}, which passes an exchange in objects only"
    assert found.reasons == {
        again: f"the records of {graph.nodes[again - 1].name!r} are not in columns",
        counted: in_objects.format("price", "decimal128(6, 2)"),
        reduced: in_objects.format("at", "timestamp[us, tz=UTC]"),
    }
    without = column_stages(whole_pipeline(as_function).graph())
    assert (without.types, without.keyed, without.objects) == ({}, frozenset(), {})


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
    assert "\n  s: no stage with an expression follows it\n" in pipeline.explain()
    nested = Pipeline("p")
    schema = pa.schema([("parts", pa.list_(pa.int8())), ("n", pa.int8())])
    nested.source("s", codec="json", schema=schema).filter(col("n") > 1).sink("o", to="file:o")
    shown = nested.explain()
    assert "\n  s: its field 'parts' is nested\n  filter-1: the records of 's' are not in columns\n" in shown
    assert "on columns" not in shown


@given(st.lists(payloads, max_size=20), st.lists(st.integers(1, 7), max_size=3))
def test_records_that_only_go_to_a_json_sink_stay_columns(sent: list[bytes], epochs: list[int]) -> None:
    def pipeline_of(*, has_function: bool) -> Pipeline:
        pipeline = Pipeline("p", dead_letter="file:o")
        source = pipeline.source("s", codec="json", schema=CODEC.schema)
        (source.map(lambda record: record) if has_function else source).sink("o", to="file:o", codec="json")
        return pipeline

    assert list(column_stages(pipeline_of(has_function=False).graph()).types) == [0]
    expected = run(pipeline_of(has_function=True), {"s": sent}, dead_letter_share_max=1)
    found = run(pipeline_of(has_function=False), {"s": sent}, epochs=epochs or None, dead_letter_share_max=1)
    assert found.bytes == expected.bytes


def test_explain_shows_the_stages_on_columns() -> None:
    shown = whole_pipeline(as_expression).explain()
    names = "s, some (filter), smaller, others (filter), ids (map), prices (map), key-by-16"
    assert f"\non columns (whole batches, without an object for each record)\n  {names}\n" in shown


KEYS: dict[str, Expression] = {
    "text": col("id"),
    "number": col("n") // 2 + 1,  # beyond 64 bits, and of None
    "large": col("big"),
    "flag": col("is_on"),
    "float": col("x") * 1e308 - col("x") * 1e308,  # NaN for some, -0.0 for others
    "share": col("x") * -1,
    "none": col("n").is_null(),
}


def keyed_pipeline(form: Form, key: Expression) -> Pipeline:
    pipeline = Pipeline("p", dead_letter="file:o", parallelism=2)
    source = pipeline.source("s", codec="json", schema=CODEC.schema)
    fields = {name: col(name) for name in ("id", "n", "big", "is_on", "x")}
    plain = source.filter(form(~col("id").is_in(["a"]))).map(form(struct(**fields)), name="plain")
    first = plain.distinct(form(key), name="distinct")
    first.sink("distinct", to="file:o")
    first.filter(form(col("n") > 0), name="after-distinct").sink("some-distinct", to="file:o")
    keyed = plain.key_by(form(key), name="keys")
    keyed.rolling(aggregates.count(), name="rolling").sink("rolling", to="file:o")
    plain.rebalance(key=form(key), name="rebalance").sink("rebalanced", to="file:o")
    even = plain.rebalance(name="even", parallelism=3).map(form(struct(n=col("n"), id=col("id"))), name="after-even")
    even.sink("even", to="file:o")
    timed = keyed.add_timestamps(form(col("n")), name="times", unit="ms")
    timed.window(windows.tumbling(0.01), aggregates.last(), name="lasts").sink("lasts", to="file:o")
    options: Any = {"key": form(key), "time": form(col("n") * 3), "unit": "us", "late": "dead-letter"}
    plain.window(windows.tumbling(0.00001), aggregates.count(), name="windows", **options).sink("windows", to="file:o")
    return pipeline


keyed_payloads = st.fixed_dictionaries(
    {"id": st.sampled_from(["b", "c", "", "\x00", "é"])},
    optional={
        "n": st.none() | st.integers(-50, 50) | st.sampled_from([2**63 - 1, -(2**63)]),
        "big": st.sampled_from([0, 2**63 - 1, 2**63, 2**64 - 1]),
        "is_on": st.booleans(),
        "x": st.sampled_from([0.0, -0.0, 0.5, -0.5, 2.0, 1e308, -1e-300]),
    },
).map(lambda record: json.dumps(record).encode())
KEYED = ["distinct", "rolling", "rebalance", "lasts", "windows"]


@pytest.mark.parametrize("name", KEYS)
def test_keys_with_expressions_are_computed_on_columns(name: str) -> None:
    graph = keyed_pipeline(as_expression, KEYS[name]).graph()
    found = column_stages(graph)
    assert [graph.nodes[index].name for index in sorted(found.keyed)] == KEYED
    behind = {"distinct", "after-distinct", "even", "after-even", "rebalance"}
    assert {graph.nodes[index].name for index in found.types} == {"s", "filter-1", "plain", "keys", "times"} | behind
    assert found.reasons == {}
    assert {graph.nodes[index].name for index in found.objects} == {"lasts"}


def test_records_that_pass_an_exchange_stay_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ValueCodec, "decoded_value", lambda *_: pytest.fail("a record was decoded alone"))
    pipeline = Pipeline("p", parallelism=2)
    source = pipeline.source("s", codec="json", schema=CODEC.schema).map(struct(id=col("id"), n=col("n")))
    source.distinct(col("id")).filter(col("n") > 1).sink("distinct", to="file:o")
    source.rebalance(key=col("id")).sink("rebalanced", to="file:o")
    records = [{"id": "a", "n": 1}, {"id": "b", "n": None}, {"id": "c", "n": 2}, {"id": "a", "n": 3}]
    found = run(pipeline, {"s": [*records[:1], *records[2:]]})
    assert found["distinct"] == [{"id": "c", "n": 2}]
    assert found["rebalanced"] == [records[0], records[2], records[3]]


def test_an_exchange_before_functions_decodes_records_one_by_one() -> None:
    pipeline = Pipeline("p", parallelism=2)
    source = pipeline.source("s", codec="json", schema=pa.schema([("n", pa.int64())]))
    source.rebalance(name="even").map(lambda record: record["n"]).sink("o", to="file:o", codec="json")
    found = column_stages(pipeline.graph())
    assert (found.types, found.reasons) == ({}, {0: "no stage with an expression follows it"})


@given(
    name=st.sampled_from(sorted(KEYS)),
    sent=st.lists(payloads | keyed_payloads, max_size=20),
    epochs=st.lists(st.integers(1, 7), max_size=3),
    tasks=st.sampled_from([1, 3]),
)
def test_i11_keys_on_columns_are_those_of_functions_for_any_payloads_and_cuts(
    name: str, sent: list[bytes], epochs: list[int], tasks: int
) -> None:
    expected = run(keyed_pipeline(as_function, KEYS[name]), {"s": sent})
    found = run(keyed_pipeline(as_expression, KEYS[name]), {"s": sent}, epochs=epochs or None, parallelism=tasks)
    assert found.bytes == expected.bytes


def test_a_filter_that_is_not_true_or_false_goes_record_by_record() -> None:
    pipeline = Pipeline("p")
    pipeline.source("s", codec="json", schema=CODEC.schema).filter(col("n")).sink("o", to="file:o")
    assert "col('n') is int64, and not true or false" in pipeline.explain()
    assert [record["n"] for record in run(pipeline, {"s": [{"id": "a", "n": n} for n in (0, 1, None, 2)]})["o"]] == [
        1,
        2,
    ]
