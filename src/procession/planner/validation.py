"""Validation of a user's names, targets, numbers and choices.

Invariant: a check returns its argument, or raises a `PlanError` that says what to write instead. Used by `api/pipeline`
and `api/stage`, so that all parts of a `planner/graph` are checked.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from procession.errors import PlanError
from procession.planner.connector import Packing
from procession.planner.connector_registry import sink_of
from procession.times import UNITS, Unit

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


def checked_name(name: str, what: str) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise PlanError(
            f"{name!r} cannot name {what}", next_step="use 1 to 64 letters, digits, '-' and '_', not beginning with '-'"
        )
    return name


def checked_target(to: str, name: str) -> str:
    connector, _ = sink_of(to, f"sink {name!r}")
    if connector.sink is not None and connector.sink.packing is Packing.LANES:
        raise PlanError(f"sink {name!r} cannot write lanes", next_step="write file:DIR, or another connector")
    return to


def checked_choice(kind: type[Any], value: str, what: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(member.value) for member in kind)
        raise PlanError(f"{what}={value!r} is not known", next_step=f"choose one of {known}") from None


def checked_function(function: Any, word: str, what: str = "") -> None:
    if not callable(function):
        given = f"{what}={function!r}" if what else repr(function)
        raise PlanError(f".{word}() was given {given}", next_step="give it a function")
    if inspect.iscoroutinefunction(function):
        raise PlanError(
            f".{word}() was given {_name_of(function)}, a coroutine function, and its result would not be awaited",
            next_step="write it without `async`, or use map_async",
        )


def checked_of_one(function: Any, word: str, what: str = "") -> None:
    """Return a function that can be called with one record, as far as its signature shows."""
    checked_function(function, word, what)
    if (signature := _mismatch(function, (None,))) is not None:
        raise PlanError(
            f".{word}() was given {_name_of(function)}, which cannot be called with one argument: it is {signature}",
            next_step="give it a function of one argument; those of map, filter and flat_map may have a second one, for"
            " key, event time and stream: (value, context: procession.Context)",
        )


def checked_call(function: Any, word: str, what: str, arguments: tuple[str, ...], more: str = "") -> None:
    """Return a function that can be called with these arguments, as far as its signature shows. `more` is added to the
    next step."""
    checked_function(function, word, what)
    if (signature := _mismatch(function, arguments)) is not None:
        given = f"{what}={_name_of(function)}" if what else _name_of(function)
        count = "one argument" if len(arguments) == 1 else f"{len(arguments)} arguments"
        raise PlanError(
            f".{word}() was given {given}, which cannot be called with ({', '.join(arguments)}): it is {signature}",
            next_step=f"give it a function of {count}: ({', '.join(arguments)}){more}",
        )


def _name_of(function: Any) -> str:
    """Return the name of a function for people."""
    name = getattr(function, "__qualname__", "")
    return name.rpartition("<locals>.")[2] or repr(function)


def _mismatch(function: Any, arguments: tuple[Any, ...]) -> inspect.Signature | None:
    """Return the function's signature if it does not accept these arguments. None: it accepts them, or has no
    signature."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return None
    try:
        signature.bind(*arguments)
    except TypeError:
        return signature
    return None


def checked_seconds(value: float, what: str, owner: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1e9:
        raise PlanError(f"{what}={value!r} of {owner} is not a time", next_step="give seconds, 0 or more")
    return value


def checked_unit(unit: Unit) -> Unit:
    if unit not in UNITS:
        known = ", ".join(map(repr, UNITS))
        raise PlanError(f"unit={unit!r} is not known", next_step=f"choose one of {known}")
    return unit


def checked_count(value: int, what: str, owner: str, largest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
        raise PlanError(
            f"{what}={value!r} of {owner} is out of range", next_step=f"choose a number from 1 to {largest}"
        )
    return value


def checked_flag(value: bool, what: str, owner: str) -> bool:
    # The texts "no" and "0" would count as true.
    if not isinstance(value, bool):
        raise PlanError(f"{what}={value!r} of {owner} is neither True nor False", next_step="write True or False")
    return value
