"""Stages with state: the key that each takes, and what their arguments may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from procession import aggregates, windows
from procession.api.pipeline import Pipeline
from procession.api.stage import Stage
from procession.errors import PlanError
from procession.planner.graph import Kind
from procession.planner.keys import RecordKey

KEYED: dict[str, Callable[[Stage], Stage]] = {
    "map_stateful": lambda stage: stage.map_stateful(divmod),
    "filter_stateful": lambda stage: stage.filter_stateful(divmod),
    "flat_map_stateful": lambda stage: stage.flat_map_stateful(divmod),
    "reduce": lambda stage: stage.reduce(max),
    "rolling": lambda stage: stage.rolling(aggregates.count()),
    "distinct": lambda stage: stage.distinct(),
    "join": lambda stage: stage.join(stage.filter(bool), within_s=1, join=max),
}


@pytest.mark.parametrize("word", KEYED)
def test_a_keyed_stage_has_the_key_of_the_key_by_before_it_or_is_refused_with_what_to_write(word: str) -> None:
    source = Pipeline("p").source()
    before = source.key_by(len).map(list).rebalance(parallelism=3).flat_map(list).merge(source.key_by(max))
    stage = KEYED[word](before)
    assert stage._pipeline._nodes[-1].key == RecordKey((len, max) if word != "join" else (len, max, len, max))
    without_key = {
        "no key_by": source.map(list),
        "another key": source.key_by(len).rebalance(max).map(list),
        "a stage's own key": source.key_by(len).reduce(max, key=max),
        "windows": source.key_by(len).window(windows.counting(3), aggregates.count()),
        "a transform": source.key_by(len).transform(list),
    }
    for what, place in without_key.items():
        with pytest.raises(PlanError, match="no key") as caught:
            KEYED[word](place)
        assert "key=" in caught.value.next_step, what
        assert "key_by" in caught.value.next_step, what
    with pytest.raises(PlanError, match="and records of 'source' without one") as caught:
        KEYED[word](source.key_by(len).merge(source.map(list)))
    assert "after the merge" in caught.value.next_step


def test_windows_and_aggregates_use_the_key_of_key_by_and_their_results_have_no_key() -> None:
    source = Pipeline("p").source()
    for way, kinds in ((source, ("window", "aggregate")), (source.key_by(len), ("window_by_key", "aggregate_by_key"))):
        nodes = way._pipeline._nodes
        totals = way.window(windows.counting(3), aggregates.count())
        assert nodes[-1].kind.value == kinds[0]
        way.aggregate(aggregates.count())
        assert nodes[-1].kind.value == kinds[1]
        totals.aggregate(aggregates.collect())
        assert nodes[-1].kind is Kind.AGGREGATE
    source.key_by(len).reduce(max).distinct()
    assert nodes[-1].key == RecordKey((len,)), "a stage that uses the key passes it on"


def counted(state: int, value: Any) -> tuple[int, Any]:
    return state + 1, value


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"initial": object()}, "initial"),
        ({"ttl_s": 0}, "ttl_s"),
        ({"on_evict": max}, "on_evict"),
        ({"ttl_s": 1, "on_evict": 7}, "on_evict=7"),
        ({"time": len}, "has time, but its states never expire"),
        ({"key": 7}, "key=7"),
    ],
)
def test_an_invalid_argument_of_a_stage_with_state_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence) as caught:
        Pipeline("p").source().map_stateful(counted, **({"key": len, "initial": 0} | options))
    assert caught.value.next_step


async def awaited(state: int, value: Any) -> tuple[int, Any]:
    return state, value


@pytest.mark.parametrize("function", [7, None, awaited])
@pytest.mark.parametrize("word", ["map_stateful", "filter_stateful", "flat_map_stateful", "reduce"])
def test_an_async_step_is_refused(word: str, function: Any) -> None:
    with pytest.raises(PlanError, match=rf"\.{word}\(\) was given"):
        getattr(Pipeline("p").source(), word)(function, key=len)


def test_an_argument_that_is_not_an_aggregate_or_window_is_refused() -> None:
    source = Pipeline("p").source()
    with pytest.raises(PlanError, match="aggregate"):
        source.aggregate(max)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="window"):
        source.window(5, aggregates.count())  # type: ignore[arg-type]
