"""The adaptive window with simulated pipelines: steps, bursts, epochs, several sessions; and its bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.gateway.credit_flow import CreditFlow, UnappendedRows
from procession.gateway.credit_window import AdaptiveWindow, CreditBounds
from procession.gateway.gateway_limits import Limits

STEP_S = 0.01
FAST = 1_000_000.0
BOUNDS = CreditBounds(latency_target_s=1.0, size_start=16_384, size_min=256, size_max=1 << 24)


@dataclass
class Pipeline:
    """Takes an epoch of all records there are, needs `overhead_s` plus a time for each record, and commits it."""

    capacity: float
    overhead_s: float = 0.1
    epoch_records_max: int = 1 << 30
    epoch: int = 0
    ends_at: float = 0.0

    def begin(self, now: float, there: int) -> None:
        self.epoch = min(there, self.epoch_records_max)
        self.ends_at = now + self.overhead_s + self.epoch / self.capacity


@dataclass
class Plant:
    """A simulation in time steps: producers that send what their credits allow, a gateway's credit flow, and a
    pipeline."""

    pipeline: Pipeline
    rates: list[float]
    """The records per second that each producer would send without a limit."""
    limits: dict[str, Any] = field(default_factory=dict)
    credits: str = "adaptive"

    def __post_init__(self) -> None:
        self.flow = CreditFlow(Limits(**{"credits": self.credits, **self.limits}), 0, 0, 0)
        self.credits_max = Limits(**self.limits).credits_max
        self.now = 0.0
        self.held = [self.flow.first(len(self.rates)) for _ in self.rates]
        self.wanted = [0.0 for _ in self.rates]
        self.sent = [0 for _ in self.rates]
        self.committed: list[tuple[float, int]] = []
        self.appended: list[tuple[float, int]] = []
        self.buffers: list[tuple[float, int]] = []

    def run(self, seconds: float, change: Callable[[float], None] = lambda now: None) -> Plant:
        end = self.now + seconds
        while self.now < end:
            self.now += STEP_S
            change(self.now)
            self._send()
            self._work()
            self.buffers.append((self.now, self.flow.buffered))
        return self

    def _send(self) -> None:
        for number, rate in enumerate(self.rates):
            self.wanted[number] = min(self.wanted[number] + rate * STEP_S, rate)
            count = min(int(self.wanted[number]), self.held[number])
            if count:
                self.wanted[number] -= count
                self.held[number] -= count
                self.sent[number] += count
                self.flow.receive(self.now, UnappendedRows(self.flow.end_sequence + count, count, number, count))
        for rows in self.flow.append(self.flow.end_sequence):
            self._pay(rows.session, self.flow.is_due)
        self.appended.append((self.now, self.flow.end_sequence))

    def _pay(self, number: int, is_owed: Callable[[int, int], object]) -> None:
        owed, allowed = self.credits_max - self.held[number], self.flow.allowed(len(self.rates))
        if is_owed(owed, allowed):
            self.held[number] += self.flow.grantable(owed, allowed)

    def _work(self) -> None:
        pipeline, flow = self.pipeline, self.flow
        if pipeline.epoch and self.now > pipeline.ends_at - STEP_S / 2:
            is_owed = flow.is_due if flow.allowed(len(self.rates)) else flow.grantable
            flow.commit(self.now, flow.committed_end + pipeline.epoch)
            pipeline.epoch = 0
            self.committed.append((self.now, flow.committed_end))
            for number in range(len(self.rates)):
                self._pay(number, is_owed)
        if not pipeline.epoch and flow.buffered:
            pipeline.begin(self.now, flow.buffered)

    def rate(self, since: float) -> float:
        """Return the number of records committed per second since a time."""
        ends = [(at, end) for at, end in self.committed if at >= since]
        return (ends[-1][1] - ends[0][1]) / (ends[-1][0] - ends[0][0])

    def waits(self, since: float) -> list[float]:
        """Return how long the last record of each step waited for its commit, for steps since a time."""
        waits, commits = [], iter(self.committed)
        at, end = next(commits)
        for (_, before), (came, sequence) in pairwise([(0.0, 0), *self.appended]):
            while sequence > end:
                try:
                    at, end = next(commits)
                except StopIteration:
                    return waits
            if sequence > before and came >= since:
                waits.append(at - came)
        return waits

    def buffer_max(self, since: float) -> int:
        return max(buffered for at, buffered in self.buffers if at >= since)


@pytest.mark.parametrize("capacity", [500, 20_000, 300_000])
@pytest.mark.parametrize("epoch_s", [0.1, 0.2])
def test_before_a_slow_pipeline_records_wait_about_the_target_and_its_rate_does_not_drop(
    capacity: float, epoch_s: float
) -> None:
    # Its epochs have a limit, so it reaches its full rate with epochs of that size.
    def slow() -> Pipeline:
        return Pipeline(FAST * 1e3, overhead_s=epoch_s, epoch_records_max=int(capacity * epoch_s))

    adaptive = Plant(slow(), [FAST]).run(90)
    fixed = Plant(slow(), [FAST], credits="fixed").run(90)
    assert adaptive.rate(since=45) > 0.98 * fixed.rate(since=45)
    waits = adaptive.waits(since=45)
    assert max(waits) < 2.0
    assert sum(waits) / len(waits) > 0.25, "the window is not smaller than it should be"
    assert adaptive.buffer_max(since=45) < fixed.buffer_max(since=45) / 10


@pytest.mark.parametrize("overhead_s", [0.1, 0.5, 1.0])
def test_epochs_of_any_length_keep_most_of_the_pipelines_rate(overhead_s: float) -> None:
    """If the epochs themselves exceed the target, the window must not slow the pipeline down: records wait longer."""
    plant = Plant(Pipeline(100_000, overhead_s), [FAST]).run(90)
    assert plant.rate(since=60) > 0.55 * 100_000
    assert max(plant.waits(since=60)) < 1.3 * max(1.0, 6 * overhead_s)


@pytest.mark.parametrize("producers", [1, 8])
@pytest.mark.parametrize("overhead_s", [0.02, 0.1])
def test_before_a_fast_pipeline_producers_are_as_fast_as_with_a_fixed_window(producers: int, overhead_s: float) -> None:
    rates = [400_000.0 / producers] * producers
    adaptive = Plant(Pipeline(FAST * 10, overhead_s), rates).run(20)
    fixed = Plant(Pipeline(FAST * 10, overhead_s), rates, credits="fixed").run(20)
    assert adaptive.rate(since=3) > 0.98 * fixed.rate(since=3)


def test_the_window_follows_a_pipeline_that_slows_down_and_recovers() -> None:
    plant = Plant(Pipeline(FAST * 1e3, 0.1, epoch_records_max=10_000), [FAST])
    plant.run(30)
    assert plant.rate(since=15) == pytest.approx(100_000, rel=0.05)
    plant.pipeline.epoch_records_max = 1_000
    plant.run(40)
    assert plant.rate(since=50) == pytest.approx(10_000, rel=0.05)
    assert max(plant.waits(since=50)) < 2.0
    plant.pipeline.epoch_records_max = 10_000
    plant.run(30)
    assert plant.rate(since=85) == pytest.approx(100_000, rel=0.05)


def test_an_old_backlog_does_not_shrink_the_window() -> None:
    plant = Plant(Pipeline(FAST * 1e3, 0.1, epoch_records_max=1_000), [FAST], credits="fixed").run(10)
    backlog = plant.flow.buffered
    flow = CreditFlow(Limits(credits="adaptive"), 0, backlog, 0)  # a restarted gateway
    assert flow.allowed(1) == 0
    for number in range(1, backlog // 1_000):
        flow.commit(number * 0.1, number * 1_000)
        assert flow.window is not None
        assert flow.window.size > 8_000, "at least what is committed within the target time"


def test_a_long_pause_of_the_producers_does_not_shrink_the_window() -> None:
    plant = Plant(Pipeline(FAST * 1e3, 0.1, epoch_records_max=10_000), [FAST]).run(20)
    assert plant.flow.window is not None
    size = plant.flow.window.size
    plant.rates = [0.0]
    plant.run(600)
    assert plant.flow.window.size == pytest.approx(size, rel=0.5)
    plant.rates = [FAST]
    plant.run(5)
    assert plant.rate(since=plant.now - 4) == pytest.approx(100_000, rel=0.05)


def test_bursts_of_a_producer_do_not_grow_the_window_beyond_the_rate_of_the_pipeline() -> None:
    def burst(now: float) -> None:
        plant.rates = [FAST if int(now) % 10 == 0 else 0.0]

    plant = Plant(Pipeline(FAST * 1e3, 0.1, epoch_records_max=1_000), [0.0])
    plant.run(100, burst)
    assert max(plant.waits(since=30)) < 2.5


def test_active_sessions_share_the_window_evenly_and_idle_ones_use_none_of_it() -> None:
    plant = Plant(Pipeline(FAST * 1e3, 0.1, epoch_records_max=5_000), [FAST] * 4 + [0.0] * 12).run(30)
    assert plant.rate(since=15) == pytest.approx(50_000, rel=0.05)
    assert min(plant.sent[:4]) > 0.8 * max(plant.sent[:4])
    assert max(plant.waits(since=15)) < 2.0


def test_a_producer_that_is_not_limited_does_not_grow_the_window() -> None:
    window = AdaptiveWindow(BOUNDS)
    for number in range(100):
        window.receive(number, 5_000)
        window.commit(number + 0.1, 5_000, 5_000)
    assert window.size == BOUNDS.size_start
    window.receive(100, 15_000)
    window.commit(100.1, 15_000, 15_000)
    assert window.size > BOUNDS.size_start


step = st.tuples(
    st.floats(0, 100), st.integers(0, 10**9), st.integers(0, 10**9), st.booleans(), st.sampled_from([0.0, 1e-9, 1.0])
)


@given(
    st.lists(step, max_size=60),
    st.floats(0.001, 100),
    st.tuples(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6)),
)
def test_whatever_happens_the_window_stays_within_its_bounds(
    steps: list[tuple[float, int, int, bool, float]], target_s: float, sizes: tuple[int, int, int]
) -> None:
    low, start, high = sorted(sizes)
    window = AdaptiveWindow(CreditBounds(target_s, start, low, high))
    now = 0.0
    for passed_s, records, left, has_come, late_s in steps:
        if has_come:
            window.receive(now, records + left)
        now += passed_s * late_s
        window.commit(now, records, records + left)
        assert low <= window.size <= high
        assert window.target_s >= target_s


@given(
    st.integers(2, 20_000),
    st.integers(2, 20_000),
    st.integers(1, 300),
    st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 50_000), st.floats(0.0001, 5)), max_size=30),
)
def test_no_session_exceeds_the_maximum_and_all_may_send_when_everything_is_committed(
    credits_max: int, credits_min: int, sessions: int, steps: list[tuple[int, int, float]]
) -> None:
    flow = CreditFlow(Limits(credits="adaptive", credits_max=credits_max, credits_min=credits_min), 0, 0, 0)
    now = 0.0
    for received, committed, passed_s in steps:
        now += passed_s
        if received:
            flow.receive(now, UnappendedRows(flow.end_sequence + received, received, 1, received))
        for _ in flow.append(flow.end_sequence):
            pass
        flow.commit(now, min(flow.end_sequence, flow.committed_end + committed))
        assert 0 <= flow.allowed(sessions) <= credits_max
        assert 2 <= flow.first(sessions) <= credits_max
        for owed in (0, credits_max // 2, credits_max):
            assert 0 <= flow.grantable(owed, flow.allowed(sessions)) <= owed
    flow.commit(now + 1, flow.end_sequence)
    assert flow.allowed(sessions) >= min(credits_min, credits_max)
    assert flow.is_due(credits_max, flow.allowed(sessions))
