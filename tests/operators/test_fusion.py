"""The loop that calls consecutive functions of one record, compared with one call after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.operators.fusion import LINES, MAPPING, fused
from procession.planner.graph import Kind

KINDS = st.lists(st.sampled_from(list(LINES)), min_size=1, max_size=4).map(tuple)


class Refused(Exception):
    """The exception that functions of these tests raise."""


def function_of(place: int, kind: Kind, calls: list[tuple[int, int]]) -> Callable[[int], Any]:
    """Return a function that raises for some values, drops others, and records every call."""

    def call(value: int) -> Any:
        calls.append((place, value))
        if value % 5 == place:
            raise Refused(place, value)
        return value % 3 if kind is Kind.FILTER else value * 7 + place

    return call


def one_by_one(
    kinds: tuple[Kind, ...], functions: list[Callable[[int], Any]], values: list[int]
) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    results, rows, failures = [], [], []
    for row, value in enumerate(values):
        for place, (kind, function) in enumerate(zip(kinds, functions, strict=True)):
            try:
                answer = function(value)
            except Refused:
                failures.append((place, row))
                break
            if kind is Kind.FILTER and not answer:
                break
            value = answer if kind in MAPPING else value
        else:
            results.append(value)
            rows.append(row)
    return results, rows, failures


@given(KINDS, st.lists(st.integers(0, 100), max_size=40))
def test_a_loop_does_what_one_call_after_the_other_does_and_calls_nothing_twice(
    kinds: tuple[Kind, ...], values: list[int]
) -> None:
    calls: list[tuple[int, int]] = []
    failures: list[tuple[int, int]] = []

    def failed(place: int, row: int, error: Exception) -> None:
        assert isinstance(error, Refused)
        failures.append((place, row))

    functions = [function_of(place, kind, calls) for place, kind in enumerate(kinds)]
    results, rows = fused(kinds, functions, values, failed)
    made = list(calls)
    calls.clear()
    expected = one_by_one(kinds, functions, values)
    assert (results, list(range(len(values))) if rows is None else rows.tolist(), failures) == expected
    assert made == calls


def test_an_error_raised_by_the_error_handler_ends_the_loop() -> None:
    def stop(place: int, row: int, error: Exception) -> None:
        raise LookupError(place, row)

    with pytest.raises(LookupError) as raised:
        fused((Kind.PEEK, Kind.MAP), [str, int], ["1", "2", "x", "3"], stop)
    assert raised.value.args == (1, 2)


def test_a_built_in_function_is_distinguished_from_the_loop_itself() -> None:
    failures: list[tuple[int, int]] = []
    results, rows = fused(
        (Kind.FILTER, Kind.MAP), [len, int], ["1", "", "x", "3"], lambda place, row, _: failures.append((place, row))
    )
    assert rows is not None
    assert (results, rows.tolist(), failures) == ([1, 3], [0, 3], [(1, 2)])
