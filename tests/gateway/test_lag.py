"""The lag against a slow and obvious reference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from procession.gateway.lag import STEP_BYTES, Lag

MIB = 1024 * 1024


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3 * MIB)), max_size=60))
def test_the_lag_is_never_below_the_truth_and_above_it_by_at_most_a_step(steps: list[tuple[bool, int]]) -> None:
    lag, committed = Lag(), 0
    rows: list[int] = []
    for is_commit, number in steps:
        if is_commit:
            committed = min(len(rows), committed + number % 5)
            lag.commit(committed)
        else:
            rows.append(number)
            lag.add(len(rows), number)
        truth = sum(rows[committed:])
        assert truth <= lag.bytes < truth + STEP_BYTES + 3 * MIB
    lag.commit(len(rows))
    assert lag.bytes == 0
