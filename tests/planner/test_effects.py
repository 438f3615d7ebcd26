"""The effects of functions, read from their code. Anything unknown is a "no", because a wrong "yes" would omit a copy
that is needed."""

from __future__ import annotations

import builtins
import functools
import json
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest

from procession.bench.apps import by_record
from procession.bench.peers import fields
from procession.planner.effects import changes_nothing, returns_own_objects

NUMBER = 7
NAMES = {"a": "Anna"}
ROWS: dict[str, Any] = {"a": {"name": "Anna"}}
HANDLERS: dict[str, Callable[[Any], Any]] = {"a": lambda value: value.clear()}
PATTERN = re.compile("a+")


@dataclass
class Order:
    price: int
    parts: list[int] = field(default_factory=list)


class Table:
    rows = ROWS


def helper(value: Any) -> Any:
    return value["a"]


def bad_helper(value: Any) -> Any:
    value["a"] = 1
    return value


def looking_up(value: Any) -> Any:
    return ROWS[value["a"]]


def recursive(value: Any) -> Any:
    return recursive(value[1:]) if value else value


@functools.lru_cache
def remembered(value: Any) -> Any:
    return [value]


def with_state(value: Any, seen: list[Any] = []) -> Any:  # noqa: B006
    return seen


def adding(value: Any) -> Any:
    value += [1]
    return value


def evaluated(value: Any) -> Any:
    return eval("ROWS")


def local_names(value: Any) -> Any:
    total = 0
    for one in value["items"]:
        total = total + one["price"] * NUMBER
    return {**value, "total": total, "names": [one["name"].upper() for one in value["items"] if one]}


def closing(over: Any) -> Callable[[Any], Any]:
    return lambda value: [over, value]


HARMLESS: list[Callable[..., Any]] = [
    *(by_record.is_wanted, by_record.parted, by_record.marked, fields.is_wanted, fields.parted, fields.marked),
    *(local_names, recursive, helper, len, str.upper, json.loads, int, operator.itemgetter("a")),
    functools.partial(max, 3),
    lambda value: {**value, "a": 1},
    lambda value: value["a"] > NUMBER and "b" in value,
    lambda value: f"{value['a']:5} {math.sqrt(value['b'])}",
    lambda value: json.dumps(sorted(value.items(), key=lambda item: item[1])),
    lambda value: PATTERN.match(value) and NAMES[value],
    lambda value: helper(value).partition(",")[0],
    lambda value: datetime.fromisoformat(value).timestamp(),
    closing(3),
]
CHANGING: list[Callable[..., Any]] = [
    *(bad_helper, adding, evaluated, dict.update, list.append, builtins.setattr, HANDLERS["a"]),
    functools.partial(bad_helper),
    Table(),  # type: ignore[list-item]
    Order,
    lambda value: value.update(a=1),
    lambda value: value.setdefault("a", []),
    lambda value: value["a"].append(1),
    lambda value: value["a"].sort() or value,
    lambda value: bad_helper(value),
    lambda value: [bad_helper(one) for one in value],
    lambda value: HANDLERS[value["a"]](value),
    lambda value: operator.setitem(value, "a", 1),
    lambda value: value.__setitem__("a", 1),
    lambda value: value.price,
    lambda value: unknown(value),  # type: ignore[name-defined]  # noqa: F821
    lambda value: (lambda inner: inner.pop())(value),
    closing(bad_helper),
]

OWN: list[Callable[..., Any]] = [
    *HARMLESS[:14],
    *(bad_helper, adding, Order, json.loads, str.split),
    functools.partial(helper),
    lambda value: Order(value["price"]),
    lambda value: value.setdefault("a", [NUMBER]),
    lambda value: dict(value, a=re.findall("a", value["b"])),
    closing("text"),
    ", ".join,
]
HELD: list[Callable[..., Any]] = [
    *(looking_up, remembered, with_state, evaluated, NAMES.get),
    functools.partial(max, ROWS),
    functools.partial(looking_up),
    Table().rows.get,
    lambda value: ROWS,
    lambda value: {**value, "row": Table.rows["a"]},
    lambda value: looking_up(value),
    lambda value: [remembered(one) for one in value],
    lambda value, row={}: row,
    lambda value: getattr(Table, "rows"),  # noqa: B009
    lambda value: unknown(value),  # type: ignore[name-defined]  # noqa: F821
    closing([]),
    Table(),  # type: ignore[list-item]
]


@pytest.mark.parametrize("function", HARMLESS)
def test_a_function_that_changes_nothing_is_recognized(function: Callable[..., Any]) -> None:
    assert changes_nothing(function)


@pytest.mark.parametrize("function", CHANGING)
def test_a_function_that_may_change_something_is_not_recognized(function: Callable[..., Any]) -> None:
    assert not changes_nothing(function)


@pytest.mark.parametrize("function", OWN)
def test_a_function_that_returns_only_its_argument_or_new_objects_is_recognized(function: Callable[..., Any]) -> None:
    assert returns_own_objects(function)


@pytest.mark.parametrize("function", HELD)
def test_a_function_that_may_return_shared_objects_is_not_recognized(function: Callable[..., Any]) -> None:
    assert not returns_own_objects(function)
