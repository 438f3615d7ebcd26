"""Matches: the node that `match` adds, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from procession import Pipeline, PlanError, patterns
from procession.operators.pattern_match import PatternOperator
from procession.operators.patterns import SkipRule
from procession.planner.graph import Kind
from procession.planner.keys import RecordKey

TWO = patterns.begin("first", bool).then("second", bool)


def test_a_match_is_one_node_with_its_bounds_in_nanoseconds() -> None:
    pipeline = Pipeline("p")
    pipeline.source().match(TWO, within_s=2, key=len, time=len, unit="ms", lateness_s=0.5, skip="none", name="m")
    node = pipeline._nodes[-1]
    assert (node.kind, node.name, node.key, node.time, node.unit) == (Kind.MATCH, "m", len, len, "ms")
    operator = node.operator
    assert isinstance(operator, PatternOperator)
    assert (operator.within, operator.lateness, operator.skip) == (2 * 10**9, 5 * 10**8, SkipRule.NONE)


def test_a_stage_without_a_key_uses_that_of_key_by() -> None:
    pipeline = Pipeline("p")
    pipeline.source().key_by(len).match(TWO, within_s=1)
    assert pipeline._nodes[-1].key == RecordKey((len,))
    with pytest.raises(PlanError, match="no key"):
        Pipeline("p").source().match(TWO, within_s=1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"pattern": bool}, "which is not a pattern"),
        ({"within_s": 0}, "within_s"),
        ({"lateness_s": -1}, "lateness_s"),
        ({"skip": "all"}, "skip='all' is not known"),
        ({"late": "keep"}, "late='keep' is not known"),
        ({"unit": "h"}, "unit='h' is not known"),
        ({"time": lambda: 0}, "cannot be called with one argument"),
    ],
)
def test_an_invalid_argument_is_refused_with_a_next_step(arguments: dict[str, Any], sentence: str) -> None:
    given: dict[str, Any] = {"pattern": TWO, "within_s": 1, "key": len} | arguments
    with pytest.raises(PlanError, match=sentence) as caught:
        Pipeline("p").source().match(given.pop("pattern"), **given)
    assert caught.value.next_step
