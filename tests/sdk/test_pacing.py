"""Waits and rates, with time as a value."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from procession.sdk.pacing import BURST_S, Backoff, RateLimit


@given(st.integers())
def test_waits_grow_to_the_limit_are_never_zero_and_can_be_reset(seed: int) -> None:
    backoff = Backoff(first_s=0.1, limit_s=1.0, uniform=random.Random(seed).uniform)
    for bound_s in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert bound_s / 2 <= backoff.next_s() <= bound_s
    backoff.reset()
    assert backoff.next_s() <= 0.1


@given(st.floats(0.5, 1e6), st.lists(st.tuples(st.floats(0, 2), st.integers(1, 10**6)), max_size=50))
def test_a_pace_exceeds_its_rate_by_at_most_one_burst(rate: float, steps: list[tuple[float, int]]) -> None:
    pace = RateLimit(rate, now_s=0.0)
    now_s, taken = 0.0, 0
    for wait_s, wanted in steps:
        now_s += wait_s
        piece = pace.take(wanted, now_s)
        assert 0 <= piece <= wanted
        taken += piece
        assert taken <= now_s * rate + max(1.0, rate * BURST_S) + 1


@given(st.floats(0.5, 1e6))
def test_a_caller_that_waits_as_told_makes_progress_at_the_rate(rate: float) -> None:
    pace = RateLimit(rate, now_s=0.0)
    now_s, taken = 0.0, 0
    for _ in range(200):
        now_s += pace.wait_s() * 1.001
        piece = pace.take(10**9, now_s)
        assert piece
        taken += piece
    assert taken >= now_s * rate * 0.9
