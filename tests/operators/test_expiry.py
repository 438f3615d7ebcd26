"""States that expire: when they are removed, what they emit, and what an epoch costs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession import Pipeline, PlanError, aggregates
from procession.operators.expiry import ExpiringState
from procession.operators.keyed import StepResult
from procession.operators.operator import OperatorRows
from procession.operators.stage_rows import StageRows
from tests.operators.random_pipelines import STREAMS
from tests.operators.test_window_operator import RECORDS
from tests.operators.timed_records import key, shown, time
from tests.slow_cases import examples
from tests.spark.test_plans import expected, ran


def counted(state: list[int], value: bytes) -> tuple[list[int] | None, bytes]:
    """Change the state in place, raise for some records, and remove the key at the fifth."""
    state.append(time(value))
    if time(value) % 17 == 5:
        raise ValueError(value)
    return (None if len(state) > 4 else state), b"%s #%d" % (value, len(state))


def several(state: int, value: bytes) -> tuple[int, list[bytes]]:
    return state + 1, [value] * (state % 3)


def evicted(whose: bytes, state: Any) -> bytes | None:
    return None if state == [] else f"{whose.decode()} is gone: {state}".encode()


def every_kind(pipeline: Pipeline, ttl_s: float) -> None:
    source = pipeline.source(ends=True)
    mapped = source.map_stateful(
        counted, key=key, initial=list, ttl_s=ttl_s, time=time, on_evict=evicted, parallelism=3
    )
    mapped.sink("mapped", to="file:out")
    flat = source.flat_map_stateful(several, key=key, initial=0, ttl_s=ttl_s, time=time, on_evict=evicted)
    flat.merge(mapped).rebalance(parallelism=2).sink("merged", to="file:out")
    kept = source.filter_stateful(
        lambda state, value: (not state, state), key=key, initial=False, ttl_s=ttl_s, time=time
    )
    kept.sink("kept", to="file:out")
    source.distinct(key, ttl_s=ttl_s, time=time).sink("distinct", to="file:out")
    source.rolling(aggregates.collect(), key=key, ttl_s=ttl_s, time=time).map(shown).sink("rolling", to="file:out")
    source.reduce(lambda one, other: one[:9] + other, key=key, ttl_s=ttl_s, time=time).sink("reduced", to="file:out")
    # By the time that records were sent with, which is one for all: nothing expires before the end.
    source.map_stateful(several, key=key, initial=0, ttl_s=ttl_s, on_evict=evicted).map(shown).sink(
        "sent", to="file:out"
    )


@given(
    payloads=RECORDS,
    ttl_s=st.sampled_from([2, 5, 30]),
    cuts=st.sets(st.integers(1, 50), max_size=3),
    slice_records=st.sampled_from([1, 7, 1000]),
    keys_max=st.sampled_from([1, 1000]),
    ends=st.lists(st.tuples(st.integers(0, 60), st.integers(0, STREAMS - 1)), max_size=5),
)
@examples(60)
def test_i11_states_expire_as_in_the_sequential_run(
    payloads: list[bytes],
    ttl_s: float,
    cuts: set[int],
    slice_records: int,
    keys_max: int,
    ends: list[tuple[int, int]],
) -> None:
    pipeline = Pipeline("p", parallelism=2, dead_letter="file:dead")
    every_kind(pipeline, ttl_s)
    graph = pipeline.graph()
    ends = [*ends, *((len(payloads), stream) for stream in range(STREAMS))]
    got = ran(graph, payloads, cuts, len(payloads), slice_records, keys_max, ends=ends)
    assert got == expected(graph, payloads, ends)


def out(payloads: list[bytes], **options: Any) -> list[bytes]:
    pipeline = Pipeline("p", parallelism=2)
    stage = pipeline.source().map_stateful(
        lambda state, value: (state + 1, value), key=key, initial=0, time=time, on_evict=evicted, **options
    )
    stage.sink("out", to="file:out")
    return ran(pipeline.graph(), payloads, {2}, 1)["out"].splitlines()


def test_an_idle_key_expires_by_the_time_of_other_keys_before_the_record_with_that_time() -> None:
    got = out([b"b 1", b"a 2", b"a 9", b"c 30", b"a 31"], ttl_s=8)
    assert got == [b"b 1", b"a 2", b"b is gone: 1", b"a 9", b"a is gone: 2", b"c 30", b"a 31"]


def test_a_late_record_keeps_its_state_for_the_full_time_to_live() -> None:
    got = out([b"a 100", b"b 1", b"c 107", b"c 108"], ttl_s=8)
    assert got == [b"a 100", b"b 1", b"c 107", b"a is gone: 1", b"b is gone: 1", b"c 108"]


class Counted(dict[bytes, Any]):
    """States in memory that count requests."""

    serial = 0
    keys_max = 10**9

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.counts = Counter[str]()

    def take(self, keys: Any) -> Any:
        self.asked += len(keys)
        return self

    def touch(self, keys: Any) -> None:
        pass


def test_an_epoch_reads_only_the_keys_that_it_changes_and_those_that_expire() -> None:
    stage = ExpiringState(StepResult.ONE, lambda state, value: (1, value), int, 8_000)
    states: Any = Counted()

    def epoch(keys: list[bytes], at: int) -> int:
        states.asked, states.serial = 0, states.serial + 1
        records = StageRows(keys, keys=pa.array(keys, pa.binary()))
        rows = OperatorRows(records, np.full(len(keys), at, np.int64), np.zeros(len(keys), bool))
        stage.add(states, rows, lambda row, error: None)
        return int(states.asked)

    epoch([b"%d" % number for number in range(10_000)], 0)
    assert epoch([b"1", b"2"], 1_000) < 20
    assert epoch([b"3"], 7_000) < 20
    assert epoch([b"x"], 8_000) > 9_000  # these have expired
    assert epoch([b"x"], 16_000) < 20


@pytest.mark.parametrize(
    "mistake",
    [
        lambda stage: stage.map_stateful(counted, key=key, initial=list, ttl_s=0),
        lambda stage: stage.map_stateful(counted, key=key, initial=list, ttl_s="1 h"),
        lambda stage: stage.map_stateful(counted, key=key, initial=list, on_evict=evicted),
        lambda stage: stage.distinct(key, time=time),
        lambda stage: stage.distinct(key, ttl_s=5, time="at"),
        lambda stage: stage.map_stateful(counted, key=key, initial=list, ttl_s=5, on_evict="evicted"),
    ],
)
def test_a_mistake_is_reported_where_it_was_made_and_with_a_next_step(mistake: Any) -> None:
    with pytest.raises(PlanError) as caught:
        mistake(Pipeline("p").source())
    assert caught.value.next_step
