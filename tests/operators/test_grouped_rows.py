"""Aggregates that only count: what they give when records are added at once is what they give one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from procession import Aggregate, Pipeline, aggregates, col, windows
from procession.operators import value_codec
from procession.operators.column_aggregates import is_count
from procession.operators.grouped_rows import KeyedRows
from procession.operators.keyed import KeyedOperator
from procession.operators.value_codec import ValueCodec
from procession.operators.window_operator import TimeWindowOperator
from procession.testing import run

TWICE = Aggregate(int, lambda held, _: held + 2, add_many=lambda held, n: held + 2 * n, finish=str)
"""An aggregate of a user that does not look at records."""


def one_by_one(aggregate: Aggregate) -> Aggregate:
    return replace(aggregate, add_many=None)


def counting_pipeline(many: Any) -> Pipeline:
    pipeline = Pipeline("p", dead_letter="file:o", parallelism=2)
    count, twice = many(aggregates.count()), many(TWICE)
    source = pipeline.source("s", codec="json", streams=["a"])
    other = pipeline.source("t", codec="json", streams=["b"])
    options: Any = {"key": lambda record: record[0], "time": lambda record: record[1]}
    for late in ("drop", "fire", "oldest", "dead-letter"):
        windowed = source.window(windows.tumbling(4), count, lateness_s=2, late=late, **options)
        windowed.sink(f"windows-{late}", to="file:o")
    updated = source.window(windows.tumbling(4), twice, late="update", updates_s=5, **options)
    updated.sink("updated", to="file:o")
    source.merge(other).window(windows.tumbling(4), count, **options).sink("two-inputs", to="file:o")
    source.window(windows.sliding(8, every_s=4), count, **options).sink("sliding", to="file:o")
    source.window(windows.session(3), count, **options).sink("sessions", to="file:o")
    source.window(windows.calendar("day"), count, **options).sink("days", to="file:o")
    source.window(windows.tumbling(4), count, early_records=2, **options).sink("early", to="file:o")
    source.window(windows.counting(3), count, key=options["key"]).sink("threes", to="file:o")
    source.rolling(count, key=options["key"]).sink("rolling", to="file:o")
    source.rolling(twice, key=options["key"]).sink("rolling-twice", to="file:o")
    source.rolling(count, ttl_s=5, **options).sink("expiring", to="file:o")
    source.aggregate(twice, key=options["key"]).sink("totals", to="file:o")
    source.aggregate(count).sink("total", to="file:o")
    return pipeline


RECORDS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)).map(list), max_size=30)


@given(RECORDS, RECORDS, st.lists(st.integers(1, 9), max_size=3), st.sampled_from([1, 3]))
def test_i11_records_that_are_counted_at_once_give_what_they_give_one_by_one(
    some: list[Any], others: list[Any], epochs: list[int], tasks: int
) -> None:
    sent = [("s", record) for record in some] + [("t", record) for record in others]
    sent = sent[::2] + sent[1::2]
    expected = run(counting_pipeline(one_by_one), sent)
    found = run(counting_pipeline(lambda aggregate: aggregate), sent, epochs=epochs or None, parallelism=tasks)
    assert found.bytes == expected.bytes


def test_records_are_neither_packed_nor_decoded_if_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("who", pa.string()), ("at", pa.int64())])
    pipeline = Pipeline("p", parallelism=2)
    source = pipeline.source("s", codec="json", schema=schema)
    source.window(windows.tumbling(4), aggregates.count(), key=col("who"), time=col("at")).sink("w", to="file:o")
    source.rolling(aggregates.count(), key=col("who")).sink("r", to="file:o")
    source.aggregate(aggregates.count(), key=col("who")).sink("t", to="file:o")
    monkeypatch.setattr(value_codec, "packed_records", lambda _: pytest.fail("records were packed"))
    monkeypatch.setattr(ValueCodec, "unpack", lambda *_: pytest.fail("records were decoded"))
    read = {form: lambda *_: pytest.fail("a record was decoded") for form in range(3)}
    monkeypatch.setattr(ValueCodec, "read", read)
    monkeypatch.setattr(TimeWindowOperator, "add_record", lambda *_: pytest.fail("a record was added alone"))
    found = run(pipeline, {"s": [{"who": "a", "at": 1}, {"who": "b", "at": 2}, {"who": "a", "at": 3}]}, epochs=2)
    assert found["r"] == [1, 1, 2]
    assert [(result["key"], result["value"]) for result in found["w"]] == [("a", 2), ("b", 1)]
    assert [(result["key"], result["value"]) for result in found["t"]] == [("a", 2), ("b", 1)]


def test_only_the_plain_count_rolls_at_once() -> None:
    reads = {
        name: KeyedOperator(None, aggregate.step, int).state.reads_records  # type: ignore[arg-type]
        for name, aggregate in {
            "count": aggregates.count(),
            "shown": replace(aggregates.count(), finish=str),
            "twice": TWICE,
            "sum": aggregates.sum_of(),
        }.items()
    }
    assert reads == {"count": False, "shown": True, "twice": True, "sum": True}


def test_a_count_is_still_one_in_another_process() -> None:
    shipped = cloudpickle.loads(cloudpickle.dumps([aggregates.count(), TWICE]))
    assert list(map(is_count, shipped)) == [True, False]


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(-30, 30), st.booleans()), max_size=40),
    st.integers(1, 9),
)
def test_groups_are_the_rows_of_each_key_and_window(rows: list[tuple[bytes, int, bool]], size: int) -> None:
    keys = pa.array([key for key, _, _ in rows], pa.binary())
    keyed = KeyedRows(keys, np.array([time for _, time, _ in rows], np.int64), size)
    chosen = [row for row, (_, _, is_chosen) in enumerate(rows) if is_chosen]
    expected: dict[tuple[bytes, int], int] = {}
    for row in chosen:
        key, time, _ = rows[row]
        (end,) = windows.Windows(size, size).ends(time)
        expected[key, end] = expected.get((key, end), 0) + 1
    found = list(keyed.groups(np.array(chosen, np.int64)))
    assert {(key, end): number for key, end, number in found} == expected
    assert len(found) == len(expected)
    assert [end for _, end, _ in found] == sorted(end for _, end, _ in found)
