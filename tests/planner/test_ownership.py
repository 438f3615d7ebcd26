"""Copies are equal, of the same types, and share no object that can be changed."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from copy import deepcopy
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.planner.ownership import IMMUTABLE, own, own_all, separate

Pair = namedtuple("Pair", "left right")


@dataclass
class Thing:
    parts: list[int] = field(default_factory=list)


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary())
VALUES = st.recursive(
    LEAVES | st.builds(bytearray, st.binary()) | st.builds(Thing, st.lists(st.integers())),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.sets(st.integers(), max_size=3)
        | st.builds(Pair, inner, inner)
        | st.dictionaries(st.text(), inner, max_size=3).map(OrderedDict)
    ),
)


def parts_of(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, Thing):
        return [value.parts]
    return list(value) if isinstance(value, list | tuple) else []


def objects_in(value: Any) -> list[Any]:
    """Return all objects in a value that can be changed or contain one that can."""
    if type(value) in IMMUTABLE or isinstance(value, frozenset):
        return []
    inner = [held for part in parts_of(value) for held in objects_in(part)]
    return inner if isinstance(value, tuple) else [value, *inner]


def is_alike(one: Any, other: Any) -> bool:
    inner = zip(parts_of(one), parts_of(other), strict=True)
    return type(one) is type(other) and one == other and all(is_alike(*pair) for pair in inner)


@given(VALUES)
def test_a_copy_is_equal_and_shares_no_mutable_object(value: Any) -> None:
    before = deepcopy(value)
    copied = own(value)
    assert is_alike(copied, before)
    assert not {id(held) for held in objects_in(value)} & {id(part) for part in objects_in(copied)}


@pytest.mark.parametrize("value", [1, "text", b"bytes", None, Decimal(1), (1, ("a", b"b"))])
def test_an_immutable_value_is_not_copied(value: Any) -> None:
    assert own(value) is value
    values = [value, value]
    if type(value) in IMMUTABLE:
        assert own_all(values) is values


def test_a_value_that_contains_itself_can_be_copied() -> None:
    value: dict[str, Any] = {"parts": [1]}
    value["self"] = value
    copied = own(value)
    assert copied["self"] is copied
    assert copied["parts"] == [1]
    assert copied["parts"] is not value["parts"]


@pytest.mark.parametrize("kind", [list, tuple, iter])
@pytest.mark.parametrize("is_held", [False, True])
def test_results_do_not_share_objects_with_each_other_or_with_states(kind: Any, is_held: bool) -> None:
    shared = [1]
    results = separate(kind([{"a": shared}, {"a": shared}, 3]), is_held=is_held)
    assert results == [{"a": [1]}, {"a": [1]}, 3]
    assert results[0]["a"] is not results[1]["a"]
    assert results[1]["a"] is not shared
    assert results[0]["a"] is not shared or not is_held
    assert separate(kind([]), is_held=is_held) == []
