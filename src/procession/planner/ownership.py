"""Ownership: deep copies of values that more than one holder could change.

The one rule: a copy shares nothing with the original that can be changed in place; what cannot be changed is not
copied. A copy is a tree: an object that occurs twice in a value may become two, as it does on the way over an exchange.
Before it `planner/sharing`, which says where a value has several holders; after it the stages that are given the
copies. Pure.
"""

from __future__ import annotations

import copy
import operator
import re
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any
from uuid import UUID

import pyarrow as pa

SCALARS = frozenset({bytes, str, int, float, bool, type(None)})
"""The plain types that cannot be changed in place."""

IMMUTABLE = SCALARS | {
    *(complex, date, datetime, time, timedelta, timezone, Decimal, Fraction, UUID, range, re.Pattern),
    *(pa.Table, pa.RecordBatch),
}
"""Types whose values are never copied."""


LONG = 16
"""Lists longer than this are looked through at once before they are copied part by part."""


def own(value: Any) -> Any:
    """The same value, sharing nothing that can be changed. Raises what `copy.deepcopy` raises on a value that cannot be
    copied."""
    if type(value) in IMMUTABLE:
        return value
    try:
        return _copied(value)
    except RecursionError:  # a value that contains itself
        return copy.deepcopy(value)


def own_all(values: list[Any]) -> list[Any]:
    """The same values, sharing nothing that can be changed."""
    if IMMUTABLE.issuperset(map(type, values)):
        return values
    return [value if type(value) in IMMUTABLE else own(value) for value in values]


def separate(results: Iterable[Any], *, is_held: bool = False) -> list[Any]:
    """The results of one call, none of which shares with another what can be changed. `is_held`: somebody else holds
    them too. What an iterator gives is copied at once, because the iterator may still change it."""
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
