"""Keyed stages, without Spark: how a step's result becomes output and state, and how an error changes the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from procession import aggregates
from procession.operators.keyed import (
    NO_PAIR,
    NO_RESULTS,
    KeyedOperator,
    StepResult,
    explained_error,
    is_open,
    output_functions,
    reducing,
    starting_with,
)
from procession.operators.operator import OperatorRows
from procession.operators.stage_rows import StageRows
from tests.operators.test_operator import MemoryStates

Refused = list[tuple[int, str]]


class Touched(MemoryStates):
    """States that record which keys were reported as changed."""

    def __init__(self) -> None:
        super().__init__()
        self.touched: list[bytes] = []

    def touch(self, keys: Any) -> None:
        self.touched += keys


def run(
    operator: KeyedOperator, states: MemoryStates, *records: tuple[bytes, Any]
) -> tuple[list[Any], list[int], Refused]:
    """Return the output, the row that each part belongs to, and the refused rows."""
    refused: Refused = []
    rows = StageRows([value for _, value in records], keys=pa.array([key for key, _ in records], pa.binary()))
    found = operator.add(states, OperatorRows(rows), lambda row, error: refused.append((row, str(error))))
    return found.as_list(), found.all_origins().tolist(), refused


def keyed(step: Callable[[Any, Any], Any], returns: StepResult = StepResult.ONE, initial: Any = 0) -> KeyedOperator:
    return KeyedOperator(returns, step, starting_with(initial))


def total(state: int, value: int) -> tuple[int, int]:
    if value < 0:
        raise ValueError("negative")
    return state + value, state + value


def test_each_key_has_a_state_of_its_own_that_lasts() -> None:
    states = MemoryStates()
    assert run(keyed(total), states, (b"a", 1), (b"b", 10), (b"a", 2))[0] == [1, 10, 3]
    assert run(keyed(total), states, (b"b", 1))[0] == [11]
    assert states == {b"a": 3, b"b": 11}


def test_a_step_that_raises_fails_only_its_record() -> None:
    states = MemoryStates()
    found = run(keyed(total), states, (b"a", 1), (b"a", -1), (b"b", -1), (b"a", 2))
    assert found == ([1, 3], [0, 3], [(1, "negative"), (2, "negative")])
    assert states == {b"a": 3}, "a new key whose step raised has no state"


def test_none_as_the_state_removes_the_key() -> None:
    states = MemoryStates()
    states[b"a"] = 5
    assert run(keyed(lambda state, value: (None, state)), states, (b"a", 1), (b"a", 1))[0] == [5, 0]
    assert states == {}


@pytest.mark.parametrize("returns", [StepResult.ONE, StepResult.MANY, StepResult.KEEP])
def test_a_step_that_returns_no_pair_is_an_error(returns: StepResult) -> None:
    assert run(keyed(lambda state, value: 7, returns), MemoryStates(), (b"a", 1))[2] == [(0, NO_PAIR)]


def test_the_message_of_an_error_in_the_users_function_is_kept_even_if_it_is_about_unpacking() -> None:
    def step(state: Any, value: Any) -> Any:
        one, other = value
        return state, one + other

    ((_, words),) = run(keyed(step), MemoryStates(), (b"a", (1, 2, 3)))[2]
    assert "too many values to unpack" in words
    assert str(explained_error(ValueError("cannot unpack"))) == "cannot unpack"


def test_several_results_are_numbered_within_their_record() -> None:
    states = MemoryStates()
    rows = StageRows([2, 0, 1], keys=pa.array([b"a", b"a", b"b"], pa.binary()))
    operator = keyed(lambda state, value: (state + 1, [value] * value), StepResult.MANY)
    found = operator.add(states, OperatorRows(rows), lambda row, error: None)
    assert found.as_list() == [2, 2, 1]
    assert found.all_origins().tolist() == [0, 0, 2]
    assert found.tail[-1].tolist() == [0, 1, 0]


def test_none_instead_of_results_is_an_error_and_leaves_the_state() -> None:
    states = MemoryStates()
    assert run(keyed(lambda state, value: (9, None), StepResult.MANY), states, (b"a", 1)) == ([], [], [(0, NO_RESULTS)])
    assert states == {}


def test_a_filter_keeps_the_records_whose_result_is_true() -> None:
    operator = keyed(lambda state, value: (state + 1, state % 2), StepResult.KEEP)
    assert run(operator, MemoryStates(), (b"a", "x"), (b"a", "y"), (b"b", "z"))[:2] == (["y"], [1])


def test_only_the_first_record_of_a_key_is_kept_and_only_new_keys_are_reported() -> None:
    states = Touched()
    operator = KeyedOperator(StepResult.FIRST, None, dict)
    assert run(operator, states, (b"a", 1), (b"b", 2), (b"a", 3))[:2] == ([1, 2], [0, 1])
    assert run(operator, states, (b"b", 4), (b"c", 5))[:2] == ([5], [1])
    assert states.touched == [b"a", b"b", b"c"]


@pytest.mark.parametrize("returns", [StepResult.ONE, StepResult.MANY, StepResult.KEEP])
def test_the_output_never_shares_an_object_with_the_state(returns: StepResult) -> None:
    def step(state: list[Any], value: Any) -> Any:
        state.append(value)
        return state, {StepResult.ONE: state, StepResult.MANY: [state], StepResult.KEEP: True}[returns]

    states = MemoryStates()
    record = ["r"]
    (found, *_), *_ = run(keyed(step, returns, list), states, (b"a", record))
    states[b"a"].append("later")
    if returns is StepResult.KEEP:
        states[b"a"][0].append("later")
    assert found == (["r"] if returns is StepResult.KEEP else [["r"]])


@pytest.mark.parametrize(
    ("state", "is_changeable"), [(1, False), ("a", False), ((1, "a"), False), ((1, []), True), ([], True), ({}, True)]
)
def test_a_state_of_scalars_cannot_change_in_place(state: Any, is_changeable: bool) -> None:
    assert is_open(state) == is_changeable


@pytest.mark.parametrize("initial", [[1], lambda shared=[1]: shared], ids=["a value", "a function"])
def test_each_new_key_gets_an_initial_state_of_its_own(initial: Any) -> None:
    make = starting_with(initial)
    first = make()
    first.append(2)
    assert make() == [1]


def test_a_reduction_begins_with_the_first_record_even_if_a_result_is_none() -> None:
    step = reducing(lambda whole, value: None if value == 0 else (whole or 0) + value)
    state: Any = None
    results = []
    for value in (5, 0, 3):
        state, result = step(state, value)
        results.append(result)
    assert results == [5, None, 3]


def test_the_functions_of_an_aggregate_are_those_of_the_user_and_not_its_step() -> None:
    count = aggregates.count()
    assert output_functions(total) == (total,)
    assert output_functions(None) == ()
    assert output_functions(count.step) == (count.create, count.add, count.finish)
