"""Continuity: which changes of a program go on with the states of a checkpoint, and what the others are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from procession import Pipeline, PlanError, aggregates, windows
from procession.commit.rounds import Round
from procession.ops.driver import check_last
from procession.plan.continuity import keyed_stages
from procession.plan.pipeline import Stage
from procession.plan.planner import make_plan
from procession.storage.states import Version

Change = Callable[[Stage], Any]
MINUTES = windows.tumbling(60)


def key(value: bytes) -> bytes:
    return value[:1]


def counted(state: int, value: bytes) -> tuple[int, bytes]:
    return state + 1, value


def stateful(stage: Stage, name: str = "counted", parallelism: int = 2) -> Stage:
    return stage.map_stateful(counted, key=key, initial=0, name=name, parallelism=parallelism)


def windowed(stage: Stage, kind: windows.Windows = MINUTES, parallelism: int = 2, **more: Any) -> Stage:
    return stage.window(kind, aggregates.count(), key=key, time=float, name="minutes", parallelism=parallelism, **more)


def last_round(change: Change) -> Round:
    """What a program that was so leaves behind."""
    plan = _planned(change)
    states = {
        name: Version(((),) * plan.chains[chain].tasks, what) for chain, (name, what) in keyed_stages(plan).items()
    }
    return Round(7, 1, "", 0, 9, {}, states=states)


def _planned(change: Change) -> Any:
    pipeline = Pipeline("p", parallelism=2)
    change(pipeline.source(ends=True)).sink("out", to="file:out", codec="json")
    return make_plan(pipeline.graph())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (stateful, lambda stage: stateful(stage.map(bytes.upper).filter(bool))),
        (stateful, lambda stage: stateful(stage).rebalance().map(bytes.lower)),
        (stateful, lambda stage: stateful(stage, parallelism=3)),
        (windowed, lambda stage: windowed(stage, late="fire", lateness_s=3, early_records=2)),
        (lambda stage: stage, lambda stage: stage.flat_map(bytes.split)),
    ],
    ids=["stages before it", "stages behind it", "parallelism", "options of windows", "no states at all"],
)
def test_changes_around_states_go_on(before: Change, after: Change) -> None:
    check_last(_planned(after), last_round(before))


@pytest.mark.parametrize(
    ("before", "after", "stage", "sentence", "step"),
    [
        (stateful, lambda one: stateful(one, "other"), "other", "states of stage 'counted'", "name='counted'"),
        (stateful, lambda one: one, "counted", "the program has no more", "put the stage back"),
        (lambda one: one, stateful, "counted", "has none of it", "leave the stage out"),
        (
            stateful,
            lambda one: one.distinct(key, name="counted"),
            "counted",
            "was a map_stateful",
            "map_stateful again",
        ),
        (
            windowed,
            lambda one: windowed(one, windows.tumbling(30)),
            "minutes",
            "was a window_by_key of 60 s, every 60 s",
            "make it a window_by_key of 60 s, every 60 s again",
        ),
        (
            lambda one: windowed(one, windows.session(9)),
            lambda one: windowed(one, windows.session(8)),
            "minutes",
            "sessions with gaps of 9 s",
            "again",
        ),
        (windowed, lambda one: windowed(one, parallelism=3), "minutes", "ran with parallelism 2", "parallelism=2"),
        (
            lambda one: one.sort(key, reverse=True, name="sorted"),
            lambda one: one.sort(key, name="sorted"),
            "sorted",
            "was a sort in reverse",
            "make it a sort in reverse again",
        ),
    ],
    ids=[
        "renamed",
        "gone",
        "new",
        "another kind",
        "other windows",
        "other gaps",
        "other tasks",
        "other way",
    ],
)
def test_changes_of_states_are_refused_by_name_and_with_the_way_out(
    before: Change, after: Change, stage: str, sentence: str, step: str
) -> None:
    with pytest.raises(PlanError) as caught:
        check_last(_planned(after), last_round(before))
    assert caught.value.stage == stage
    assert sentence in caught.value.sentence
    assert step in caught.value.next_step
    assert "--dir" in caught.value.next_step
