"""Validation: the values that each check accepts, and the error for the others."""

from __future__ import annotations

from typing import Any

import pytest

from procession.errors import PlanError
from procession.planner import validation
from procession.planner.event_order import OrderBy


async def asked(_: Any) -> None: ...


def two(one: Any, other: Any) -> None: ...


@pytest.mark.parametrize("name", ["a", "_", "9", "a-b_c", "x" * 64])
def test_a_name_of_letters_digits_dashes_and_underscores_is_accepted(name: str) -> None:
    assert validation.checked_name(name, "a stage") == name


@pytest.mark.parametrize("name", ["", "-a", "a.b", "a b", "a\n", "ä", "x" * 65, None, 7])
def test_any_other_name_is_refused_with_the_allowed_names(name: Any) -> None:
    with pytest.raises(PlanError, match="cannot name a stage") as caught:
        validation.checked_name(name, "a stage")
    assert "1 to 64 letters" in caught.value.next_step


@pytest.mark.parametrize(
    ("value", "is_one"),
    [(0, True), (0.5, True), (10**9, True), (-1, False), (1e10, False), (True, False), ("1", False), (1e999, False)],
)
def test_seconds_are_numbers_from_0_up_to_a_limit(value: Any, is_one: bool) -> None:
    if is_one:
        assert validation.checked_seconds(value, "lateness_s", "stage 'a'") == value
        return
    with pytest.raises(PlanError, match=r"lateness_s=.* of stage 'a' is not a time"):
        validation.checked_seconds(value, "lateness_s", "stage 'a'")


@pytest.mark.parametrize(
    ("value", "is_one"), [(1, True), (8, True), (0, False), (9, False), (True, False), (2.0, False)]
)
def test_a_count_is_a_whole_number_from_1_up_to_its_limit(value: Any, is_one: bool) -> None:
    if is_one:
        assert validation.checked_count(value, "lanes", "sink 'a'", 8) == value
        return
    with pytest.raises(PlanError, match=r"lanes=.* of sink 'a' is out of range") as caught:
        validation.checked_count(value, "lanes", "sink 'a'", 8)
    assert "from 1 to 8" in caught.value.next_step


def test_a_choice_becomes_its_member_and_an_unknown_one_lists_all() -> None:
    assert validation.checked_choice(OrderBy, "event_time", "order_by") is OrderBy.EVENT_TIME
    with pytest.raises(PlanError, match="order_by='time' is not known") as caught:
        validation.checked_choice(OrderBy, "time", "order_by")
    assert "'arrival', 'event_time'" in caught.value.next_step


def test_a_unit_is_one_of_four() -> None:
    assert [validation.checked_unit(unit) for unit in ("s", "ms", "us", "ns")] == ["s", "ms", "us", "ns"]
    with pytest.raises(PlanError, match="unit='min' is not known") as caught:
        validation.checked_unit("min")  # type: ignore[arg-type]
    assert "'ms'" in caught.value.next_step


@pytest.mark.parametrize("value", ["no", 0, 1, None])
def test_a_flag_of_another_type_is_refused(value: Any) -> None:
    assert validation.checked_flag(False, "strict", "pipeline 'p'") is False
    with pytest.raises(PlanError, match=r"strict=.* of pipeline 'p' is neither"):
        validation.checked_flag(value, "strict", "pipeline 'p'")


def test_lanes_as_the_format_of_a_sink_are_refused() -> None:
    assert validation.checked_target("file:out", "a") == "file:out"
    with pytest.raises(PlanError, match="sink 'a' cannot write lanes"):
        validation.checked_target("lanes:out", "a")


def test_a_function_is_called_by_its_name_in_the_error_and_by_its_place_if_it_has_one() -> None:
    with pytest.raises(PlanError, match=r"\.map\(\) was given 7"):
        validation.checked_function(7, "map")
    for check in (validation.checked_function, validation.checked_of_one):
        with pytest.raises(PlanError, match=r"\.join\(\) was given key=7"):
            check(7, "join", "key")
    with pytest.raises(PlanError, match=r"was given asked, a coroutine function"):
        validation.checked_function(asked, "map")


@pytest.mark.parametrize("function", [str, max, lambda *all: all, lambda one, two=2: one, bytes.decode])
def test_a_function_that_can_be_called_with_one_argument_is_accepted(function: Any) -> None:
    validation.checked_of_one(function, "map")


@pytest.mark.parametrize("function", [lambda: None, two, lambda *, one: one])
def test_a_function_that_cannot_be_called_with_one_argument_is_refused_with_its_signature(function: Any) -> None:
    with pytest.raises(PlanError, match=r"cannot be called with one argument: it is \("):
        validation.checked_of_one(function, "map")


def test_a_function_of_several_arguments_is_refused_with_their_names() -> None:
    validation.checked_call(two, "join", "join", ("left", "right"))
    with pytest.raises(PlanError, match=r"join=two, which cannot be called with \(a, b, c\)") as caught:
        validation.checked_call(two, "join", "join", ("a", "b", "c"), "; or omit it")
    assert caught.value.next_step == "give it a function of 3 arguments: (a, b, c); or omit it"
    with pytest.raises(PlanError) as caught:
        validation.checked_call(two, "map", "", ("record",))
    assert "was given two," in caught.value.sentence
    assert "a function of one argument: (record)" in caught.value.next_step
