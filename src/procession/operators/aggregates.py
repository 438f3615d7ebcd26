"""Aggregates: combine many records into one result.

The one rule: an aggregate takes records one after the other, in order, so it may depend on their order. What it holds
in between is a state, made of plain values. The user names one or makes one; rolling, windowed and final stages use it.
Pure.

    >>> from procession import aggregates
    >>> aggregates.mean(of=len).of(["a", "bcd"])
    2.0
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from procession.planner.ownership import own

TOP_MAX = 100_000
"""The largest n of `top`: its state is written whole whenever it is touched."""

By = Callable[[Any], Any]


def same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Aggregate:
    """`create()` is what is held before the first record, `add(held, record)` what is held after one more, and
    `finish(held)` the result; `finish` must leave what is held as it is, for it may be asked again."""

    create: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any] = same
    combine: Callable[[Any, Any], Any] | None = None
    """What is held of the records of two sessions that turn out to be one, the earlier one's first. Only for them."""
    is_holding: bool = True
    """Whether what is held may contain the records themselves, or parts of them that can be changed."""

    def step(self, held: Any, value: Any) -> tuple[Any, Any]:
        """One more record, and the result so far."""
        held = self.add(held, value)
        return held, self.finish(held)

    def of(self, values: Iterable[Any]) -> Any:
        """The aggregate of these records, there and then: what the stages must agree with."""
        held = self.create()
        for value in values:
            held = self.add(held, value)
        return self.finish(held)


def count() -> Aggregate:
    """How many records."""
    return Aggregate(int, lambda held, _: held + 1, combine=_added, is_holding=False)


def sum_of(of: By = same) -> Aggregate:
    """The sum of what the function says of each record, added in order."""
    return Aggregate(int, lambda held, value: held + of(value), combine=_added, is_holding=False)


def mean(of: By = same) -> Aggregate:
    """Their mean; None of no records."""
    return Aggregate(
        lambda: (0, 0),
        lambda held, value: (held[0] + 1, held[1] + of(value)),
        lambda held: held[1] / held[0] if held[0] else None,
        lambda one, other: (one[0] + other[0], one[1] + other[1]),
        is_holding=False,
    )


def min_by(by: By = same) -> Aggregate:
    """The record of which the function says least; of several the first. None of no records."""

    def add(held: list[Any], value: Any) -> list[Any]:
        rank = by(value)
        return held if held and held[0] <= rank else [rank, value]

    def combine(one: list[Any], other: list[Any]) -> list[Any]:
        return one if not other or (one and one[0] <= other[0]) else other

    return Aggregate(list, add, _second, combine)


def max_by(by: By = same) -> Aggregate:
    """The record of which the function says most; of several the first. None of no records."""

    def add(held: list[Any], value: Any) -> list[Any]:
        rank = by(value)
        return held if held and held[0] >= rank else [rank, value]

    def combine(one: list[Any], other: list[Any]) -> list[Any]:
        return one if not other or (one and one[0] >= other[0]) else other

    return Aggregate(list, add, _second, combine)


def top(n: int, by: By = same) -> Aggregate:
    """The n records of which the function says most, the greatest first; equal ones in order."""
    if not isinstance(n, int) or not 1 <= n <= TOP_MAX:
        raise ValueError(f"top({n!r}): n must be a number from 1 to {TOP_MAX}")

    def add(held: list[Any], value: Any) -> list[Any]:
        rank = by(value)
        place = len(held)
        while place and held[place - 1][0] < rank:
            place -= 1
        if place < n:
            held.insert(place, [rank, value])
            del held[n:]
        return held

    def combine(one: list[Any], other: list[Any]) -> list[Any]:
        return sorted([*one, *other], key=lambda held: held[0], reverse=True)[:n]

    return Aggregate(list, add, lambda held: [value for _, value in held], combine)


def collect() -> Aggregate:
    """All records, as a list, in order."""

    def add(held: list[Any], value: Any) -> list[Any]:
        held.append(value)
        return held

    return Aggregate(list, add, list, _added)


def ordered(by: By = same, *, reverse: bool = False) -> Aggregate:
    """All records, as a list, sorted by what the function says of each; equal ones in order. For a window, or a key,
    whose records memory holds: `sort` is for more."""
    return replace(collect(), finish=lambda held: sorted(held, key=by, reverse=reverse))


def all_of(**aggregates: Aggregate) -> Aggregate:
    """Several at a time: a dict of their results, by the names that are given here."""
    named: Mapping[str, Aggregate] = dict(aggregates)
    # The first that holds records has the original; each further one has a copy.
    copying = frozenset([name for name, aggregate in named.items() if aggregate.is_holding][1:])

    def add(held: dict[str, Any], value: Any) -> dict[str, Any]:
        for name, aggregate in named.items():
            held[name] = aggregate.add(held[name], own(value) if name in copying else value)
        return held

    def combine(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        return {name: aggregate.combine(one[name], other[name]) for name, aggregate in named.items()}  # type: ignore[misc]

    return Aggregate(
        lambda: {name: aggregate.create() for name, aggregate in named.items()},
        add,
        lambda held: {name: aggregate.finish(held[name]) for name, aggregate in named.items()},
        combine if all(aggregate.combine is not None for aggregate in named.values()) else None,
        any(aggregate.is_holding for aggregate in named.values()),
    )


def _added(one: Any, other: Any) -> Any:
    return one + other


def _second(held: list[Any]) -> Any:
    return held[1] if held else None
