"""Upgrades: how the state of each stage is carried over, the errors of refused changes, and which sinks are added and
removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from procession import Aggregate, Pipeline, PlanError, Upgrade, aggregates, windows
from procession.api.stage import Stage
from procession.commit.round_record import RoundRecord
from procession.driver.changed_states import outcomes_of
from procession.driver.stage_states import keyed_versions
from procession.planner.rules import make_plan
from procession.planner.upgrade import SinkChanges, sink_changes

Change = Callable[[Stage], Any]


def key(value: bytes) -> bytes:
    return value[:1]


def counted(state: int, value: bytes) -> tuple[int, bytes]:
    return state + 1, value


def stateful(stage: Stage, name: str = "counted", parallelism: int = 2, **options: Any) -> Stage:
    return stage.map_stateful(counted, key=key, initial=0, name=name, parallelism=parallelism, **options)


def two(stage: Stage) -> Stage:
    return stateful(stateful(stage), "again")


def windowed(stage: Stage, size: int = 60, parallelism: int = 2) -> Stage:
    return stage.window(
        windows.tumbling(size), aggregates.count(), key=key, time=float, name="minutes", parallelism=parallelism
    )


def aggregated(aggregate: Aggregate, kind: str = "window") -> Change:
    def change(stage: Stage) -> Stage:
        if kind == "rolling":
            return stage.rolling(aggregate, key=key, name="counted")
        if kind == "total":
            return stage.aggregate(aggregate, key=key, name="counted")
        return stage.window(windows.tumbling(60), aggregate, key=key, time=float, name="counted")

    return change


def waited(stage: Stage, step_s: int = 1) -> Stage:
    return stage.process(
        lambda state, value, context: (state, []),
        on_timer=lambda state, context: (state, []),
        key=key,
        time=float,
        step_s=step_s,
        name="counted",
    )


def planned(change: Change) -> Any:
    pipeline = Pipeline("p", parallelism=2)
    change(pipeline.source(ends=True)).sink("out", to="file:out", codec="json")
    return make_plan(pipeline.graph())


def outcomes(before: Change, after: Change, upgrade: Upgrade) -> list[str]:
    plan = planned(before)
    states = {
        name: replace(version, tasks=((),) * plan.chains[chain].tasks)
        for chain, (name, version) in keyed_versions(plan).items()
    }
    found = outcomes_of(planned(after), RoundRecord(7, 1, "", 0, 9, {}, states=states), upgrade)
    return [outcome.sentence for outcome in found]


@pytest.mark.parametrize(
    ("before", "after", "upgrade", "expected"),
    [
        (stateful, stateful, Upgrade(), ["stage 'counted': kept"]),
        (
            stateful,
            lambda stage: stateful(stage, parallelism=5),
            Upgrade(),
            ["stage 'counted': kept, 2 tasks become 5"],
        ),
        (
            stateful,
            lambda stage: stateful(stage, "sums"),
            Upgrade(rename={"counted": "sums"}),
            ["stage 'sums': renamed, was 'counted'"],
        ),
        # A stage after a renamed one has the same input.
        (
            two,
            lambda stage: stateful(stateful(stage, "sums"), "again"),
            Upgrade(rename={"counted": "sums"}),
            ["stage 'sums': renamed, was 'counted'", "stage 'again': kept"],
        ),
        # Two stages exchange their names.
        (
            two,
            lambda stage: stateful(stateful(stage, "again"), "counted"),
            Upgrade(rename={"counted": "again", "again": "counted"}),
            ["stage 'again': renamed, was 'counted'", "stage 'counted': renamed, was 'again'"],
        ),
        (stateful, stateful, Upgrade(migrate={"counted": str}), ["stage 'counted': migrated"]),
        (
            stateful,
            lambda stage: stage.flat_map_stateful(counted, key=key, initial=0, name="c"),
            Upgrade(rename={"counted": "c"}, migrate={"c": str}),
            ["stage 'c': migrated, was 'counted'"],
        ),
        (waited, waited, Upgrade(migrate={"counted": str}), ["stage 'counted': migrated"]),
        # Another function of the same aggregate, an order of the same records, an aggregate of the user.
        (aggregated(aggregates.sum_of(len)), aggregated(aggregates.sum_of(int)), Upgrade(), ["stage 'counted': kept"]),
        (aggregated(aggregates.collect()), aggregated(aggregates.ordered()), Upgrade(), ["stage 'counted': kept"]),
        (
            aggregated(aggregates.count()),
            aggregated(Aggregate(int, lambda held, _: held + 2)),
            Upgrade(),
            ["stage 'counted': kept"],
        ),
        (
            aggregated(aggregates.count()),
            aggregated(aggregates.sum_of(len)),
            Upgrade(changed=["counted"]),
            ["stage 'counted': kept"],
        ),
        (two, stateful, Upgrade(drop=["again"]), ["stage 'again': dropped", "stage 'counted': kept"]),
        (stateful, two, Upgrade(), ["stage 'counted': kept", "stage 'again': new"]),
        (
            windowed,
            lambda stage: windowed(stage, 30, 3),
            Upgrade(drop=["minutes"]),
            ["stage 'minutes': dropped", "stage 'minutes': new"],
        ),
        (
            windowed,
            lambda stage: windowed(stage, 60, 3),
            Upgrade(),
            ["stage 'minutes': kept, 2 tasks become 3"],
        ),
    ],
)
def test_every_stage_has_one_outcome(before: Change, after: Change, upgrade: Upgrade, expected: list[str]) -> None:
    assert outcomes(before, after, upgrade) == expected


@pytest.mark.parametrize(
    ("before", "after", "upgrade", "sentence", "step"),
    [
        *(
            (
                aggregated(aggregates.count(), kind),
                aggregated(aggregates.sum_of(len), kind),
                Upgrade(),
                "had the aggregate 'count' when the checkpoint was made, and has 'sum' now",
                "Upgrade(changed=['counted']), or begin it without states",
            )
            for kind in ("window", "rolling", "total")
        ),
        (
            aggregated(aggregates.all_of(n=aggregates.count())),
            aggregated(aggregates.all_of(n=aggregates.count(), sum=aggregates.sum_of(len))),
            Upgrade(),
            "'all of n (count)' when the checkpoint was made, and has 'all of n (count), sum (sum)' now",
            "restore that aggregate",
        ),
        (two, stateful, Upgrade(), "has a stage 'again' with states, and the new one does not", "drop=['again']"),
        (windowed, lambda stage: windowed(stage, 30), Upgrade(), "another form", "Upgrade(drop=['minutes'])"),
        (windowed, windowed, Upgrade(migrate={"minutes": str}), "its own structures", "Upgrade(drop=['minutes'])"),
        (
            stateful,
            lambda stage: stateful(stage, ttl_s=5, time=float),
            Upgrade(migrate={"counted": str}),
            "cannot be migrated: it was a map_stateful",
            "keep its ttl",
        ),
        (
            stateful,
            waited,
            Upgrade(migrate={"counted": str}),
            "it was a map_stateful, and is",
            "make it a map_stateful",
        ),
        (waited, stateful, Upgrade(migrate={"counted": str}), "it was a process with", "make it a process again"),
        (
            waited,
            lambda stage: waited(stage, 2),
            Upgrade(migrate={"counted": str}),
            "is a process with timers in steps of 2 s now",
            "keep its step_s",
        ),
        (
            stateful,
            lambda stage: stage.map_stateful(counted, key=bytes.lower, initial=0, name="counted"),
            Upgrade(),
            "another function for its key",
            "restore that function",
        ),
        (stateful, stateful, Upgrade(rename={"x": "counted"}), "'x', which is not a stage with state", "counted"),
        (stateful, stateful, Upgrade(rename={"counted": "x"}), "'x', which is not a stage with state", "counted"),
        (stateful, stateful, Upgrade(drop=["x"]), "'x', which is not a stage with state", "counted"),
        (stateful, stateful, Upgrade(migrate={"x": str}), "'x', which is not a stage with state", "counted"),
        (two, two, Upgrade(rename={"again": "counted"}), "has a stage 'counted', too", "rename or drop 'counted'"),
        (two, two, Upgrade(rename={"again": "again"}, drop=["again"]), "drops and renames", "one of them"),
        (
            two,
            stateful,
            Upgrade(rename={"again": "counted", "counted": "counted"}),
            "the same new name",
            "a different name",
        ),
    ],
)
def test_a_stage_that_cannot_continue_is_refused_by_name_with_a_next_step(
    before: Change, after: Change, upgrade: Upgrade, sentence: str, step: str
) -> None:
    with pytest.raises(PlanError) as refused:
        outcomes(before, after, upgrade)
    assert sentence in refused.value.sentence
    assert step in refused.value.next_step


def graph(*sinks: str, source: str = "in", **options: Any) -> Any:
    pipeline = Pipeline("p", **options)
    stage = pipeline.source(source)
    for sink in sinks:
        name, _, kind = sink.partition(":")
        framing = {"raw": True} if kind == "raw" else {}
        connections = {"connections": 2, "order": "stream"} if kind == "wide" else {}
        stage.sink(name, to="file:out", **({"framing": "raw"} if framing else {}), **connections)
    return pipeline.graph()


def changes(before: Any, after: Any) -> SinkChanges:
    return sink_changes(after, before.fingerprint(), before.endpoints())


def test_sinks_may_be_added_and_removed() -> None:
    assert changes(graph("a", "b"), graph("a", "b")) == SinkChanges()
    assert changes(graph("a"), graph("a", "b")) == SinkChanges(added=("b",))
    assert changes(graph("a", "b"), graph("b")) == SinkChanges(removed=("a",))
    assert changes(graph("a", "b:raw"), graph("c", "a")) == SinkChanges(("c",), ("b",))


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (graph("a"), graph("a", source="other"), "source 'in' is gone or changed"),
        (graph("a"), graph("a:raw"), "sink 'a' was a sink of lines, and is a sink of raw bytes now"),
        (graph("a", "b:wide"), graph("a"), "sink 'b' has several connections"),
        (graph("a"), graph("a", guarantee="at-least-once"), "the pipeline's guarantee"),
    ],
)
def test_other_changes_of_sources_and_sinks_are_refused(before: Any, after: Any, sentence: str) -> None:
    with pytest.raises(PlanError) as refused:
        changes(before, after)
    assert sentence in refused.value.sentence
    assert refused.value.next_step
