"""Strategies: what is derived from the table of stages, for a stage as the user wrote it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from procession import Pipeline, aggregates, windows
from procession.planner.graph import Kind, Node
from procession.planner.order_key import PLACE
from procession.planner.strategies import (
    TABLE,
    Routing,
    StageRule,
    Tasks,
    is_by_clock,
    is_firing,
    is_timed,
    is_whole,
    key_of,
    numbers_behind,
    numbers_of,
    routing_of,
)


def node_of(add: Callable[[Any], Any]) -> Node:
    pipeline = Pipeline("p")
    add(pipeline.source())
    return pipeline._nodes[-1]


def total(state: int, value: Any) -> tuple[int, int]:
    return state + 1, state


PLAIN = node_of(lambda stage: stage.map(str))
KEYED = node_of(lambda stage: stage.map_stateful(total, key=len, initial=0))
EXPIRING = node_of(lambda stage: stage.map_stateful(total, key=len, initial=0, ttl_s=1, on_evict=max))
WINDOW = node_of(lambda stage: stage.window(windows.tumbling(1), aggregates.count(), key=len))
RULES = node_of(lambda stage: stage.with_broadcast(stage.filter(bool), apply=max))
MANY = node_of(lambda stage: stage.flat_map(list))
MANY_KEYED = node_of(lambda stage: stage.flat_map_stateful(total, key=len, initial=0))


@pytest.mark.parametrize("way", Routing)
def test_only_a_narrow_stage_needs_no_exchange(way: Routing) -> None:
    assert StageRule(way).is_exchange == (way is not Routing.NARROW)


def test_a_rebalance_is_by_key_if_it_has_one() -> None:
    even = node_of(lambda stage: stage.rebalance(parallelism=3))
    keyed = node_of(lambda stage: stage.rebalance(len))
    assert routing_of(even) is Routing.EVENLY
    assert routing_of(keyed) is Routing.BY_KEY
    assert key_of(keyed) is len
    assert key_of(KEYED) is len


def test_states_that_expire_give_a_stage_a_watermark() -> None:
    assert [is_timed(node) for node in (PLAIN, KEYED, EXPIRING, WINDOW)] == [False, False, True, True]
    assert [is_firing(node) for node in (PLAIN, KEYED, EXPIRING, WINDOW)] == [False, False, True, True]


def test_a_clock_advances_only_a_process_stage_that_uses_it() -> None:
    def timed(state: Any, record: Any, context: Any) -> Any: ...

    def fired(state: Any, context: Any) -> Any: ...

    pipeline = Pipeline("p")
    clock = pipeline.clock()
    pipeline.source("a", streams=["a"]).process(timed, on_timer=fired, key=len, clock=clock)
    assert is_by_clock(pipeline._nodes[-1])
    assert not is_by_clock(node_of(lambda stage: stage.process(timed, on_timer=fired, key=len)))
    assert not is_by_clock(PLAIN)


def test_states_of_a_task_and_not_of_a_key_cannot_be_redistributed() -> None:
    assert [is_whole(node) for node in (PLAIN, KEYED, WINDOW, RULES)] == [False, False, True, True]


def test_a_stage_adds_to_the_order_key_what_it_needs_to_order_its_results() -> None:
    assert [numbers_of(node) for node in (PLAIN, MANY, MANY_KEYED, WINDOW)] == [0, 1, 1, PLACE]
    assert [numbers_behind(node) for node in (PLAIN, MANY, MANY_KEYED, WINDOW)] == [0, 0, 1, PLACE]


def test_a_stage_that_needs_all_records_runs_in_one_task_and_one_by_key_in_its_own_number() -> None:
    for kind, rule in TABLE.items():
        if rule.way is Routing.TO_ONE:
            assert rule.tasks is Tasks.ONE, kind
        if rule.way is Routing.BY_KEY:
            assert rule.tasks is Tasks.OWN, kind
            assert rule.is_sensitive, kind
        if rule.is_timed:
            assert rule.is_firing, kind
    assert TABLE[Kind.SINK].is_sensitive
