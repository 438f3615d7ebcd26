"""Functions of one expression are compiled into the loop in place of their calls, and compared with those calls."""

from __future__ import annotations

import linecache
import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from types import FunctionType
from typing import Any

import pytest

from procession.operators.fusion import VALUE, fused
from procession.operators.inlining import body_of
from procession.planner.graph import Kind

LIMIT = 3
LINES = [b"0000000001 a", b"7 seven", b" 14\n", b"\xff", b""]


def is_wanted(record: bytes) -> bool:
    return int(record[:10]) % 7 != 0


def marked(record: bytes) -> bytes:
    """With a docstring; and 'quotes' in it."""
    return b"%d %s" % (len(record), record.replace(b" ", b",\n"))


def on_many_lines(record: bytes) -> bytes:
    return (
        record[:LIMIT]  # a global of the module
        + b","
        + (b"long" if len(record) > LIMIT else b"short")
    )


def formatted(record: bytes) -> str:
    return f"{record!r:>{LIMIT}} {'ab'}"


short = lambda record: record[1:LIMIT]  # noqa: E731
pair = (lambda record: record + b"1", lambda record: record + b"2")

INLINED = [is_wanted, marked, on_many_lines, formatted, short, *pair]


@pytest.mark.parametrize("function", INLINED)
def test_an_inlined_function_returns_and_raises_the_same_as_its_call(function: Callable[[Any], Any]) -> None:
    assert body_of(function, VALUE, linecache.getlines) is not None
    runs = []
    for lines_of in (None, linecache.getlines):
        failures: list[tuple[int, int, str]] = []

        def failed(place: int, row: int, error: Exception, to: list[tuple[int, int, str]] = failures) -> None:
            to.append((place, row, repr(error)))

        runs.append((*map(repr, fused((Kind.MAP,), [function], LINES, failed, lines_of)), failures))
    assert runs[0] == runs[1]


def twice(function: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    @wraps(function)
    def called(record: bytes) -> bytes:
        return function(function(record))

    return called


@twice
def decorated(record: bytes) -> bytes:
    return record + b"!"


def with_a_scope(record: bytes) -> Any:
    return (record for _ in range(LIMIT))


def with_a_name(record: bytes) -> bytes:
    return (rest := record[1:]) + rest


def with_two_steps(record: bytes) -> bytes:
    record = record[1:]
    return record + record


def on_frames(record: bytes) -> Any:
    return locals()


def logging_itself(record: bytes) -> None:
    return logging.getLogger("marked").warning(record)


def of_anything(record: bytes) -> bytes:
    return is_wanted(record) and marked(record)


LONG = "lambda record: record" + ".strip()" * 300


def with_a_default(record: bytes, end: bytes = b"!") -> bytes:
    return record + end


our_values = 2


def with_our_name(record: bytes) -> bytes:
    return record[our_values:]


def yielding(record: bytes) -> Any:
    return (yield record)


CALLED = [
    decorated,
    with_a_scope,
    with_a_name,
    with_two_steps,
    on_frames,
    logging_itself,
    of_anything,
    with_a_default,
    with_our_name,
    yielding,
]


@pytest.mark.parametrize("function", [*CALLED, twice(marked), len, bytes.upper, partial(with_a_default, end=b"?")])
def test_a_function_that_is_more_than_one_expression_is_called(function: Callable[[Any], Any]) -> None:
    assert body_of(function, VALUE, linecache.getlines) is None


def test_a_source_file_that_has_changed_is_not_used() -> None:
    def changed(name: str) -> Sequence[str]:
        return [line.replace("% 7", "% 8").replace("LIMIT", "OTHER") for line in linecache.getlines(name)]

    for function in (is_wanted, on_many_lines, short):
        assert body_of(function, VALUE, changed) is None
    assert body_of(is_wanted, VALUE, lambda _: []) is None
    assert body_of(is_wanted, VALUE, lambda _: ["no Python at all"]) is None


def of_another_module(function: Any, **names: Any) -> Any:
    """Return the same code in a module where its names have other meanings."""
    return FunctionType(function.__code__, {**function.__globals__, **names})


def test_names_mean_what_they_mean_in_the_functions_own_module_at_that_moment() -> None:
    other = of_another_module(short, LIMIT=2)

    def once(*functions: Any) -> list[Any]:
        kinds = (Kind.MAP,) * len(functions)
        return fused(kinds, functions, [b"abcdef"], lambda *_: None, linecache.getlines)[0]

    assert once(short) == [b"bc"]
    assert once(other) == [b"b"]
    assert once(pair[0], other, short) == [b""]
    assert once(lambda record: record + b"g", short) == [b"bc"]
    other.__globals__["LIMIT"] = 5
    assert once(other) == [b"bcde"]
    other.__globals__["len"] = lambda _: 0
    assert once(of_another_module(on_many_lines, len=lambda _: 0)) == [b"abc,short"]


def test_an_error_names_the_stage_the_row_and_the_function() -> None:
    failures = []

    def failed(place: int, row: int, error: Exception) -> None:
        failures.append((place, row, type(error), error.__notes__))

    kinds = (Kind.MAP, Kind.FILTER, Kind.PEEK)
    results, rows = fused(kinds, [pair[0], is_wanted, marked], [b"1", b"x", b"7", b"3"], failed, linecache.getlines)
    line = is_wanted.__code__.co_firstlineno
    assert failures == [(1, 1, ValueError, [f'in is_wanted, File "{__file__}", line {line}'])]
    assert rows is not None
    assert (results, rows.tolist()) == ([b"11", b"71", b"31"], [0, 2, 3])


def test_a_debugger_or_profiler_sees_the_functions_called() -> None:
    seen = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: seen.append(frame.f_code.co_name) if event == "call" else None)
    try:
        fused((Kind.MAP,), [is_wanted], [b"1"], lambda *_: None, linecache.getlines)
    finally:
        sys.setprofile(before)
    assert "is_wanted" in seen


def test_a_function_that_cannot_be_compiled_again_is_called() -> None:
    function = eval(compile(LONG, "long", "eval"))
    assert body_of(function, VALUE, lambda _: [LONG]) is None


class Refusing(Exception):
    def add_note(self, _: str) -> None:
        raise TypeError("no notes")


class Record:
    """A record for which the same exception object is raised each time."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def marked(self) -> None:
        raise self.error


def test_an_exception_is_reported_even_if_it_refuses_notes() -> None:
    for error, notes in ((Refusing(), 0), (ValueError("the same"), 1)):
        failures: list[Exception] = []
        fused(
            (Kind.MAP,),
            [lambda record: record.marked()],
            [Record(error)] * 3,
            lambda _place, _row, failure, to=failures: to.append(failure),  # type: ignore[misc]
            linecache.getlines,
        )
        assert failures == [error] * 3
        assert len(getattr(error, "__notes__", ())) == notes
