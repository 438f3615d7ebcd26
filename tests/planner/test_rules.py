"""The planner: every row of the table, order kept exactly where it is needed, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession import Pipeline, PlanError
from procession.planner.explain import explain
from procession.planner.graph import Graph, Kind, Node, Order
from procession.planner.plan import Plan
from procession.planner.rules import RUNS_MAX, check_runnable, make_plan
from procession.planner.strategies import STRATEGIES, TABLE, Routing, Strategy, Tasks, stage_rows, strategy_rows
from tests.planner.pipelines import PIPELINES, keep, same, words

DOCS = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "order.md"


def planned(pipeline: Pipeline) -> Plan:
    return make_plan(pipeline.graph())


def strategies(plan: Plan) -> dict[tuple[str, str], Strategy]:
    return {(plan.node(edge.before).name, plan.node(edge.after).name): edge.strategy for edge in plan.edges}


def graph_of(*kinds: Kind, order: Order = Order.TOTAL, parallelism: int = 4) -> Graph:
    """Return a chain of stages, also of kinds without a method yet. Each is named by its position."""
    nodes = [
        Node(
            kind,
            f"{kind.value}-{number}",
            (number - 1,) if number else (),
            None if kind is Kind.REBALANCE else same,
        )
        for number, kind in enumerate(kinds)
    ]
    return Graph("p", tuple(nodes), parallelism, order=order)


# The table


def test_every_kind_of_stage_and_every_strategy_has_its_row_and_the_docs_show_it() -> None:
    assert set(TABLE) == set(Kind)
    assert set(STRATEGIES) == set(Strategy)
    page = DOCS.read_text()
    for row in [*stage_rows(), *strategy_rows()]:
        assert f"| {' | '.join(row)} |" in page


KEYED = [kind for kind, row in TABLE.items() if row.has_state and row.way is Routing.BY_KEY]
NARROW = [Kind.MAP, Kind.FILTER, Kind.FLAT_MAP, Kind.MAP_BATCHES, Kind.MAP_ASYNC, Kind.KEY_BY, Kind.PEEK]


@pytest.mark.parametrize("kind", [*NARROW, Kind.ADD_TIMESTAMPS, Kind.HASH_JOIN])
def test_a_narrow_stage_is_fused_with_the_source_without_an_exchange(kind: Kind) -> None:
    plan = make_plan(graph_of(Kind.SOURCE, kind, Kind.SINK))
    assert [edge.strategy for edge in plan.edges] == [Strategy.RANGES, Strategy.RANGES]
    assert [chain.tasks for chain in plan.chains] == [4]
    assert not plan.exchanges
    assert not plan.traced


@pytest.mark.parametrize("kind", [*KEYED, Kind.AGGREGATE_BY_KEY])
def test_a_keyed_stage_gets_each_key_in_order_and_its_output_re_enters_the_order(kind: Kind) -> None:
    plan = make_plan(graph_of(Kind.SOURCE, Kind.FILTER, kind, Kind.MAP, Kind.SINK))
    assert [edge.strategy for edge in plan.edges] == [
        Strategy.RANGES,
        Strategy.PARTITION,
        Strategy.ISOLATE,
        Strategy.MERGE,
    ]
    assert [chain.tasks for chain in plan.chains] == [4, 4]
    assert [edge.is_merged for edge in plan.edges] == [False, True, False, True]


@pytest.mark.parametrize("kind", [Kind.AGGREGATE, Kind.WINDOW, Kind.SORT])
def test_a_stage_that_needs_all_records_in_order_gets_them_in_one_task(kind: Kind) -> None:
    plan = make_plan(graph_of(Kind.SOURCE, Kind.FILTER, kind, Kind.SINK))
    assert [edge.strategy for edge in plan.edges] == [Strategy.RANGES, Strategy.MERGE, Strategy.MERGE]
    assert [chain.tasks for chain in plan.chains] == [4, 1]
    assert plan.edges[1].paths == 4


def test_the_number_of_tasks_in_the_table_is_that_of_the_planner() -> None:
    for kind, row in TABLE.items():
        if kind in {Kind.SOURCE, Kind.SINK, Kind.MERGE}:
            continue
        plan = make_plan(graph_of(Kind.SOURCE, Kind.FILTER, kind, Kind.SINK))
        (chain,) = plan.chains_of[2]
        assert plan.chains[chain].tasks == (1 if row.tasks is Tasks.ONE else 4)
        assert (2 in plan.exchanges) == (row.way is not Routing.NARROW)


# Smart planning: order is protected between a creator and a sensitive stage


def test_without_a_promise_order_is_kept_only_up_to_the_last_stage_that_needs_it() -> None:
    kinds = (Kind.SOURCE, Kind.FILTER, Kind.MAP_STATEFUL, Kind.MAP, Kind.REBALANCE, Kind.MAP, Kind.SINK)
    plan = make_plan(graph_of(*kinds, order=Order.NONE))
    assert [edge.strategy for edge in plan.edges] == [
        Strategy.RANGES,
        Strategy.PARTITION,
        Strategy.FREE,
        Strategy.FREE,
        Strategy.FREE,
        Strategy.FREE,
    ]
    assert plan.edges[1].is_merged


def test_before_a_stage_that_creates_an_order_only_the_order_that_it_needs_is_kept() -> None:
    # A rebalance before a sort: the sort is stable, so it needs the order, and the rebalance is merged.
    plan = make_plan(graph_of(Kind.SOURCE, Kind.FILTER, Kind.REBALANCE, Kind.SORT, Kind.SINK))
    assert plan.needs[:4] == (Order.TOTAL, Order.TOTAL, Order.TOTAL, Order.TOTAL)
    # A pipeline without a promised order needs none after the sort.
    plan = make_plan(graph_of(Kind.SOURCE, Kind.SORT, Kind.REBALANCE, Kind.SINK, order=Order.NONE))
    assert plan.needs[:3] == (Order.TOTAL, Order.NONE, Order.NONE)


def test_an_order_per_key_is_an_order_of_all_records_before_the_key_is_known() -> None:
    plan = make_plan(graph_of(Kind.SOURCE, Kind.MAP, Kind.KEY_BY, Kind.MAP, Kind.SINK, order=Order.KEY))
    assert plan.needs == (Order.TOTAL, Order.TOTAL, Order.KEY, Order.KEY, Order.NONE)


def test_a_promise_per_key_with_one_per_stream_is_a_promise_of_total_order() -> None:
    pipeline = Pipeline("p", order="key")
    stage = pipeline.source().map(same)
    stage.sink("a", to="file:a")
    stage.sink("b", to="file:b", order="stream")
    assert planned(pipeline).needs[1] is Order.TOTAL


def test_preserve_order_means_total_and_total_is_the_default() -> None:
    def order(**options: Any) -> Order:
        return Pipeline("p", **options).order

    assert order() is order(preserve_order=True) is order(order="total") is Order.TOTAL
    assert order(preserve_order=False) is order(order="none") is Order.NONE
    with pytest.raises(PlanError, match="exclude each other"):
        order(order="key", preserve_order=True)


# Paths and tasks


def test_paths_are_counted_for_each_exchange_and_never_multiplied() -> None:
    plan = planned(PIPELINES["w2"]())
    assert [edge.paths for edge in plan.edges if edge.is_exchange] == [4, 4]
    assert plan.edges[-1].paths == 2
    plan = planned(PIPELINES["listing1"]())
    assert [edge.paths for edge in plan.edges if edge.is_exchange] == [15]


KINDS = st.sampled_from(["map", "filter", "flat_map", "rebalance", "by_key"])
STEPS = st.lists(st.tuples(KINDS, st.one_of(st.none(), st.integers(1, 8))), max_size=8)


def line_of(steps: list[tuple[str, int | None]], **options: Any) -> Pipeline:
    pipeline = Pipeline("p", parallelism=3, **options)
    stage = pipeline.source()
    for kind, tasks in steps:
        match kind:
            case "map":
                stage = stage.map(same, parallelism=tasks)
            case "filter":
                stage = stage.filter(keep, parallelism=tasks)
            case "flat_map":
                stage = stage.flat_map(words, parallelism=tasks)
            case "rebalance":
                stage = stage.rebalance(parallelism=tasks)
            case _:
                stage = stage.rebalance(same, parallelism=tasks)
    stage.sink("out", to="file:out")
    return pipeline


@given(steps=STEPS, order=st.sampled_from(Order))
def test_the_number_of_tasks_changes_only_at_an_exchange_and_never_exceeds_the_requested_one(
    steps: list[tuple[str, int | None]], order: Order
) -> None:
    plan = planned(line_of(steps, order=order.value))
    for edge in plan.edges:
        if edge.is_exchange or plan.node(edge.after).kind is Kind.SINK:
            continue
        assert plan.chains_of[edge.before] == plan.chains_of[edge.after]
    for chain in plan.chains:
        requested = [tasks for index in chain.stages if (tasks := plan.node(index).parallelism) is not None]
        expected = (max if order is Order.NONE else min)(requested, default=3)
        assert chain.tasks == expected
        wanted = {
            plan.node(index).name for index in chain.stages if plan.node(index).parallelism not in (None, expected)
        }
        if order is not Order.NONE:
            assert all(any(note.startswith(f"{name} asked for") for note in plan.notes) for name in wanted)


@given(steps=STEPS, order=st.sampled_from(Order))
def test_every_exchange_before_an_ordered_sink_and_the_sink_itself_are_merged(
    steps: list[tuple[str, int | None]], order: Order
) -> None:
    plan = planned(line_of(steps, order=order.value))
    exchanges = [edge for edge in plan.edges if edge.is_exchange]
    assert all(edge.is_merged == (order is not Order.NONE) for edge in exchanges)
    last = plan.edges[-1].strategy
    if order is Order.NONE:
        assert last is Strategy.FREE
    elif not exchanges:
        assert last is Strategy.RANGES
    elif order is Order.KEY and plan.node(exchanges[-1].after).function is not None:
        assert last is Strategy.PARTITION
    else:
        assert last is Strategy.MERGE


def test_a_rebalance_of_even_tasks_moves_nothing_unless_the_number_of_tasks_changes() -> None:
    assert not planned(line_of([("map", None), ("rebalance", None), ("map", None)])).exchanges
    assert planned(line_of([("map", None), ("rebalance", None), ("map", 2)])).exchanges
    assert planned(line_of([("map", None), ("rebalance", 3), ("map", None)])).exchanges
    assert planned(line_of([("filter", None), ("rebalance", None)])).exchanges
    assert planned(line_of([("by_key", None)])).exchanges


# Keys


def test_branches_are_numbered_only_if_they_are_merged_again() -> None:
    plan = planned(PIPELINES["diamond"]())
    named = dict(zip((node.name for node in plan.graph.nodes), plan.keys, strict=True))
    assert {plan.node(index).name for index in plan.branching} == {"lines"}
    assert named["quiet"] == ("sequence", "lines?")
    assert named["both"] == named["all"] == named["last"] == ("sequence", "lines?", "words")
    plan = planned(PIPELINES["some_want_order"]())
    assert not plan.branching


def test_records_carry_their_key_only_up_to_its_last_use() -> None:
    plan = planned(PIPELINES["per_key"]())
    names = {plan.node(index).name for index in plan.traced}
    assert names == {"trades", "filter-1", "by-symbol", "key-by-5"}
    assert not planned(PIPELINES["one_chain"]()).traced
    assert not planned(PIPELINES["unordered"]()).traced


def test_each_chain_before_a_merge_runs_the_stages_after_it() -> None:
    plan = planned(PIPELINES["diamond"]())
    last = next(index for index, node in enumerate(plan.graph.nodes) if node.name == "last")
    assert plan.chains_of[last] == {0, 1}
    assert [chain.level for chain in plan.chains] == [0, 1]
    assert [chain.level for chain in planned(PIPELINES["w1"]()).chains] == [0, 1, 2]
    assert [chain.level for chain in planned(PIPELINES["some_want_order"]()).chains] == [0, 1, 1]


# What is refused


def test_with_strict_a_rebalance_before_an_ordered_sink_is_refused_with_the_reason_and_two_ways_out() -> None:
    pipeline = Pipeline("p", strict=True)
    pipeline.source("in").filter(keep, name="some").rebalance(name="spread").map(same).sink("out", to="file:out")
    with pytest.raises(PlanError) as caught:
        planned(pipeline)
    assert "'spread'" in caught.value.sentence
    assert "'some'" in caught.value.sentence
    assert "'out' needs them in order" in caught.value.sentence
    assert "rebalance(key)" in caught.value.next_step
    assert "omit strict=True" in caught.value.next_step


def test_with_strict_a_plan_without_a_merge_is_not_refused() -> None:
    free = Pipeline("p", strict=True, order="none")
    free.source().filter(keep).rebalance().sink("out", to="file:out")
    keyed = Pipeline("p", strict=True)
    keyed.source().filter(keep).rebalance(same).sink("out", to="file:out")
    for pipeline in (free, keyed):
        assert planned(pipeline).exchanges


def test_manifests_of_a_wide_exchange_grow_with_the_tasks_and_not_with_their_pairs() -> None:
    def moved(tasks: int) -> int:
        pipeline = Pipeline("p", parallelism=tasks)
        pipeline.source().filter(keep).rebalance().sink("out", to="file:out")
        return sum(edge.rows for edge in planned(pipeline).edges)

    assert [moved(tasks) for tasks in (4, 31, 32, 1024)] == [16, 961, 64, 2048]


def test_an_exchange_of_more_cells_than_spark_should_move_is_refused() -> None:
    pipeline = Pipeline("p", parallelism=1024, exchange="spark")
    pipeline.source().filter(keep).rebalance(name="spread").sink("out", to="file:out")
    with pytest.raises(PlanError, match="'spread' would write 1,048,576 runs") as caught:
        planned(pipeline)
    assert f"{RUNS_MAX:,}" in caught.value.sentence


def test_a_stage_that_is_only_in_the_table_can_be_planned_but_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(TABLE, Kind.PEEK, replace(TABLE[Kind.PEEK], comes_with="a later version"))
    plan = make_plan(graph_of(Kind.SOURCE, Kind.PEEK, Kind.SINK))
    assert "cannot be run yet\n  peek-1: it comes with a later version" in explain(plan)
    with pytest.raises(PlanError, match=r"'peek-1' is a peek.*it comes with") as caught:
        check_runnable(plan)
    assert caught.value.next_step
