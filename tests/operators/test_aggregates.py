"""Aggregates of windows, keys and totals: their results, which do not depend on order, epochs or merged sessions."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession import Aggregate, Pipeline, PlanError, aggregates, windows
from procession.operators.value_codec import PLAIN
from procession.testing import run

NUMBERS = st.lists(st.integers(-50, 50), max_size=60)


def weight(number: int) -> int:
    return number % 4


ALL: dict[str, Aggregate] = {
    "weighted_mean": aggregates.weighted_mean(lambda number: number, weight),
    "quantiles": aggregates.quantiles(0.1, 0.5, 1),
    "distinct": aggregates.distinct(),
    "approximate_distinct": aggregates.approximate_distinct(bits=6),
    "first": aggregates.first(),
    "last": aggregates.last(weight),
}


@given(numbers=NUMBERS)
def test_aggregates_equal_a_plain_computation(numbers: list[int]) -> None:
    weights = sum(map(weight, numbers))
    mean = sum(number * weight(number) for number in numbers) / weights if weights else None
    assert ALL["weighted_mean"].of(numbers) == mean
    assert ALL["distinct"].of(numbers) == len(set(numbers))
    assert ALL["first"].of(numbers) == (numbers[0] if numbers else None)
    assert ALL["last"].of(numbers) == (weight(numbers[-1]) if numbers else None)
    ranked = sorted(numbers)
    for share, found in zip((0.1, 0.5, 1), ALL["quantiles"].of(numbers), strict=True):
        enough = [
            one for one in ranked if sum(other <= one for other in ranked) * 10 >= round(share * 10) * len(ranked)
        ]
        assert found == (enough[0] if ranked else None)


@pytest.mark.parametrize("name", ALL)
@given(before=NUMBERS, after=NUMBERS)
def test_two_states_combined_are_the_state_of_all_records(name: str, before: list[int], after: list[int]) -> None:
    aggregate = ALL[name]
    assert aggregate.combine is not None

    def state(numbers: list[int]) -> Any:
        held = aggregate.create()
        for number in numbers:
            held = PLAIN.decoded_value(PLAIN.packed(aggregate.add(held, number)))
        return held

    assert aggregate.finish(aggregate.combine(state(before), state(after))) == aggregate.of([*before, *after])


@pytest.mark.parametrize("name", ALL)
def test_an_aggregate_does_not_depend_on_epochs_or_tasks(name: str) -> None:
    pipeline = Pipeline("p")
    numbers = pipeline.source("numbers", codec="json")
    options: Any = {"key": lambda number: number % 3, "time": lambda number: number}
    numbers.window(windows.session(3), ALL[name], **options).sink("sessions", to="file:out")
    numbers.rolling(ALL[name], key=lambda number: number % 3).sink("rolling", to="file:out")
    numbers.aggregate(ALL[name]).sink("total", to="file:out")
    records = {"numbers": [number * 37 % 101 for number in range(80)]}
    whole = run(pipeline, records)
    assert all(whole.values())
    assert run(pipeline, records, epochs=7, parallelism=3) == whole


def test_distinct_distinguishes_keys_as_keyed_stages_do() -> None:
    assert aggregates.distinct().of([1, 1.0, True, "1", b"1", Decimal(1), (1,), None, 1]) == 8
    assert aggregates.distinct(str.lower).of(["a", "A", "b"]) == 2


@given(values=st.lists(st.none() | st.integers(0, 2), min_size=1, max_size=5))
def test_first_and_last_may_be_none(values: list[int | None]) -> None:
    both = aggregates.all_of(first=aggregates.first(), last=aggregates.last()).of(values)
    assert both == {"first": values[0], "last": values[-1]}


def test_a_later_stage_cannot_change_the_first_and_the_last_record() -> None:
    pipeline = Pipeline("p")
    records = pipeline.source("records", codec="json")
    for name in ("first", "last"):
        rolled = records.rolling(getattr(aggregates, name)(), key=lambda _: 0)
        rolled.map(lambda record: record.append(9) or record).sink(name, to="file:out")
    found = run(pipeline, {"records": [[1], [2]]})
    assert (found["first"], found["last"]) == ([[1, 9], [1, 9]], [[1, 9], [2, 9]])


@pytest.mark.parametrize("count", [0, 1, 10, 1_000, 30_000])
def test_an_estimate_is_within_four_standard_errors(count: int) -> None:
    for bits in (10, 12):
        error = 1.04 / math.sqrt(2**bits)
        assert abs(aggregates.approximate_distinct(bits=bits).of(range(count)) - count) <= 4 * error * count


def test_an_estimate_does_not_depend_on_order_or_repetition() -> None:
    aggregate = aggregates.approximate_distinct()
    assert aggregate.of([*range(500), *reversed(range(500))]) == aggregate.of(range(500))


def test_quantiles_go_by_the_decimal_number_that_a_share_is_written_as() -> None:
    assert aggregates.quantiles(0.07).of(range(100)) == [6]


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: aggregates.top(0),
        lambda: aggregates.quantiles(),
        lambda: aggregates.quantiles(0),
        lambda: aggregates.quantiles(1.5),
        lambda: aggregates.quantiles("half"),  # type: ignore[arg-type]
        lambda: aggregates.retracting(7, id_of=str, is_retraction=bool),  # type: ignore[arg-type]
        lambda: aggregates.retracting(aggregates.count(), id_of=lambda a, b: a, is_retraction=bool),  # type: ignore[arg-type]
        lambda: aggregates.approximate_distinct(bits=3),
        lambda: aggregates.approximate_distinct(bits=17),
        lambda: aggregates.approximate_distinct(bits="many"),  # type: ignore[arg-type]
    ],
)
def test_a_mistake_is_reported_where_it_was_made(mistake: Any) -> None:
    with pytest.raises(PlanError, match=r"quantiles|bits|retracting|top"):
        mistake()


TRADES = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 9), st.sampled_from([False, False, True]), st.integers(0, 40)),
    max_size=20,
)


@given(trades=TRADES, epochs=st.sampled_from([None, 1, 3]), tasks=st.integers(1, 3))
def test_retracted_records_do_not_count_whatever_the_epochs(
    trades: list[tuple[int, int, bool, int]], epochs: int | None, tasks: int
) -> None:
    left = aggregates.retracting(
        aggregates.all_of(prices=aggregates.collect(), best=aggregates.max_by(lambda trade: trade[1])),
        id_of=lambda trade: (trade[0], "id"),
        is_retraction=lambda trade: trade[2],
    )
    pipeline = Pipeline("p")
    source = pipeline.source("trades", codec="json")
    source.rolling(left, key=lambda trade: trade[3] % 2).sink("out", to="file:out")
    sessions = source.window(windows.session(5), left, time=lambda trade: trade[3], lateness_s=100)
    sessions.map(lambda result: result["value"]["prices"]).sink("sessions", to="file:out")
    expected: list[Any] = []
    held: dict[int, dict[int, tuple[int, int, bool, int]]] = {0: {}, 1: {}}
    for trade in trades:
        own = held[trade[3] % 2]
        if trade[2]:
            own.pop(trade[0], None)
        else:
            own[trade[0]] = trade
        best = max(own.values(), key=lambda one: one[1], default=None)
        expected.append(
            {"prices": [list(value) for value in own.values()], "best": None if best is None else list(best)}
        )
    whole = run(pipeline, {"trades": [list(trade) for trade in trades]})
    assert whole["out"] == expected
    assert run(pipeline, {"trades": [list(trade) for trade in trades]}, epochs=epochs, parallelism=tasks) == whole
