"""Continuity: which changes of a program can continue from a checkpoint's states, and the errors for the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from procession import Pipeline, PlanError, aggregates, windows
from procession.api.stage import Stage
from procession.commit.round_record import RoundRecord
from procession.driver.stage_states import check_last, keyed_versions
from procession.errors import StorageError
from procession.planner.rules import make_plan

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


def last_round(change: Change) -> RoundRecord:
    """Return the checkpoint that such a program leaves."""
    plan = _planned(change)
    states = {
        name: replace(version, tasks=((),) * plan.chains[chain].tasks)
        for chain, (name, version) in keyed_versions(plan).items()
    }
    return RoundRecord(7, 1, "", 0, 9, {}, states=states)


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
    ids=["stages before it", "stages after it", "parallelism", "options of windows", "no states at all"],
)
def test_changes_outside_of_states_continue(before: Change, after: Change) -> None:
    check_last(_planned(after), last_round(before))


@pytest.mark.parametrize(
    ("before", "after", "stage", "sentence", "step"),
    [
        (stateful, lambda one: stateful(one, "other"), "other", "states of stage 'counted'", "name='counted'"),
        (stateful, lambda one: one, "counted", "the program no longer has", "put the stage back"),
        (lambda one: one, stateful, "counted", "has no states of it", "remove the stage"),
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
        (windowed, lambda one: windowed(one, parallelism=3), "minutes", "had parallelism 2", "parallelism=2"),
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
def test_changes_of_states_are_refused_by_name_and_with_a_next_step(
    before: Change, after: Change, stage: str, sentence: str, step: str
) -> None:
    with pytest.raises(PlanError) as caught:
        check_last(_planned(after), last_round(before))
    assert caught.value.stage == stage
    assert sentence in caught.value.sentence
    assert step in caught.value.next_step
    assert "`procession upgrade`" in caught.value.next_step
    assert "--dir" in caught.value.next_step


# What identifies a stage, in addition to its name


def other_key(value: bytes) -> bytes:
    return value[:2]


def key_again(record: bytes) -> bytes:
    """Return the key as `key` does, with other source code."""
    # as it should be
    return record[:1]


def summed(state: int, value: bytes) -> tuple[int, bytes]:
    return state + len(value), value


def unnamed(*steps: Any) -> Change:
    """Return a pipeline of stages without names: each is a step, a step and its key, or a function of stages."""

    def change(stage: Stage) -> Stage:
        for step in steps:
            is_stateful = isinstance(step, tuple)
            stage = stage.map_stateful(step[0], key=step[1], initial=0) if is_stateful else stage.map(step)
        return stage

    return change


def explained(error: PlanError) -> str:
    return f"{error.sentence}; {error.next_step}"


def refused(before: Change, after: Change, changed: tuple[str, ...] = ()) -> PlanError:
    with pytest.raises(PlanError) as caught:
        check_last(_planned(after), last_round(before), changed)
    return caught.value


COUNT, SUM = (counted, key), (summed, key)
LAST = (lambda state, value: (value, state)), key


def test_two_stages_without_names_that_were_swapped_are_refused_and_distinguished() -> None:
    error = refused(unnamed(COUNT, SUM), unnamed(SUM, COUNT))
    assert "'map-stateful-1' is 'map-stateful-2' now" in explained(error)
    assert "give 'map-stateful-2' name='map-stateful-1'" in explained(error)
    assert "give 'map-stateful-1' name='map-stateful-2'" in explained(error)


def test_lambdas_on_one_line_that_were_swapped_are_distinguished() -> None:
    one, two = (lambda state, value: (state + 1, value)), (lambda state, value: (state + 2, value))
    error = refused(unnamed((one, key), (two, key)), unnamed((two, key), (one, key)))
    assert "'map-stateful-1' is 'map-stateful-2' now" in explained(error)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_maps_inserted_before_are_refused_with_names_that_keep_each_stages_states(count: int) -> None:
    before, maps = unnamed(COUNT, SUM), [bytes.upper] * count
    error = refused(before, unnamed(*maps, COUNT, SUM))
    for place in (1, 2):
        assert f"give 'map-stateful-{place + count}' name='map-stateful-{place}'" in explained(error)

    def advised(stage: Stage) -> Stage:
        for function in maps:
            stage = stage.map(function)
        stage = stage.map_stateful(counted, key=key, initial=0, name="map-stateful-1")
        return stage.map_stateful(summed, key=key, initial=0, name="map-stateful-2")

    check_last(_planned(advised), last_round(before))


def test_a_new_stage_between_others_is_named_because_no_name_gives_it_states() -> None:
    for place, program in enumerate(([LAST, COUNT, SUM], [COUNT, LAST, SUM]), 1):
        error = refused(unnamed(COUNT, SUM), unnamed(*program))
        assert f"stage 'map-stateful-{place}' has state, and the checkpoint has no states of it" in explained(error)
        assert "remove the stage" in error.next_step


def test_stages_that_do_the_same_are_distinguished_by_their_order() -> None:
    error = refused(unnamed(COUNT, COUNT), unnamed(bytes.upper, COUNT, COUNT))
    assert "give 'map-stateful-2' name='map-stateful-1'" in explained(error)
    assert "give 'map-stateful-3' name='map-stateful-2'" in explained(error)


def test_one_function_may_be_edited_but_not_two_that_could_be_swapped() -> None:
    def edited(state: int, value: bytes) -> tuple[int, bytes]:
        return state + 3, value.upper()

    check_last(_planned(unnamed((edited, key), SUM)), last_round(unnamed(COUNT, SUM)))
    error = refused(unnamed(COUNT, SUM), unnamed((edited, key), (lambda state, value: (state, value), key)))
    assert "not known which states belong" in explained(error)
    assert "name='map-stateful-1'" in explained(error)


def test_another_key_is_refused_and_accepted_by_name() -> None:
    after: Change = lambda stage: stage.map_stateful(counted, key=other_key, initial=0, name="counted")  # noqa: E731
    error = refused(stateful, after)
    assert "stage 'counted' has another function for its key" in explained(error)
    assert "--changed-stages counted" in explained(error)
    check_last(_planned(after), last_round(stateful), ("counted",))
    # The new key is known from then on.
    check_last(_planned(after), last_round(after))
    assert "another function for its key" in refused(after, stateful).sentence


def test_a_setting_that_names_no_stage_with_states_is_refused() -> None:
    error = refused(stateful, stateful, ("count",))
    assert "'count', which is not a stage with state" in explained(error)
    assert "counted" in explained(error)


@pytest.mark.parametrize(
    "same",
    [key_again, lambda value: value[:1], lambda one: one[:1]],
    ids=["other words", "lambda", "other argument"],
)
def test_a_key_function_that_is_only_written_differently_continues(same: Any) -> None:
    after: Change = lambda stage: stage.map_stateful(counted, key=same, initial=0, name="counted")  # noqa: E731
    check_last(_planned(after), last_round(stateful))


@pytest.mark.parametrize("option", [{"reverse": False}, {}])
def test_another_rank_of_a_sort_is_refused(option: Any) -> None:
    error = refused(lambda one: one.sort(len, **option, name="s"), lambda one: one.sort(key, **option, name="s"))
    assert "stage 's' has another function for its key" in explained(error)


def test_a_stage_with_another_input_is_refused_and_accepted_by_name() -> None:
    def second_of(name: str) -> Any:
        pipeline = Pipeline("p", parallelism=2)
        source = pipeline.source(ends=True)
        first = stateful(source, "first")
        stateful(first if name == "first" else source, "second").sink("out", to="file:out", codec="json")
        first.sink("other", to="file:out", codec="json")
        return make_plan(pipeline.graph())

    plan = second_of("first")
    states = {
        name: replace(version, tasks=((),) * plan.chains[chain].tasks)
        for chain, (name, version) in keyed_versions(plan).items()
    }
    last = RoundRecord(7, 1, "", 0, 9, {}, states=states)
    with pytest.raises(PlanError) as caught:
        check_last(second_of("source"), last)
    assert (
        "'second' had its input from first when the checkpoint was made, and has it from source now"
        in caught.value.sentence
    )
    check_last(second_of("source"), last, ("second",))
    check_last(second_of("first"), last)


def test_a_checkpoint_without_identities_continues_by_name_and_kind() -> None:
    last = last_round(unnamed(COUNT, SUM))
    record = json.loads(last.to_json())
    for version in record["states"].values():
        del version["identity"]
    old = RoundRecord.from_json(json.dumps(record).encode())
    check_last(_planned(unnamed((counted, other_key), SUM)), old)
    assert "put the stage back" in explained(refused_by(old, unnamed(COUNT)))


def refused_by(last: RoundRecord, after: Change) -> PlanError:
    with pytest.raises(PlanError) as caught:
        check_last(_planned(after), last)
    return caught.value


def test_the_round_record_keeps_the_identity_of_each_stage() -> None:
    last = last_round(stateful)
    assert RoundRecord.from_json(last.to_json()) == last
    assert last.states["counted"].identity["named"] == "yes"


def test_the_function_of_key_by_is_the_key_of_the_stages_after_it() -> None:
    def keyed(by: Any) -> Change:
        return lambda stage: stage.key_by(by).map(bytes.upper).reduce(max, name="greatest")

    check_last(_planned(keyed(lambda value: value[:1])), last_round(keyed(lambda record: record[:1])))
    with pytest.raises(PlanError, match="'greatest' has another function for its key"):
        check_last(_planned(keyed(lambda value: value[:2])), last_round(keyed(lambda value: value[:1])))
    with pytest.raises(PlanError, match="'greatest' has another function for its key"):
        check_last(
            _planned(keyed(lambda value: value[:1])),
            last_round(lambda stage: stage.map(bytes.upper).reduce(max, key=lambda value: value[:1], name="greatest")),
        )


# Stages that were of all records, and have a key_by before them


def of_all(stage: Stage, name: str | None) -> Stage:
    return stage.window(MINUTES, aggregates.count(), time=float, name=name)


def total(stage: Stage, name: str | None) -> Stage:
    return stage.aggregate(aggregates.count(), name=name)


def as_of_landed(last: RoundRecord, *, has_files: bool = False) -> RoundRecord:
    """Return the states as the landed version wrote them: without formats and identities."""
    document = json.loads(last.to_json())
    for version in document["states"].values():
        del version["format"], version["identity"]
        version["tasks"] = [[["file", 1]]] if has_files else [[]]
    return RoundRecord.from_json(json.dumps(document).encode())


@pytest.mark.parametrize("add", [of_all, total])
@pytest.mark.parametrize("name", ["minutes", None])
@pytest.mark.parametrize("is_landed", [True, False])
def test_a_stage_of_all_records_that_now_follows_a_key_by_is_refused_with_a_next_step(
    add: Callable[[Stage, str | None], Stage], name: str | None, *, is_landed: bool
) -> None:
    # As `key_by` was in earlier versions: it did not change the stages after it.
    last = last_round(lambda stage: add(stage.peek(len), name))
    (kept,) = last.states
    with pytest.raises(PlanError, match=f"stage '{kept}' was over all records .* uses the key of the key_by") as caught:
        check_last(_planned(lambda stage: add(stage.key_by(key), name)), as_of_landed(last) if is_landed else last)
    assert "write the key_by after it or on another branch" in caught.value.next_step
    assert "drop its states with `procession upgrade`" in caught.value.next_step
    assert "--dir" in caught.value.next_step
    # As the error advises.
    behind = _planned(lambda stage: add(stage.peek(len), name).key_by(len))
    check_last(behind, as_of_landed(last) if is_landed else last)


@pytest.mark.parametrize("add", [of_all, total])
def test_states_of_the_landed_version_after_a_key_by_are_refused_for_their_format(
    add: Callable[[Stage, str | None], Stage],
) -> None:
    last = as_of_landed(last_round(lambda stage: add(stage.peek(len), "minutes")), has_files=True)
    with pytest.raises(StorageError, match="the states of stage 'minutes' have format 1") as caught:
        check_last(_planned(lambda stage: add(stage.key_by(key), "minutes")), last)
    assert "start over" in caught.value.next_step


def test_the_inputs_of_a_stage_are_found_quickly_after_many_diamonds() -> None:
    """Each diamond doubles the number of paths: 60 of them have 2 to the 60."""

    def diamonds(stage: Stage) -> Stage:
        for _ in range(60):
            stage = stage.map(bytes.upper).merge(stage.map(bytes.lower))
        return stateful(stage)

    (version,) = last_round(diamonds).states.values()
    assert version.identity["inputs"] == "source"
