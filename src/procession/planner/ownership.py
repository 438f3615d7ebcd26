"""Ownership: deep copies of values that more than one holder could change.

Invariant: a copy and its original share no mutable object; immutable objects are not copied. A copy is a tree: an
object that occurs twice in a value may become two objects, as over an exchange. `planner/sharing` finds values with
several holders; stages get the copies. Pure.
"""

from __future__ import annotations

import copy
import operator
import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any
from uuid import UUID

import pyarrow as pa

from procession.operators.named_types import is_model

SCALARS = frozenset({bytes, str, int, float, bool, type(None)})
"""The immutable built-in types."""

IMMUTABLE = SCALARS | {
    *(complex, date, datetime, time, timedelta, timezone, Decimal, Fraction, UUID, range, re.Pattern),
    *(pa.Table, pa.RecordBatch),
}
"""Types whose values are never copied."""


def shared_part(value: Any) -> Any:
    """Return a mutable object that occurs twice in a value, or None. After the value is stored and read again, there
    are two objects, and a change of one does not affect the other."""
    seen: set[int] = set()

    def visit(part: Any) -> Any:
        kind, is_fixed = type(part), False
        parts: Iterable[Any] = ()
        if kind is list or isinstance(part, tuple):
            parts, is_fixed = part, kind is not list
        elif isinstance(part, dict):
            parts = part.values()
        elif is_dataclass(kind):
            parts = [getattr(part, field.name) for field in fields(kind)]
            is_fixed = getattr(kind, "__dataclass_params__").frozen  # noqa: B009  (mypy does not know it)
        elif is_model(kind):
            parts = part.__dict__.values()
        elif not isinstance(part, set | bytearray):
            return None
        if not is_fixed:
            if id(part) in seen:
                return part
            seen.add(id(part))
        # Most values have only plain parts, which this finds at once.
        if not SCALARS.issuperset(map(type, parts)):
            for element in parts:
                if type(element) not in SCALARS and (found := visit(element)) is not None:
                    return found
        return None

    return None if type(value) in SCALARS else visit(value)


LONG = 16
"""Length above which lists are checked as a whole before they are copied element by element."""


def own(value: Any) -> Any:
    """Return a copy that shares no mutable object with the value. Raises like `copy.deepcopy` if the value cannot be
    copied."""
    if type(value) in IMMUTABLE:
        return value
    try:
        return _copied(value)
    except RecursionError:  # the value contains itself
        return copy.deepcopy(value)


def own_all(values: list[Any]) -> list[Any]:
    """Return copies that share no mutable object with the values."""
    if IMMUTABLE.issuperset(map(type, values)):
        return values
    return [value if type(value) in IMMUTABLE else own(value) for value in values]


def separate(results: Iterable[Any], *, is_held: bool = False) -> list[Any]:
    """Return the results of one call as a list, no two of which share a mutable object. `is_held`: another holder has
    them, too. Results of an iterator are copied at once, because the iterator may still change them."""
    if is_held or type(results) not in (list, tuple):
        return [result if type(result) in IMMUTABLE else own(result) for result in results]
    first, *others = results if results else (None,)
    return [first, *own_all(others)] if results else []


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        copied = value.copy()
        for key, part in copied.items():
            if type(part) not in IMMUTABLE:
                copied[key] = _copied(part)
        return copied
    if kind is list:
        if len(value) > LONG and IMMUTABLE.issuperset(map(type, value)):
            return value.copy()
        return [part if type(part) in IMMUTABLE else _copied(part) for part in value]
    if kind is tuple:
        parts = tuple(map(_copied, value))
        return value if all(map(operator.is_, parts, value)) else parts
    if kind in IMMUTABLE or kind is frozenset or isinstance(value, Enum):
        return value
    if kind is set or kind is bytearray:
        return value.copy()
    return copy.deepcopy(value)
