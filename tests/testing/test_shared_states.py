"""A state that contains one object twice is refused, for any epoch size. All other states are restored unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

from procession import Pipeline, PlanError
from procession.planner.ownership import shared_part
from procession.testing import run


@dataclass
class Basket:
    items: list[int]
    last: Any = None


@dataclass(frozen=True)
class Place:
    name: str
    near: Any = None


class Color(Enum):
    RED = 1


SAME: list[int] = []
BOTH = Basket([])
HOME = Place("home")


def counting(state: Any, number: int) -> tuple[Any, str]:
    """Append to one of two lists that are one object at first, and return the text of the state."""
    if state is None:
        numbers: list[int] = []
        state = {"all": numbers, "seen": numbers}
    state["all"].append(number)
    return state, repr(state)


@pytest.mark.parametrize("epochs", [1, 2, 1000])
@pytest.mark.parametrize("ttl_s", [None, 100])
def test_a_state_that_would_come_back_as_another_is_refused_with_any_epoch_size(epochs: int, ttl_s: int | None) -> None:
    pipeline = Pipeline("shared")
    numbers = pipeline.source("numbers", codec="json")
    timed: dict[str, Any] = {} if ttl_s is None else {"ttl_s": ttl_s, "time": lambda number: number}
    numbers.map_stateful(counting, key=lambda number: number % 2, name="counting", **timed).sink(
        "out", to="file:output"
    )
    with pytest.raises(PlanError, match="'counting' has a state that cannot be stored: it contains one list twice"):
        run(pipeline, {"numbers": [1, 2, 3, 4, 5]}, epochs=epochs)


@pytest.mark.parametrize(
    "value",
    [
        {"a": SAME, "b": SAME},
        [SAME, [SAME]],
        (SAME, {"x": (1, SAME)}),
        Basket(SAME, SAME),
        [BOTH, BOTH],
        [Place("a", SAME), Place("b", SAME)],
        [bytearray(b"x")] * 2,
        [{1}] * 2,
    ],
)
def test_an_object_in_two_places_is_found(value: Any) -> None:
    assert shared_part(value) is not None


@pytest.mark.parametrize(
    "value",
    [
        {"a": [], "b": []},
        [Color.RED, Color.RED],
        [HOME, HOME, (1, "x"), (1, "x")],
        [(1, 2)] * 3,
        ["x"] * 3,
        [frozenset({1})] * 2,
        {"k": None, "l": None},
        Basket([1], Basket([1])),
        7,
    ],
)
def test_an_immutable_object_may_be_in_many_places(value: Any) -> None:
    assert shared_part(value) is None
