"""The fusion: functions of one record that stand in a row, called in one `for` loop.

The one rule: each function is called once for a record, and for no record that a function before it has dropped or
raised on. The loop is made of our own words, a line for each stage, for nothing that Python has calls functions as
quickly; the user's functions are its arguments. Where one raises, the line tells the stage and what is left of the
values tells the row, so nothing is counted as long as nothing goes wrong. Before it and after it `plan/chain`. Pure.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import compress
from typing import Any

from procession.plan.graph import Kind

LINES = {
    Kind.MAP: "value = {function}(value)",
    Kind.FILTER: "if not {function}(value): continue",
    Kind.PEEK: "{function}(value)",
}
"""The kinds of stages that a loop can be made of: they give at most one value for one."""

_HEAD = ("def loop(values, results, rows, {functions}):", "    for {each} in values:")

Failed = Callable[[int, int, Exception], None]
"""Hears which function raised, on which row, and what."""


def fused(
    kinds: tuple[Kind, ...], functions: Sequence[Callable[[Any], Any]], values: Sequence[Any], failed: Failed
) -> tuple[list[Any], list[int] | None]:
    """What the functions make of these values, one after the other, and of which rows (None: of all of them)."""
    loop = _loop(kinds)
    results: list[Any] = []
    rows: list[int] = []
    refused: set[int] = set()
    left = iter(values)
    numbered: Iterator[Any] = enumerate(left) if Kind.FILTER in kinds else left
    while True:
        try:
            loop(numbered, results, rows, *functions)
            break
        except Exception as error:  # the user's code may raise anything; the record decides who acts
            place = _line(error) - len(_HEAD)
            if not 0 <= place < len(kinds):
                raise
            row = len(values) - operator.length_hint(left) - 1
            failed(place, row, error)
            refused.add(row)
    if Kind.FILTER in kinds:
        return results, rows if len(rows) < len(values) else None
    return results, [row for row in range(len(values)) if row not in refused] if refused else None


@cache
def _loop(kinds: tuple[Kind, ...]) -> Callable[..., None]:
    """The loop through stages of these kinds: a line for each, behind those of the head."""
    names = [f"function{place}" for place in range(len(kinds))]
    is_numbered = Kind.FILTER in kinds
    head = (line.format(functions=", ".join(names), each="row, value" if is_numbered else "value") for line in _HEAD)
    stages = (LINES[kind].format(function=name) for kind, name in zip(kinds, names, strict=True))
    ends = compress(("results.append(value)", "rows.append(row)"), (True, is_numbered))
    made: dict[str, Any] = {}
    exec("\n".join((*head, *(f"        {line}" for line in (*stages, *ends)))), made)
    loop: Callable[..., None] = made["loop"]
    return loop


def _line(error: Exception) -> int:
    """The line of the loop in which this was raised, counted from 0; -1 if it was not in the loop."""
    trace = error.__traceback__
    inside = trace.tb_next if trace is not None else None
    return -1 if inside is None else inside.tb_lineno - 1
