"""Totals: no result before the end, then one for each key, in the order of keys."""

from __future__ import annotations

from typing import Any

import pytest

from procession import Aggregate, Pipeline, PlanError, aggregates
from procession.testing import run


def totals(records: list[Any], aggregate: Aggregate, key: Any = None, **how: Any) -> list[Any]:
    pipeline = Pipeline("totals", parallelism=2)
    lines = pipeline.source("lines", codec="json", ends=True)
    lines.aggregate(aggregate, key=key).sink("out", to="file:out", codec="json")
    return run(pipeline, {"lines": records}, **how)["out"]


def first_letter(word: str) -> str:
    return word[0]


def test_there_is_one_total_for_each_key_in_the_order_of_keys() -> None:
    found = totals(["b1", "a1", "b2"], aggregates.collect(), first_letter, epochs=1)
    assert found == [
        {"key": "a", "count": 1, "value": ["a1"]},
        {"key": "b", "count": 2, "value": ["b1", "b2"]},
    ]


def test_without_a_key_there_is_one_total_even_of_no_records() -> None:
    assert totals(["b", "a"], aggregates.collect()) == [{"count": 2, "value": ["b", "a"]}]


def test_a_record_that_cannot_be_added_is_an_error_of_the_record_and_the_total_continues() -> None:
    pipeline = Pipeline("totals", dead_letter="file:letters")
    lines = pipeline.source("lines", codec="json", ends=True)
    lines.aggregate(aggregates.sum_of()).sink("out", to="file:out", codec="json")
    found = run(pipeline, {"lines": [1, "x", 2]})
    assert found["out"] == [{"count": 2, "value": 3}]
    assert len(found["dead-letter"]) == 1


def test_a_finish_that_raises_stops_the_pipeline_with_a_next_step() -> None:
    def broken(_: Any) -> Any:
        raise ValueError("no total")

    with pytest.raises(PlanError, match="the `finish` of an aggregate raised ValueError: no total"):
        totals([1], Aggregate(int, lambda held, value: held + value, broken))
