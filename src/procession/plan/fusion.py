"""The fusion: functions of one record that stand in a row, called in one `for` loop.

The one rule: each function is called once for a record, and for no record that a function before it has dropped or
raised on. The loop is made of our own words, a line for each stage, for nothing that Python has calls functions as
quickly; the user's functions are its arguments. Nothing is counted as long as nothing goes wrong: where a function
raises, the line tells the stage, and what was made and dropped before tells the row. Before it and after it
`plan/chain`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from procession.plan.flow import Numbers
from procession.plan.graph import Kind

LINES = {
    Kind.MAP: "value = {function}(value)",
    Kind.FILTER: "if not {function}(value): dropped.append(len(results)); continue",
    Kind.PEEK: "{function}(value)",
}
"""The kinds of stages that a loop can be made of: they give at most one value for one."""

_HEAD = ("def loop(values, results, dropped, {functions}):", "    for value in values:")
_END = "results.append(value)"

Failed = Callable[[int, int, Exception], None]
"""Hears which function raised, on which row, and what."""


def fused(
    kinds: tuple[Kind, ...], functions: Sequence[Callable[[Any], Any]], values: Sequence[Any], failed: Failed
) -> tuple[list[Any], Numbers | None]:
    """What the functions make of these values, one after the other, and of which rows (None: of all of them)."""
    loop = _loop(kinds)
    results: list[Any] = []
    dropped: list[int] = []
    """Of each row that gave nothing, how many results there were before it."""
    left = iter(values)
    while True:
        try:
            loop(left, results, dropped, *functions)
            break
        except Exception as error:  # the user's code may raise anything; the record decides who acts
            place = _line(error) - len(_HEAD)
            if not 0 <= place < len(kinds):
                raise
            failed(place, len(results) + len(dropped), error)
            dropped.append(len(results))
    return results, _kept(len(results), dropped) if dropped else None


def _kept(count: int, dropped: Sequence[int]) -> Numbers:
    """The rows of so many results: each stands behind those before it, and behind what was dropped until then."""
    drops = np.bincount(np.fromiter(dropped, np.int64, len(dropped)), minlength=count)[:count]
    rows: Numbers = np.arange(count, dtype=np.int64) + np.cumsum(drops)
    return rows


@cache
def _loop(kinds: tuple[Kind, ...]) -> Callable[..., None]:
    """The loop through stages of these kinds: a line for each, behind those of the head."""
    names = [f"function{place}" for place in range(len(kinds))]
    head = (line.format(functions=", ".join(names)) for line in _HEAD)
    stages = (LINES[kind].format(function=name) for kind, name in zip(kinds, names, strict=True))
    made: dict[str, Any] = {}
    exec("\n".join((*head, *(f"        {line}" for line in (*stages, _END)))), made)
    loop: Callable[..., None] = made["loop"]
    return loop


def _line(error: Exception) -> int:
    """The line of the loop in which this was raised, counted from 0; -1 if it was not in the loop."""
    trace = error.__traceback__
    inside = trace.tb_next if trace is not None else None
    return -1 if inside is None else inside.tb_lineno - 1
