"""Patterns: which records a step takes, which are excluded, and which mistakes are refused."""

from __future__ import annotations

from typing import Any

import pytest

from procession import PlanError, patterns
from procession.operators.patterns import Condition


def is_a(record: Any) -> bool:
    return bool(record == "a")


def is_new(record: Any, matched: Any) -> bool:
    return record not in matched["first"]


def test_a_predicate_with_two_parameters_gets_the_matched_records() -> None:
    assert Condition.of(is_a, "then").holds("a", {})
    assert not Condition.of(is_new, "then").holds("a", {"first": ["a"]})
    assert Condition.of(is_new, "then").holds("b", {"first": ["a"]})


def test_a_second_parameter_with_a_default_does_not_get_the_matched_records() -> None:
    assert not Condition.of(lambda record, limit=3: record < limit, "then").is_of_two


def test_a_built_in_without_a_signature_takes_the_record() -> None:
    assert not Condition.of(bool, "then").is_of_two


def test_a_step_takes_its_minimum_of_records_by_default() -> None:
    pattern = patterns.begin("first", is_a, at_least=2).then("rest", is_a, at_least=1, at_most=4)
    assert [(step.at_least, step.at_most, step.is_next) for step in pattern.steps] == [(2, 2, False), (1, 4, False)]
    assert pattern.next("last", is_a).steps[-1].is_next


def test_an_excluded_record_belongs_to_the_next_step_or_to_the_end() -> None:
    pattern = patterns.begin("first", is_a).without(is_a)
    assert len(pattern.without_after) == 1
    with_step = pattern.then("last", is_a)
    assert (len(with_step.steps[-1].without), with_step.without_after) == (1, ())


def test_the_shape_distinguishes_patterns_by_everything_but_their_predicates() -> None:
    pattern = patterns.begin("first", is_a)
    assert pattern.then("last", is_a).shape == pattern.then("last", bool).shape
    others = [
        pattern.then("last", is_a),
        pattern.next("last", is_a),
        pattern.then("other", is_a),
        pattern.then("last", is_a, at_most=2),
        pattern.without(is_a).then("last", is_a),
        pattern.then("last", is_a).without(is_a),
    ]
    assert len({other.shape for other in others}) == len(others)


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (lambda: patterns.begin("first", is_a).then("first", is_a), "two steps named 'first'"),
        (lambda: patterns.begin("first", is_a, at_least=3, at_most=2), "at least 3 records and at most 2"),
        (lambda: patterns.begin("first", is_a, at_least=0), "at_least=0"),
        (lambda: patterns.begin("", is_a), "cannot name a step"),
        (lambda: patterns.begin("first", lambda: True), "cannot be called with"),
    ],
)
def test_a_mistake_is_refused_where_it_is_made(mistake: Any, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        mistake()
