"""Fusion: consecutive functions of one record, called in one `for` loop.

Invariant: each function is called once for a record, and not for a record that an earlier function dropped or raised
on. The loop is generated code with a line for each stage, because Python has no faster way to call functions. The
user's functions are its arguments, or are inlined (`operators/inlining`). The loop counts no rows. When a function
raises, the line number gives the stage, and the numbers of results and dropped rows give the row. Used by
`operators/chain`. Pure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from procession.operators.inlining import OURS, LinesOf, body_of
from procession.operators.stage_rows import Numbers
from procession.planner.graph import Kind
from procession.planner.ownership import own

LINES = {
    Kind.MAP: "our_value = {call}",
    Kind.SPLIT: "our_value = {call}",
    Kind.FILTER: "if not ({call}): our_dropped.append(our_count(our_results)); continue",
    Kind.PEEK: "{call}",
}
"""The line of the loop for each kind of stage that can be fused: stages with at most one result per record."""
MAPPING = frozenset({Kind.MAP, Kind.SPLIT})
OWNED = "our_value = our_own({call})"
"""The line for a map whose function may still hold a reference to its result."""

VALUE = f"{OURS}value"

_HEAD = (
    "def loop(our_values, our_results, our_dropped, our_count, our_own, {functions}):",
    "    for our_value in our_values:",
)
_END = "our_results.append(our_value)"

Failed = Callable[[int, int, Exception], None]
"""Called with the number of the function that raised, the row, and the error."""


def fused(
    kinds: tuple[Kind, ...],
    functions: Sequence[Callable[[Any], Any]],
    values: Sequence[Any],
    failed: Failed,
    lines_of: LinesOf | None = None,
    are_owned: tuple[bool, ...] = (),
) -> tuple[list[Any], Numbers | None]:
    """Apply the functions to these values. Returns the results, and the row of each (None: one result for every row).
    With `lines_of`, functions that are a single expression are inlined into the loop. `are_owned` marks the maps whose
    result is copied before the next stage gets it."""
    bodies, names = _bodies(functions, lines_of)
    loop = FunctionType(_loop(kinds, bodies, are_owned or (False,) * len(kinds)), names)
    results: list[Any] = []
    dropped: list[int] = []
    """For each row without a result, the number of results before it."""
    left = iter(values)
    while True:
        try:
            loop(left, results, dropped, len, own, *functions)
            break
        except Exception as error:  # user code may raise any exception
            place = _line(error) - len(_HEAD)
            if not 0 <= place < len(kinds):
                raise
            if bodies[place] is not None:
                _note(error, functions[place].__code__)
            failed(place, len(results) + len(dropped), error)
            dropped.append(len(results))
    return results, _kept(len(results), dropped) if dropped else None


def _note(error: Exception, code: CodeType) -> None:
    """Add the location of the function to the error, because the traceback does not show it. The class of the error may
    not allow notes, or the note may exist already."""
    note = f'in {code.co_name}, File "{code.co_filename}", line {code.co_firstlineno}'
    with suppress(Exception):
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


def _bodies(
    functions: Sequence[Callable[[Any], Any]], lines_of: LinesOf | None
) -> tuple[tuple[str | None, ...], dict[str, Any]]:
    """Return the expression of each function that is inlined, and None for each that is called. Also returns the
    globals that the expressions use: the dictionary itself, because its values may change."""
    # Debuggers, profilers and coverage must see the calls of the functions.
    if lines_of is None or sys.gettrace() is not None or sys.getprofile() is not None:
        return (None,) * len(functions), {}
    found = [body_of(function, VALUE, lines_of) for function in functions]
    open_sessions = (function for function, body in zip(functions, found, strict=True) if body and not body.is_closed)
    names: dict[str, Any] = getattr(next(open_sessions, None), "__globals__", {})
    return tuple(
        body.text if body and (body.is_closed or getattr(function, "__globals__", None) is names) else None
        for function, body in zip(functions, found, strict=True)
    ), names


def _kept(count: int, dropped: Sequence[int]) -> Numbers:
    """Return the row of each of this many results: its number plus the number of rows dropped before it."""
    drops = np.bincount(np.fromiter(dropped, np.int64, len(dropped)), minlength=count)[:count]
    rows: Numbers = np.arange(count, dtype=np.int64) + np.cumsum(drops)
    return rows


@cache
def _loop(kinds: tuple[Kind, ...], bodies: tuple[str | None, ...], are_owned: tuple[bool, ...]) -> CodeType:
    """Return the code of the loop over stages of these kinds: the head, then a line for each stage."""
    names = [f"our_function{place}" for place in range(len(kinds))]
    head = (line.format(functions=", ".join(names)) for line in _HEAD)
    calls = (body or f"{name}({VALUE})" for name, body in zip(names, bodies, strict=True))
    lines = (
        OWNED if is_owned and kind in MAPPING else LINES[kind] for kind, is_owned in zip(kinds, are_owned, strict=True)
    )
    stages = (line.format(call=call) for line, call in zip(lines, calls, strict=True))
    whole = compile("\n".join((*head, *(f"        {line}" for line in (*stages, _END)))), "loop", "exec")
    return next(constant for constant in whole.co_consts if isinstance(constant, CodeType))


def _line(error: Exception) -> int:
    """Return the line of the loop in which this was raised, counted from 0; -1 if it was raised elsewhere."""
    trace = error.__traceback__
    inside = trace.tb_next if trace is not None else None
    return -1 if inside is None else inside.tb_lineno - 1
