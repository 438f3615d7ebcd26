"""The adaptive window against pipelines that are simulated: steps, bursts, epochs, several sessions; and its bounds."""

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
    """Takes what is there, needs `overhead_s` and its time for each record, commits, and starts again."""

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
    """Producers who send what their credits allow, a gateway's flow, and a pipeline; in steps of time."""

    pipeline: Pipeline
    rates: list[float]
    """What each producer would like to send in a second."""
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
        """Records committed in a second, from then until now."""
        ends = [(at, end) for at, end in self.committed if at >= since]
        return (ends[-1][1] - ends[0][1]) / (ends[-1][0] - ends[0][0])

    def waits(self, since: float) -> list[float]:
        """How long the last record of each step waited, of those that came since then."""
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
def test_behind_a_slow_pipeline_records_wait_about_the_target_and_nothing_is_lost_of_its_rate(
    capacity: float, epoch_s: float
) -> None:
    # Its epochs take no more than so many records, so it needs no larger ones to be at its best.
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
    """A target that the epochs themselves do not meet must not starve the pipeline: it takes longer, then."""
    plant = Plant(Pipeline(100_000, overhead_s), [FAST]).run(90)
    assert plant.rate(since=60) > 0.55 * 100_000
    assert max(plant.waits(since=60)) < 1.3 * max(1.0, 6 * overhead_s)


@pytest.mark.parametrize("producers", [1, 8])
@pytest.mark.parametrize("overhead_s", [0.02, 0.1])
def test_behind_a_fast_pipeline_the_producers_go_as_fast_as_with_a_fixed_window(
    producers: int, overhead_s: float
) -> None:
    rates = [400_000.0 / producers] * producers
    adaptive = Plant(Pipeline(FAST * 10, overhead_s), rates).run(20)
    fixed = Plant(Pipeline(FAST * 10, overhead_s), rates, credits="fixed").run(20)
    assert adaptive.rate(since=3) > 0.98 * fixed.rate(since=3)


def test_a_pipeline_that_slows_down_and_recovers_is_followed() -> None:
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


def test_an_old_backlog_does_not_wind_the_window_down() -> None:
    plant = Plant(Pipeline(FAST * 1e3, 0.1, epoch_records_max=1_000), [FAST], credits="fixed").run(10)
    backlog = plant.flow.buffered
    flow = CreditFlow(Limits(credits="adaptive"), 0, backlog, 0)  # a gateway that was started again
    assert flow.allowed(1) == 0
    for number in range(1, backlog // 1_000):
        flow.commit(number * 0.1, number * 1_000)
        assert flow.window is not None
        assert flow.window.size > 8_000, "about what is committed in the target's time, not less"


def test_a_long_pause_of_the_producers_is_not_taken_for_a_slow_pipeline() -> None:
    plant = Plant(Pipeline(FAST * 1e3, 0.1, epoch_records_max=10_000), [FAST]).run(20)
    assert plant.flow.window is not None
    size = plant.flow.window.size
    plant.rates = [0.0]
    plant.run(600)
    assert plant.flow.window.size == pytest.approx(size, rel=0.5)
    plant.rates = [FAST]
    plant.run(5)
    assert plant.rate(since=plant.now - 4) == pytest.approx(100_000, rel=0.05)


def test_bursts_of_a_producer_do_not_open_the_window_for_more_than_the_pipeline_does() -> None:
    def burst(now: float) -> None:
        plant.rates = [FAST if int(now) % 10 == 0 else 0.0]

    plant = Plant(Pipeline(FAST * 1e3, 0.1, epoch_records_max=1_000), [0.0])
    plant.run(100, burst)
    assert max(plant.waits(since=30)) < 2.5


def test_sessions_that_send_share_evenly_and_those_that_are_silent_take_nothing_away() -> None:
    plant = Plant(Pipeline(FAST * 1e3, 0.1, epoch_records_max=5_000), [FAST] * 4 + [0.0] * 12).run(30)
    assert plant.rate(since=15) == pytest.approx(50_000, rel=0.05)
    assert min(plant.sent[:4]) > 0.8 * max(plant.sent[:4])
    assert max(plant.waits(since=15)) < 2.0


def test_who_is_not_held_back_does_not_make_the_window_grow() -> None:
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
def test_nobody_holds_more_than_the_maximum_and_when_all_is_committed_everybody_may_send(
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
