"""Splits: the nodes that a split adds, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from procession import Pipeline, PlanError
from procession.api.splits import OUTPUTS_MAX
from procession.planner.graph import Kind


def test_a_split_without_names_has_two_outputs_after_one_call() -> None:
    pipeline = Pipeline("p")
    outputs = pipeline.source("in").split(bool)
    _, split, *nodes = pipeline._nodes
    assert len(outputs) == 2
    assert (split.kind, split.name, split.is_named) == (Kind.SPLIT, "split-1", False)
    assert [(node.kind, node.name, node.parents, node.output) for node in nodes] == [
        (Kind.OUTPUT, "split-1-true", (1,), 0),
        (Kind.OUTPUT, "split-1-false", (1,), 1),
    ]
    assert [stage._index for stage in outputs] == [2, 3]


def test_named_outputs_come_in_the_order_of_their_names() -> None:
    pipeline = Pipeline("p")
    pipeline.source("in").split(str, "sale", "refund", "gift", name="kinds", parallelism=3)
    _, split, *nodes = pipeline._nodes
    assert (split.is_named, split.parallelism) == (True, 3)
    assert [(node.name, node.output, node.is_named) for node in nodes] == [
        ("kinds-sale", 0, True),
        ("kinds-refund", 1, True),
        ("kinds-gift", 2, True),
    ]


@pytest.mark.parametrize(
    ("outputs", "options", "sentence"),
    [
        (("a",), {}, "has the outputs 'a'"),
        (("a", "b", "a"), {}, "has the outputs 'a', 'b', 'a'"),
        (tuple(f"o{number}" for number in range(OUTPUTS_MAX + 1)), {}, "has the outputs"),
        (("a", "b/c"), {}, "'b/c' cannot name an output of a split"),
        (("a", "b"), {"name": "x.y"}, "'x.y' cannot name a stage"),
        (("a", "b"), {"value": lambda: None}, "cannot be called with one argument"),
    ],
)
def test_invalid_outputs_of_a_split_are_refused(outputs: tuple[str, ...], options: Any, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        Pipeline("p").source().split(str, *outputs, **options)


def test_a_tag_must_be_a_function_of_one_record() -> None:
    with pytest.raises(PlanError, match=r"\.split\(\) was given 'a'"):
        Pipeline("p").source().split("a", "b")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"\.split\(\) was given None"):
        Pipeline("p").source().split(None)  # type: ignore[arg-type]


def test_a_split_with_the_largest_number_of_outputs_is_accepted() -> None:
    assert len(Pipeline("p").source().split(str, *(f"o{number}" for number in range(OUTPUTS_MAX)))) == OUTPUTS_MAX
