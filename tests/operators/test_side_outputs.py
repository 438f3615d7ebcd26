"""Side outputs: the output of each record, how often the function is called, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from procession import Pipeline, PlanError
from procession.planner.rules import make_plan
from procession.testing import run

WORDS = ["a", "bb", "ccc", "dddd", "ee", "f"]


def is_long(word: str) -> bool:
    return len(word) > 1


def size(word: str) -> str:
    return {1: "one", 2: "two"}.get(len(word), "many")


def with_outputs(*outputs: str, **options: Any) -> dict[str, list[Any]]:
    """Return the records of each output of a split by size."""
    pipeline = Pipeline("p", dead_letter="file:dead")
    stages = pipeline.source("words", codec="text").split(size, *outputs, **options)
    for output, stage in zip(outputs, stages, strict=True):
        stage.sink(output, to="file:out")
    return run(pipeline, {"words": WORDS}, epochs=2)


def test_without_names_the_first_output_gets_the_records_with_a_true_tag() -> None:
    pipeline = Pipeline("p")
    long, short = pipeline.source("words", codec="text").split(is_long)
    long.sink("long", to="file:out")
    short.sink("short", to="file:out")
    assert run(pipeline, {"words": WORDS}) == {"long": ["bb", "ccc", "dddd", "ee"], "short": ["a", "f"]}


def test_with_names_each_output_gets_the_records_tagged_with_its_name() -> None:
    found = with_outputs("many", "one", "two")
    assert found == {"many": ["ccc", "dddd"], "one": ["a", "f"], "two": ["bb", "ee"], "dead-letter": []}


def test_the_result_of_value_is_written_to_the_output() -> None:
    assert with_outputs("many", "one", "two", value=str.upper)["two"] == ["BB", "EE"]


def test_a_tag_that_names_no_output_is_an_error_of_the_record() -> None:
    found = with_outputs("one", "two")
    assert found["two"] == ["bb", "ee"]
    assert [letter["error"] for letter in found["dead-letter"]] == [
        "ValueError: the tag 'many' is not one of the outputs 'one', 'two'"
    ] * 2


@pytest.mark.parametrize("fusion", [True, False])
def test_the_tag_function_is_called_once_for_each_record(fusion: bool) -> None:
    calls = []

    def counted(word: str) -> str:
        calls.append(word)
        return size(word)

    pipeline = Pipeline("p", fusion=fusion)
    one, two, many = pipeline.source("words", codec="text").split(counted, "one", "two", "many")
    one.merge(two, many).sink("all", to="file:out")
    assert run(pipeline, {"words": WORDS}, parallelism=3)["all"] == WORDS
    assert calls == WORDS


def test_a_record_that_one_output_changes_is_not_copied() -> None:
    def changed(order: dict[str, int]) -> dict[str, int]:
        order["cents"] += 1
        return order

    pipeline = Pipeline("p")
    large, small = pipeline.source("orders", codec="json").split(lambda order: order["cents"] > 5)
    large.map(changed).merge(small.map(changed)).sink("out", to="file:out")
    assert not make_plan(pipeline.graph()).sharing.copied
    assert run(pipeline, {"orders": [{"cents": 9}, {"cents": 1}]})["out"] == [{"cents": 10}, {"cents": 2}]


def test_a_value_that_the_function_still_holds_is_copied_before_a_later_stage_changes_it() -> None:
    held: dict[str, list[str]] = {"words": []}

    def same(word: str) -> dict[str, list[str]]:
        return held

    def added(state: dict[str, list[str]]) -> dict[str, list[str]]:
        state["words"].append("x")
        return state

    pipeline = Pipeline("p")
    long, short = pipeline.source("words", codec="text").split(is_long, value=same)
    long.map(added).merge(short.map(added)).sink("out", to="file:out", codec="json")
    assert run(pipeline, {"words": WORDS})["out"] == [{"words": ["x"]}] * len(WORDS)


def test_records_keep_their_key_after_a_split() -> None:
    pipeline = Pipeline("p", parallelism=3)
    words = pipeline.source("words", codec="text").key_by(len)
    long, short = words.split(is_long)
    counts = long.merge(short).map_stateful(lambda seen, word: (seen + 1, f"{word}{seen}"), initial=0)
    counts.sink("out", to="file:out")
    assert run(pipeline, {"words": WORDS})["out"] == ["a0", "bb0", "ccc0", "dddd0", "ee1", "f1"]


def test_a_value_that_cannot_be_encoded_is_an_error_of_the_stage_that_made_it() -> None:
    pipeline = Pipeline("p", dead_letter="file:dead")
    made = pipeline.source("words", codec="text").map(lambda word: {word}, name="making")
    for number, stage in enumerate(made.split(len)):
        stage.sink(f"out{number}", to="file:out", codec="json")
    valued = pipeline.source("more", codec="text", streams=["more"]).split(
        len, value=lambda word: {word}, name="valued"
    )
    valued[0].sink("out2", to="file:out", codec="json")
    letters = run(pipeline, {"words": ["a"], "more": ["b"]})["dead-letter"]
    assert [letter["stage"] for letter in letters] == ["making", "valued"]


def test_explain_names_the_outputs() -> None:
    pipeline = Pipeline("p")
    stages = pipeline.source("words", codec="text").split(size, "one", "two", name="sizes")
    stages[0].sink("out", to="file:out")
    assert "words, sizes, sizes-one, sizes-two → out" in pipeline.explain()


@pytest.mark.parametrize(
    "mistake",
    [
        lambda stage: stage.split("tag"),
        lambda stage: stage.split(lambda one, two: one),
        lambda stage: stage.split(len, "only"),
        lambda stage: stage.split(len, "twice", "twice"),
        lambda stage: stage.split(len, "no blanks", "other"),
        lambda stage: stage.split(len, *map(str, range(65))),
        lambda stage: stage.split(len, value=5),
        lambda stage: stage.split(len, name="a b"),
    ],
)
def test_a_mistake_is_reported_where_it_was_made_and_with_a_next_step(mistake: Any) -> None:
    with pytest.raises(PlanError) as caught:
        mistake(Pipeline("p").source())
    assert caught.value.next_step
