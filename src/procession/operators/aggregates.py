"""Aggregates: combine many records into one result.

Invariant: an aggregate receives records one after the other, in order, so it may depend on their order. Its
intermediate value is a state, made of plain values. Rolling, windowed and final stages use aggregates. Pure.

    >>> from procession import aggregates
    >>> aggregates.mean(of=len).of(["a", "bcd"])
    2.0
"""

from __future__ import annotations

import hashlib
import math
from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from procession.errors import PlanError
from procession.operators.column_aggregates import ColumnAdd, add_counts, add_means, add_sums, keep_first, keep_last
from procession.planner.fingerprints import NOT_IDENTIFYING
from procession.planner.keys import KeyCodec
from procession.planner.ownership import own
from procession.planner.validation import checked_of_one

KEYS = KeyCodec(has_any_enum=True)
"""Encodes values that are only compared."""

TOP_MAX = 100_000
"""Maximum n of `top`, because its whole state is written whenever it changes."""

By = Callable[[Any], Any]


def same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Aggregate:
    """A user-defined aggregate.

    Args:
        create: Returns the state before the first record.
        add: `add(state, record)` returns the state after one more record.
        finish: `finish(state)` returns the result. It may be called several times, and must not change the state.
        combine: `combine(earlier, later)` returns the state of two joined sessions. Only session windows need it.
        is_holding: Whether the state may contain the records themselves, or mutable parts of them.
        add_many: `add_many(state, number)` returns the state after this number of further records. Only for an
            aggregate that does not depend on the records, such as `count`.
        form: A name for the structure of the state. A checkpoint stores it, and a program whose aggregate has another
            form does not continue with the states. Empty: the form is not checked.

    Example:
        >>> from procession import Aggregate
        >>> longest = Aggregate(create=str, add=lambda held, word: max(held, word, key=len))
        >>> longest.of(["a", "bcd", "ef"])
        'bcd'
    """

    create: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any] = same
    combine: Callable[[Any, Any], Any] | None = None
    is_holding: bool = True
    add_many: Callable[[Any, int], Any] | None = field(default=None, compare=False, metadata=NOT_IDENTIFYING)
    over: ColumnAdd | None = field(default=None, compare=False, metadata=NOT_IDENTIFYING)
    form: str = field(default="", compare=False, metadata=NOT_IDENTIFYING)

    def step(self, held: Any, value: Any) -> tuple[Any, Any]:
        """Return the state after one more record, and the result so far."""
        held = self.add(held, value)
        return held, self.finish(held)

    def of(self, values: Iterable[Any]) -> Any:
        """Return the aggregate of these values, computed at once. Stages give the same result."""
        held = self.create()
        for value in values:
            held = self.add(held, value)
        return self.finish(held)


def count() -> Aggregate:
    """Count the records."""
    return Aggregate(int, lambda held, _: held + 1, combine=_added, is_holding=False, add_many=add_counts, form="count")


def sum_of(of: By = same) -> Aggregate:
    """Add up `of(record)`, in the order of the records."""
    over = ColumnAdd(of, add_sums)
    return Aggregate(int, lambda held, value: held + of(value), combine=_added, is_holding=False, over=over, form="sum")


def mean(of: By = same) -> Aggregate:
    """Compute the mean of `of(record)`. The result is None if there are no records."""
    return Aggregate(
        lambda: (0, 0),
        lambda held, value: (held[0] + 1, held[1] + of(value)),
        lambda held: held[1] / held[0] if held[0] else None,
        lambda left, right: (left[0] + right[0], left[1] + right[1]),
        is_holding=False,
        over=ColumnAdd(of, add_means),
        form="mean",
    )


def min_by(by: By = same) -> Aggregate:
    """Find the record with the smallest `by(record)`, the first of several. The result is None if there are no
    records."""

    def add(held: list[Any], value: Any) -> list[Any]:
        rank = by(value)
        return held if held and held[0] <= rank else [rank, value]

    def combine(left: list[Any], right: list[Any]) -> list[Any]:
        return left if not right or (left and left[0] <= right[0]) else right

    return Aggregate(list, add, _second, combine, form="min")


def max_by(by: By = same) -> Aggregate:
    """Find the record with the largest `by(record)`, the first of several. The result is None if there are no
    records."""

    def add(held: list[Any], value: Any) -> list[Any]:
        rank = by(value)
        return held if held and held[0] >= rank else [rank, value]

    def combine(left: list[Any], right: list[Any]) -> list[Any]:
        return left if not right or (left and left[0] >= right[0]) else right

    return Aggregate(list, add, _second, combine, form="max")


def first(of: By = same) -> Aggregate:
    """Take `of(record)` of the first record in the sequence. The result is None if there are no records."""
    over = ColumnAdd(of, keep_first)
    return Aggregate(
        list,
        lambda held, value: held or [of(value)],
        _second,
        lambda left, right: left or right,
        over=over,
        form="first",
    )


def last(of: By = same) -> Aggregate:
    """Take `of(record)` of the last record in the sequence. The result is None if there are no records."""
    over = ColumnAdd(of, keep_last)
    return Aggregate(
        list, lambda _, value: [of(value)], _second, lambda left, right: right or left, over=over, form="last"
    )


def top(n: int, by: By = same) -> Aggregate:
    """Find the n records with the largest `by(record)`, the largest first. Equal records keep their order.

    Raises:
        PlanError: n is not a number from 1 to 100,000.
    """
    if not isinstance(n, int) or not 1 <= n <= TOP_MAX:
        raise PlanError(f"top({n!r}) is not possible", next_step=f"give it a number from 1 to {TOP_MAX:,}")

    def add(held: list[Any], value: Any) -> list[Any]:
        rank = by(value)
        place = len(held)
        while place and held[place - 1][0] < rank:
            place -= 1
        if place < n:
            held.insert(place, [rank, value])
            del held[n:]
        return held

    def combine(left: list[Any], right: list[Any]) -> list[Any]:
        return sorted([*left, *right], key=lambda held: held[0], reverse=True)[:n]

    return Aggregate(list, add, lambda held: [value for _, value in held], combine, form=f"top {n}")


def collect() -> Aggregate:
    """Collect all records in a list, in order."""

    def add(held: list[Any], value: Any) -> list[Any]:
        held.append(value)
        return held

    return Aggregate(list, add, list, _added, form="collect")


def ordered(by: By = same, *, reverse: bool = False) -> Aggregate:
    """Collect all records in a list, sorted by `by(record)`. Equal records keep their order.

    The records of the window or key must fit in memory. `Stage.sort` sorts more records.
    """
    return replace(collect(), finish=lambda held: sorted(held, key=by, reverse=reverse))


def all_of(**aggregates: Aggregate) -> Aggregate:
    """Compute several aggregates at a time. The result is a dict of their results, by the names of the arguments.

    Example:
        >>> from procession import aggregates
        >>> aggregates.all_of(count=aggregates.count(), sum=aggregates.sum_of()).of([1, 2, 3])
        {'count': 3, 'sum': 6}
    """
    named: Mapping[str, Aggregate] = dict(aggregates)
    # The first aggregate that holds records gets the original; each further one gets a copy.
    copying = frozenset([name for name, aggregate in named.items() if aggregate.is_holding][1:])

    def add(held: dict[str, Any], value: Any) -> dict[str, Any]:
        for name, aggregate in named.items():
            held[name] = aggregate.add(held[name], own(value) if name in copying else value)
        return held

    def combine(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
        return {name: aggregate.combine(left[name], right[name]) for name, aggregate in named.items()}  # type: ignore[misc]

    return Aggregate(
        lambda: {name: aggregate.create() for name, aggregate in named.items()},
        add,
        lambda held: {name: aggregate.finish(held[name]) for name, aggregate in named.items()},
        combine if all(aggregate.combine is not None for aggregate in named.values()) else None,
        any(aggregate.is_holding for aggregate in named.values()),
        form=f"all of {', '.join(f'{name} ({_form(aggregate)})' for name, aggregate in named.items())}",
    )


def retracting(aggregate: Aggregate, *, id_of: By, is_retraction: Callable[[Any], bool]) -> Aggregate:
    """Aggregate only records that were not retracted. A retraction removes the earlier record with the same id.

    A record with the id of an earlier record replaces it, and keeps its position. A retraction without an earlier
    record changes nothing. The state holds all remaining records, so any aggregate is possible.

    Args:
        aggregate: The aggregate of the remaining records.
        id_of: Returns the id of a record or a retraction: any value that can be a key.
        is_retraction: Returns whether a record retracts an earlier record.

    Raises:
        PlanError: An argument is not an aggregate or a function of a record.

    Example:
        >>> from procession import aggregates
        >>> largest = aggregates.retracting(
        ...     aggregates.max_by(lambda sale: sale["cents"]),
        ...     id_of=lambda sale: sale["id"],
        ...     is_retraction=lambda sale: "cents" not in sale,
        ... )
        >>> largest.of([{"id": 1, "cents": 5}, {"id": 2, "cents": 7}, {"id": 2}])
        {'id': 1, 'cents': 5}
    """

    if not isinstance(aggregate, Aggregate):
        raise PlanError(
            f"retracting({aggregate!r}) is not possible", next_step="give it an aggregate, such as aggregates.count()"
        )
    checked_of_one(id_of, "retracting", "id_of")
    checked_of_one(is_retraction, "retracting", "is_retraction")

    def add(held: dict[bytes, Any], value: Any) -> dict[bytes, Any]:
        name = KEYS.encode(id_of(value))
        if is_retraction(value):
            held.pop(name, None)
        else:
            held[name] = value
        return held

    return Aggregate(
        dict,
        add,
        lambda held: aggregate.of(held.values()),
        lambda earlier, later: {**earlier, **later},
        is_holding=True,
        form="retracting",
    )


def weighted_mean(of: By, weight: By) -> Aggregate:
    """Compute the mean of `of(record)`, weighted by `weight(record)`. The result is None if the sum of the weights is
    0.

    Example:
        >>> from procession import aggregates
        >>> aggregates.weighted_mean(lambda trade: trade[0], lambda trade: trade[1]).of([(10, 3), (20, 1)])
        12.5
    """

    def add(held: tuple[Any, Any], value: Any) -> tuple[Any, Any]:
        share = weight(value)
        return held[0] + share, held[1] + share * of(value)

    return Aggregate(
        lambda: (0, 0),
        add,
        lambda held: held[1] / held[0] if held[0] else None,
        lambda left, right: (left[0] + right[0], left[1] + right[1]),
        is_holding=False,
        form="weighted mean",
    )


def quantiles(*shares: float, of: By = same) -> Aggregate:
    """Compute exact quantiles. The result is a list with a value for each share.

    `quantiles(0.5, 0.99)` is the median and the 99th percentile. The value for a share is the smallest `of(record)`
    that at least this share of the records does not exceed. Without records it is None. All values stay in memory.

    Raises:
        PlanError: A share is not a number above 0 and up to 1.

    Example:
        >>> from procession import aggregates
        >>> aggregates.quantiles(0.5, 0.9).of([5, 1, 4, 2, 3])
        [3, 5]
    """
    for share in shares:
        if not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share <= 1:
            raise PlanError(
                f"quantiles({share!r}) is not possible", next_step="give it shares above 0 and up to 1, such as 0.5"
            )
    if not shares:
        raise PlanError("quantiles() has no share", next_step="give it a share, such as 0.5")
    exact = [Fraction(str(share)) for share in shares]

    def add(held: list[Any], value: Any) -> list[Any]:
        insort(held, of(value))
        return held

    def finish(held: list[Any]) -> list[Any]:
        return [held[math.ceil(share * len(held)) - 1] if held else None for share in exact]

    return Aggregate(list, add, finish, lambda left, right: sorted([*left, *right]), form="quantiles")


def distinct(of: By = same) -> Aggregate:
    """Count the different values of `of(record)`, exactly. The values are keys (docs/reference/values.md), and all are
    held."""

    def add(held: dict[bytes, bool], value: Any) -> dict[bytes, bool]:
        held[KEYS.encode(of(value))] = True
        return held

    return Aggregate(dict, add, len, lambda left, right: left | right, is_holding=False, form="distinct")


def approximate_distinct(of: By = same, *, bits: int = 12) -> Aggregate:
    """Estimate the number of different values of `of(record)` by HyperLogLog in 2 to the power of `bits` bytes.

    With 12 bits the standard error is 1.6 %; two more bits halve it. The order of the values has no effect.

    Args:
        of: Returns a key (docs/reference/values.md).
        bits: A number from 4 to 16.

    Raises:
        PlanError: `bits` is out of range.
    """
    if not isinstance(bits, int) or isinstance(bits, bool) or not 4 <= bits <= 16:
        raise PlanError(
            f"approximate_distinct(bits={bits!r}) is not possible", next_step="give it bits from 4 to 16, such as 12"
        )
    rest = 64 - bits

    def add(held: bytearray, value: Any) -> bytearray:
        digest = int.from_bytes(hashlib.blake2b(KEYS.encode(of(value)), digest_size=8).digest(), "big")
        register, zeros = digest >> rest, rest - (digest & ((1 << rest) - 1)).bit_length() + 1
        held[register] = max(held[register], zeros)
        return held

    def finish(held: bytearray) -> int:
        count = len(held)
        correction = {16: 0.673, 32: 0.697, 64: 0.709}.get(count, 0.7213 / (1 + 1.079 / count))
        estimate = correction * count * count / math.fsum(2.0**-register for register in held)
        empty = held.count(0)
        # With few values, the number of empty registers gives a better estimate.
        return round(count * math.log(count / empty) if estimate <= 2.5 * count and empty else estimate)

    return Aggregate(
        lambda: bytearray(1 << bits),
        add,
        finish,
        lambda left, right: bytearray(map(max, left, right)),
        is_holding=False,
        form=f"approximate distinct in {bits} bits",
    )


def _form(aggregate: Aggregate) -> str:
    return aggregate.form or "of its own"


def _added(left: Any, right: Any) -> Any:
    return left + right


def _second(held: list[Any]) -> Any:
    return held[-1] if held else None
