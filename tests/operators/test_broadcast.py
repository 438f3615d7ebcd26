"""Records with the latest state of a second stream: which state each record sees, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from procession import Pipeline, PlanError
from procession.planner.compatibility import check_tasks, identities
from procession.planner.rules import make_plan
from procession.testing import Outputs, run

Inputs = list[tuple[str, Any]]
INPUTS: Inputs = [
    ("events", 1),
    ("rules", {"limit": 5}),
    ("events", 2),
    ("events", 3),
    ("rules", {"limit": 2}),
    ("rules", {"other": 7}),
    ("events", 4),
]


def out(inputs: Inputs = INPUTS, *, dead_letter: str | None = None, **options: Any) -> Outputs:
    """Return the output, after checking that it is the same for any epochs and parallelism."""
    pipeline = Pipeline("p", dead_letter=dead_letter)
    rules = pipeline.source("rules", codec="json", streams=["rules"])
    events = pipeline.source("events", codec="json")
    events.with_broadcast(rules, **options).sink("out", to="file:out")
    found = run(pipeline, inputs)
    for epochs, tasks in ((None, 1), (1, 1), (1, 4), (3, 3)):
        assert run(pipeline, inputs, epochs=epochs, parallelism=tasks) == found
    return found


def beside(state: Any, event: Any) -> list[Any]:
    return [event, state]


def test_a_record_sees_the_latest_record_of_the_second_stream_before_it() -> None:
    assert out(apply=beside)["out"] == [[1, None], [2, {"limit": 5}], [3, {"limit": 5}], [4, {"other": 7}]]


def test_update_combines_the_records_of_the_second_stream() -> None:
    found = out(apply=beside, update=lambda rules, change: {**rules, **change}, initial={"limit": 9})
    assert found["out"] == [[1, {"limit": 9}], [2, {"limit": 5}], [3, {"limit": 5}], [4, {"limit": 2, "other": 7}]]


def test_rules_after_an_exchange_need_no_key() -> None:
    pipeline = Pipeline("p")
    rules = pipeline.source("rules", codec="json", streams=["rules"]).rebalance(parallelism=2)
    pipeline.source("events", codec="json").with_broadcast(rules, apply=beside).sink("out", to="file:out")
    expected = [[1, None], [2, {"limit": 5}], [3, {"limit": 5}], [4, {"other": 7}]]
    assert run(pipeline, INPUTS, parallelism=3)["out"] == expected


def test_a_function_that_changes_the_state_changes_its_own_copy() -> None:
    def spoils(state: dict[str, int] | None, event: int) -> Any:
        state = {} if state is None else state
        state["limit"] = state.get("limit", 0) + event
        return state["limit"]

    assert out(apply=spoils)["out"] == [1, 7, 8, 4]


def test_a_result_that_is_the_state_can_be_changed_by_later_stages() -> None:
    pipeline = Pipeline("p")
    rules = pipeline.source("rules", codec="json", streams=["rules"])
    events = pipeline.source("events", codec="json")

    def grown(rule: dict[str, int]) -> int:
        rule["limit"] += 1
        return rule["limit"]

    events.with_broadcast(rules, apply=lambda rule, event: rule).map(grown).sink("out", to="file:out")
    inputs = [("rules", {"limit": 5}), ("events", 1), ("events", 2)]
    assert run(pipeline, inputs, parallelism=1)["out"] == [6, 6]


def test_a_rule_on_which_update_raises_is_one_dead_letter_and_the_state_stays() -> None:
    def update(state: int, change: dict[str, int]) -> int:
        return state + change["limit"]

    found = out(apply=beside, update=update, initial=0, dead_letter="file:dead")
    assert found["out"] == [[1, 0], [2, 5], [3, 5], [4, 7]]
    assert [letter["error"] for letter in found["dead-letter"]] == ["KeyError: 'limit'"]


def test_a_record_on_which_apply_raises_is_one_dead_letter() -> None:
    found = out(apply=lambda state, event: 6 // (event - 2), dead_letter="file:dead")
    assert found["out"] == [-6, 6, 3]
    assert len(found["dead-letter"]) == 1


def test_records_keep_their_key_for_sinks_and_contexts() -> None:
    pipeline = Pipeline("p", order="key", parallelism=3)
    rules = pipeline.source("rules", codec="json", streams=["rules"])
    events = pipeline.source("events", codec="json").key_by(lambda event: event % 2)
    events.with_broadcast(rules, apply=beside).sink("out", to="file:out", connections=2)
    found = run(pipeline, INPUTS)
    assert sorted(found["out.0"] + found["out.1"], key=str) == sorted(out(apply=beside)["out"], key=str)
    assert {event % 2 for event, _ in found["out.0"]}.isdisjoint(event % 2 for event, _ in found["out.1"])


@pytest.mark.parametrize(("name", "names"), [("ruled", {"ruled", "ruled-state"}), (None, set())])
def test_the_state_of_the_rules_has_a_name_if_the_stage_has_one(name: str | None, names: set[str]) -> None:
    pipeline = Pipeline("p")
    rules = pipeline.source("rules", streams=["rules"])
    stage = pipeline.source("events").with_broadcast(rules, apply=beside, update=beside, name=name)
    stage.sink("out", to="file:out", codec="json")
    found = identities(make_plan(pipeline.graph()))
    assert len(found) == 2
    assert {stage for stage, identity in found.items() if identity["named"] == "yes"} == names


def test_the_parallelism_stays_as_it_was_when_the_checkpoint_was_made() -> None:
    pipeline = Pipeline("p", parallelism=3)
    rules = pipeline.source("rules", streams=["rules"])
    stage = pipeline.source("events").with_broadcast(rules, apply=beside, name="ruled")
    stage.sink("out", to="file:out", codec="json")
    plan = make_plan(pipeline.graph())
    check_tasks(plan, {"ruled": 3})
    with pytest.raises(PlanError, match="stage 'ruled' had parallelism 2"):
        check_tasks(plan, {"ruled": 2})


@pytest.mark.parametrize(
    "mistake",
    [
        lambda stage: stage.with_broadcast(Pipeline("other").source(), apply=beside),
        lambda stage: stage.with_broadcast([{"limit": 1}], apply=beside),
        lambda stage: stage.with_broadcast(stage, apply="beside"),
        lambda stage: stage.with_broadcast(stage, apply=lambda record: record),
        lambda stage: stage.with_broadcast(stage, apply=beside, update=lambda rule: rule),
        lambda stage: stage.with_broadcast(stage, apply=beside, initial=object()),
        lambda stage: stage.with_broadcast(stage, apply=beside, name="a b"),
    ],
)
def test_a_mistake_is_reported_where_it_was_made_and_with_a_next_step(mistake: Any) -> None:
    with pytest.raises(PlanError) as caught:
        mistake(Pipeline("p").source())
    assert caught.value.next_step
