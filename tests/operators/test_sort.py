"""Sorting: the output and its order, how much is held in memory, and what is refused."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession import Pipeline, PlanError, aggregates
from procession.operators import sort as module
from procession.operators.operator import OperatorRows
from procession.operators.sort import SortOperator, check_rank
from procession.operators.stage_rows import StageRows
from procession.operators.value_codec import PLAIN
from procession.storage import state_file
from procession.storage.state_store import TaskStates
from procession.storage.state_version import StateCodec
from tests.operators.random_pipelines import STREAMS
from tests.operators.test_end_of_input import MARKS
from tests.operators.test_window_operator import RECORDS
from tests.operators.timed_records import key, shown, time
from tests.slow_cases import examples
from tests.spark.test_plans import expected, ran


def remainder(value: bytes) -> tuple[int, bytes]:
    if time(value) % 11 == 7:
        raise ValueError(value)
    return time(value) % 4, key(value)


@given(
    payloads=RECORDS,
    cuts=st.sets(st.integers(1, 50), max_size=8),
    slice_records=st.sampled_from([1, 7, 1000]),
    keys_max=st.sampled_from([1, 1000]),
    ends=MARKS,
    block=st.sampled_from([1, 3, 1000]),
)
@examples(60)
def test_i11_records_are_sorted_and_equal_ones_keep_their_order(
    payloads: list[bytes],
    cuts: set[int],
    slice_records: int,
    keys_max: int,
    ends: list[tuple[int, int]],
    block: int,
) -> None:
    pipeline = Pipeline("p", parallelism=2, dead_letter="file:dead")
    source = pipeline.source(ends=True)
    ranked = source.flat_map(lambda value: [value, value + b"+"]).sort(lambda value: remainder(value.rstrip(b"+")))
    down = source.sort(key, reverse=True)
    ranked.merge(down, source).rebalance(parallelism=3).sink("merged", to="file:out")
    # Sorted again by another rank: records of equal rank keep the order of arrival.
    down.sort(time).aggregate(aggregates.collect()).map(shown).sink("twice", to="file:out")
    graph = pipeline.graph()
    ends = [*ends, *((len(payloads), stream) for stream in range(STREAMS))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_RECORDS", block)
        patch.setattr(module, "SPILL_BLOCKS", 2)
        patch.setattr(module, "FAN_IN", 3)
        got = ran(graph, payloads, cuts, len(payloads), slice_records, keys_max, ends=ends)
    assert got == expected(graph, payloads, ends)


@pytest.mark.parametrize(
    "rank", [math.nan, Decimal("nan"), (1, math.nan), [("a", (math.nan,))], {1}, (1, frozenset())], ids=repr
)
def test_a_rank_that_cannot_be_ordered_is_refused_wherever_it_is(rank: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="cannot be ordered"):
        check_rank(rank)


@pytest.mark.parametrize("rank", [1, "a", None, (1, ("b", [2.5])), math.inf, Decimal(1), (), True], ids=repr)
def test_other_ranks_are_accepted(rank: Any) -> None:
    check_rank(rank)


def test_no_more_than_some_blocks_are_in_memory_however_many_records_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_RECORDS", 10)
    monkeypatch.setattr(module, "SPILL_BLOCKS", 4)
    monkeypatch.setattr(module, "FAN_IN", 4)
    monkeypatch.setattr(state_file, "PIECE_BYTES", 4096)
    states, stage = (
        TaskStates(tmp_path, (), StateCodec(PLAIN.packed, PLAIN.decoded_value)),
        SortOperator(lambda value: value),
    )
    values = list(range(20_000))
    random.Random(3).shuffle(values)
    held_max = 0
    take = states.take

    def taking(keys: Any) -> Any:
        nonlocal held_max
        known = take(keys)
        held_max = max(held_max, sum(len(held) for name, held in known.items() if name.startswith(b"r")))
        return known

    monkeypatch.setattr(states, "take", taking)
    for epoch, start in enumerate(range(0, len(values), 100)):
        states.begin(f"{epoch:010d}", epoch)
        stage.add(states, OperatorRows(StageRows(values[start : start + 100])), lambda row, error: None)
        states.finish()
    states.begin("end", 1000)
    found = [value for some in stage.end(states) for *_, value in some]
    assert found == sorted(values)
    assert held_max < 500
    assert list(stage.end(states)) == []


def failed(payloads: list[bytes], by: Any) -> str:
    pipeline = Pipeline("p")
    pipeline.source(ends=True).sort(by).sink("out", to="file:out")
    with pytest.raises(AssertionError) as caught:
        ran(pipeline.graph(), payloads, set(), 1, ends=[(len(payloads), stream) for stream in range(STREAMS)])
    return str(caught.value)


def test_ranks_that_cannot_be_compared_stop_the_pipeline_with_a_next_step() -> None:
    assert "cannot be compared" in failed([b"a 1", b"b 2"], lambda value: 1 if value == b"a 1" else "1")


def test_a_rank_without_an_order_is_an_error_of_its_record() -> None:
    assert "message 10 of stream" in failed([b"a 1", b"b 2"], lambda value: float("nan") if value == b"b 2" else 1.0)


def test_a_sort_of_a_source_that_never_ends_is_refused_with_two_ways_out() -> None:
    pipeline = Pipeline("p")
    pipeline.source("endless").sort(key, name="ranked").sink("out", to="file:out")
    with pytest.raises(PlanError, match=r"'ranked'.*'endless' never ends") as caught:
        pipeline.explain()
    assert "ends=True" in caught.value.next_step
    assert "window" in caught.value.next_step


def test_a_window_may_return_its_records_sorted() -> None:
    values = [b"b1", b"a2", b"b3", b"a4"]
    assert aggregates.ordered(lambda value: value[:1]).of(values) == [b"a2", b"a4", b"b1", b"b3"]
    assert aggregates.ordered(lambda value: value[:1], reverse=True).of(values) == [b"b1", b"b3", b"a2", b"a4"]


@pytest.mark.parametrize("mistake", [{"by": "name"}, {"by": key, "reverse": "yes"}])
def test_a_mistake_is_reported_where_it_was_made(mistake: Any) -> None:
    with pytest.raises(PlanError):
        Pipeline("p").source().sort(**mistake)
